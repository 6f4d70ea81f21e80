"""The contract between a stage process and the engine that it owns.

An engine lives on the main thread of its stage process: every method is called there, one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENGINE_METHODS = ("has_work", "add", "abort", "step", "utility")
"""What an engine must have; `Engine` says what each one does."""

LOCKSTEP_METHODS = (*ENGINE_METHODS, "dummy_step")
"""What one must have whose replicas step together."""


class RequestError(Exception):
    """Raise it from `Engine.add` to refuse one request; the stage and the other requests go on.

    Its text reaches the user as the request's error.
    """


class Output(NamedTuple):
    """One output of one step.

    Args:
        request_id: the id that `Engine.add` was given.
        data: bytes, text, numbers, lists, dicts and numpy arrays, nested as you like; it must not change after
            `step` has returned it. None marks an end without data: it is neither forwarded nor delivered.
        finished: True on the last output of this request.
    """

    request_id: str
    data: Any
    finished: bool


@runtime_checkable
class Engine(Protocol):
    """What a stage runs: named in the config as `package.module:ClassName` and built as `ClassName(**args)`.

    Two methods are optional and looked up by name: `shutdown()`, called on every way out, and
    `set_failure_callback(callback)`, for an engine with threads or processes of its own, which calls
    `callback(reason)` from any thread when one of them fails.
    An engine whose replicas must step together (`lockstep` in the config) has `dummy_step()` as well: a step without
    work of its own, with its part in whatever the group does together.
    The shape follows the step loop of vLLM's `EngineCore`.
    """

    def has_work(self) -> bool:
        """True while a call of `step` would make progress."""

    def add(self, request_id: str, data: Any) -> None:
        """Accept a request.

        Raises:
            RequestError: this request alone is refused. Any other exception ends the stage.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests; ids that are unknown or have ended are ignored."""

    def step(self) -> Iterable[Output]:
        """Do a bounded amount of work and return what it produced."""

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer a call that is no request, such as statistics; an exception answers that call only."""
