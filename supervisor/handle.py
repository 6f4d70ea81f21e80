"""What users get back: results, outcomes, and the handle of a request under way."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stage.codec import decode
from supervisor.errors import RequestAbortedError, RequestFailedError
from supervisor.ledger import Request
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stage.codec import Payload
    from supervisor.ledger import OutcomeName
    from supervisor.switchboard import Switchboard
    from supervisor.turns import Token, Turns


class Result(msgspec.Struct, frozen=True):
    """One output of a final stage.

    Args:
        id: the request's id.
        stage: the final stage.
        part: the index of the output at each stage on its way; sorting by it gives the order in which one process
            alone would have produced the results.
        data: what the engine returned. Arrays are read-only views: copy one to change it.
    """

    id: str
    stage: str
    part: list[int]
    data: Any


class Outcome(msgspec.Struct, frozen=True):
    """The end of a request: `finished`, `aborted` or `failed`, with the error of a failed one."""

    id: str
    outcome: OutcomeName
    error: str | None


def open_payload(payload: Payload) -> Any:
    """Decode data that has come from a stage."""
    frames = payload.frames
    return decode(payload.body, [frame.buffer for frame in frames] if frames else ())


class Handle(Request, Waitable):
    """A request under way; iterate over it for its results as they come.

    `Pipeline.submit` makes it. It may be used from any thread, and after the pipeline has closed.
    """

    __slots__ = ("_pieces", "_switchboard", "_turns", "tokens")

    def __init__(self, request_id: str, switchboard: Switchboard, turns: Turns, session: str | None = None) -> None:
        Request.__init__(self, request_id, session)
        self.tokens: tuple[Token, ...] = ()
        self._switchboard = switchboard
        self._turns = turns
        self._pieces: list[tuple[str, list[int], Payload]] = []

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        """Take a result; called by the ledger."""
        self._pieces.append((stage, part, payload))
        if self.tokens:
            self.wake()

    def end(self) -> None:
        """Take the outcome; called by the ledger."""
        if self.tokens:
            self.wake()

    def abort(self) -> None:
        """End the request as aborted; nothing happens if it has ended."""
        self._switchboard.abort(self)

    def result(self, timeout_s: float | None = None) -> list[Result]:
        """Wait for the end and return every result, in the order in which they came.

        Raises:
            TimeoutError: it has not ended within `timeout_s` seconds; it lives on.
            RequestFailedError: it failed; `.report` tells of the death that caused it.
            RequestAbortedError: it was aborted.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._turns.wait(self, self._has_ended, deadline):
            raise TimeoutError(f"request {self.id!r} has not ended within {timeout_s} s (timeout_s); it lives on")
        self._raise_outcome()
        return [Result(self.id, stage, part, open_payload(payload)) for stage, part, payload in self._pieces]

    def __iter__(self) -> Iterator[Result]:
        index = 0
        while self._turns.wait(self, partial(self._has_more, index)) and index < len(self._pieces):
            stage, part, payload = self._pieces[index]
            yield Result(self.id, stage, part, open_payload(payload))
            index += 1
        self._raise_outcome()

    def _has_more(self, index: int) -> bool:
        return len(self._pieces) > index or self.outcome is not None

    def _has_ended(self) -> bool:
        return self.outcome is not None

    def _raise_outcome(self) -> None:
        if self.outcome == "failed":
            raise RequestFailedError(self.id, self.error or "unknown error", self.report)
        if self.outcome == "aborted":
            raise RequestAbortedError(f"request {self.id!r} was aborted")
