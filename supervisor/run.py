"""`Pipeline.run`: a feeder thread submits, the caller's thread yields what comes back."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stage.codec import EncodeError, encode
from supervisor.errors import StageDiedError
from supervisor.handle import Outcome, Result, open_piece
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisor import ledger
    from supervisor.core import Core

FEEDER_JOIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `Pipeline.run`.

    Args:
        id: of no request that is alive; made up if None.
        data: what `Pipeline.submit` takes.
        error: if the request could not even be read, what was wrong: it ends as failed.
    """

    id: str | None
    data: Any = None
    error: str | None = None


class _Run(Waitable):
    """The sink of all requests of one run. What it holds changes under the switchboard's lock."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self._lock = core.switchboard.lock
        self._events: deque[tuple[ledger.Request, ledger.Piece] | Outcome] = deque()
        self._alive: set[ledger.Request] = set()
        self._fed = False
        self._left = False
        self._error: BaseException | None = None

    def deliver(self, request: ledger.Request, piece: ledger.Piece) -> None:
        self._events.append((request, piece))
        self.wake()

    def end(self, request: ledger.Request) -> None:
        assert request.outcome is not None  # noqa: S101 (set before a sink is told)
        self._alive.discard(request)
        self._events.append(Outcome(request.id, request.outcome, request.error))
        self.wake()

    def feed(self, requests: Iterable[Request]) -> None:
        """Submit everything; the body of the feeder thread."""
        try:
            for request in requests:
                if self._left or not self._submit(request):
                    break
        except BaseException as exc:
            self._error = exc
        finally:
            with self._lock:
                self._fed = True
                self.wake()

    def _submit(self, request: Request) -> bool:
        """Submit one; False if no more are accepted."""
        error = request.error
        if error is None:
            try:
                accepted = self._core.submit(encode(request.data), request.id, self)
            except (EncodeError, ValueError) as exc:
                error = str(exc)
            except (StageDiedError, RuntimeError):
                return False
            else:
                with self._lock:
                    if accepted.outcome is None:
                        self._alive.add(accepted)
                return True
        with self._lock:
            self._events.append(Outcome(request.id or "", "failed", error))
            self.wake()
        return True

    def events(self) -> Iterator[Result | Outcome]:
        """Yield until everything that was fed has ended."""
        while True:
            self._core.turns.wait(self, self._has_news)
            while self._events:
                event = self._events.popleft()
                yield event if isinstance(event, Outcome) else open_piece(event[0].id, event[1])
            if self._is_over() and not self._events:
                break
        if self._core.switchboard.died is not None:
            raise StageDiedError(self._core.switchboard.died)
        if self._error is not None:
            raise self._error

    def _has_news(self) -> bool:
        return bool(self._events) or self._is_over()

    def _is_over(self) -> bool:
        refused = self._core.switchboard.refusal() is not None
        return (self._fed or refused) and not self._alive

    def leave(self) -> None:
        """Abort what is left: nobody reads its results."""
        self._left = True
        for request in list(self._alive):
            self._core.switchboard.abort(request)


def run_requests(core: Core, requests: Iterable[Request]) -> Iterator[Result | Outcome]:
    """Submit `requests` from a thread of its own, since taking one may block, and yield what they produce."""
    run = _Run(core)
    feeder = threading.Thread(target=run.feed, args=(requests,), name="pipeline-feeder", daemon=True)
    feeder.start()
    try:
        yield from run.events()
    finally:
        run.leave()
        close = getattr(requests, "close", None)
        if close is not None:
            # A generator that is being executed on the feeder's thread cannot be closed; it ends with its next item.
            with suppress(ValueError):
                close()
        feeder.join(FEEDER_JOIN_S)
