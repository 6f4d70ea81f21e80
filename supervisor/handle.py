"""What users get back: results, outcomes, and the handle of a request under way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stage.codec import decode
from supervisor.errors import RequestAbortedError, RequestFailedError
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.ledger import OutcomeName, Piece, Request
    from supervisor.switchboard import Switchboard
    from supervisor.turns import Turns


@dataclass(frozen=True, slots=True)
class Result:
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a request: `finished`, `aborted` or `failed`, with the error of a failed one."""

    id: str
    outcome: OutcomeName
    error: str | None


def open_piece(request_id: str, piece: Piece) -> Result:
    """Decode a result."""
    body, frames = piece.payload
    data = decode(body, [frame.buffer for frame in frames] if frames else ())
    return Result(request_id, piece.stage, piece.part, data)


class Handle(Waitable):
    """A request under way; iterate over it for its results as they come.

    `Pipeline.submit` makes it. It may be used from any thread, and after the pipeline has closed.
    """

    __slots__ = ("_pieces", "_request", "_switchboard", "_turns")

    _request: Request

    def __init__(self, switchboard: Switchboard, turns: Turns) -> None:
        super().__init__()
        self._switchboard = switchboard
        self._turns = turns
        self._pieces: list[Piece] = []

    @property
    def id(self) -> str:
        """The request's id."""
        return self._request.id

    def bind(self, request: Request) -> None:
        """Tell the handle whose it is."""
        self._request = request

    def deliver(self, _request: Request, piece: Piece) -> None:
        """Take a result; called by the ledger."""
        self._pieces.append(piece)
        self.wake()

    def end(self, request: Request) -> None:
        """Take the outcome; called by the ledger."""
        self._request = request
        self.wake()

    def abort(self) -> None:
        """End the request as aborted; nothing happens if it has ended."""
        self._switchboard.abort(self._request)

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
        return [open_piece(self.id, piece) for piece in self._pieces]

    def __iter__(self) -> Iterator[Result]:
        index = 0
        while self._turns.wait(self, partial(self._has_more, index)) and index < len(self._pieces):
            yield open_piece(self.id, self._pieces[index])
            index += 1
        self._raise_outcome()

    def _has_more(self, index: int) -> bool:
        return len(self._pieces) > index or self._has_ended()

    def _has_ended(self) -> bool:
        return self._request.outcome is not None

    def _raise_outcome(self) -> None:
        if self._request.outcome == "failed":
            raise RequestFailedError(self.id, self._request.error or "unknown error", self._request.report)
        if self._request.outcome == "aborted":
            raise RequestAbortedError(f"request {self.id!r} was aborted")
