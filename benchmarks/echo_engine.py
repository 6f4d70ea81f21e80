"""The stage of the benchmark: a Countdown of one step that gives back what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage import Output

if TYPE_CHECKING:
    from collections.abc import Sequence


class Echo:
    """Answer each request with its own data, all that are at hand in one step."""

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}

    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, request_id: str, data: Any) -> None:
        self._waiting[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def step(self) -> list[Output]:
        waiting, self._waiting = self._waiting, {}
        return [Output(request_id, data, True) for request_id, data in waiting.items()]

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        raise ValueError(f"the echo engine has no utilities, so not {name!r} with {args!r}")
