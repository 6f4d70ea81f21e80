"""`Pipeline.run`: a feeder thread submits, the caller's thread yields what comes back."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from stage.codec import check_size, encode
from supervisor import ledger
from supervisor.errors import StageDiedError
from supervisor.handle import Outcome, Result, open_payload
from supervisor.ledger import check_id
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stage.codec import Payload
    from supervisor.core import Core

FEEDER_JOIN_S = 1.0
BACKLOG = 256
"""Results and outcomes that wait to be read, beyond four for each request in flight, before no more are fed."""


class Request(msgspec.Struct, frozen=True):
    """A request for `Pipeline.run`.

    Args:
        id: of no request that is alive; made up if None.
        data: what `Pipeline.submit` takes.
        error: if the request could not even be read, what was wrong: it ends as failed.
        session: as for `Pipeline.submit`.
    """

    id: str | None
    data: Any = None
    error: str | None = None
    session: str | None = None


class _RunRequest(ledger.Request):
    """A request whose results go to the run it belongs to."""

    __slots__ = ("_run",)

    def __init__(self, request_id: str, run: _Run, session: str | None) -> None:
        super().__init__(request_id, session)
        self._run = run

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        self._run.put((self.id, stage, part, payload))

    def end(self) -> None:
        assert self.outcome is not None  # noqa: S101 (set before a request is told)
        self._run.put_end(self, Outcome(self.id, self.outcome, self.error))


class _Run(Waitable):
    """All requests of one run, and what they produce."""

    def __init__(self, core: Core) -> None:
        self.tokens = ()
        self._core = core
        self._switchboard = core.switchboard
        self._events: deque[tuple[str, str, list[int], Payload] | Outcome] = deque()
        self.alive: set[_RunRequest] = set()
        self._backlog = 4 * core.manager.config.max_in_flight + BACKLOG
        self._max_bytes = core.manager.config.max_request_bytes
        self._fed = False
        self._left = threading.Event()
        self._error: BaseException | None = None
        with self._switchboard.lock:
            self._switchboard.dependents.append(self)

    def put(self, event: tuple[str, str, list[int], Payload]) -> None:
        """Take a result."""
        self._events.append(event)
        self.wake()

    def put_end(self, request: _RunRequest, outcome: Outcome) -> None:
        """Take an outcome; it is there before the request is gone, since the reader looks without the lock."""
        self._events.append(outcome)
        self.alive.discard(request)
        self.wake()

    def feed(self, requests: Iterable[Request]) -> None:
        """Submit everything; the body of the feeder thread."""
        try:
            for request in requests:
                if self._left.is_set() or not self._submit(request):
                    break
        except BaseException as exc:
            self._error = exc
        finally:
            self._fed = True
            self._tell(None)

    def _submit(self, request: Request) -> bool:
        """Submit one; False if no more are accepted."""
        if not isinstance(request, Request):
            raise TypeError(f"run takes Request objects, such as Request('r1', data), not {request!r:.100}")
        request_id = self._switchboard.new_id() if request.id is None else request.id
        error = request.error
        if error is None:
            try:
                check_id(request_id)
                payload = encode(request.data)
                check_size(payload, self._max_bytes, "the data")
                return self._open(_RunRequest(request_id, self, request.session), payload)
            except (TypeError, ValueError) as exc:
                error = str(exc)
        self._tell(Outcome(str(request_id), "failed", error))
        return True

    def _open(self, new: _RunRequest, payload: Payload) -> bool:
        """Open a request once there is room for it; False if there will be none."""
        switchboard = self._switchboard
        # Before it is open: it may have ended by the time `open` returns.
        self.alive.add(new)
        try:
            while not self._left.is_set() and switchboard.refusal() is None:
                self._core.turns.wait(switchboard.slots, self._has_room)
                if not self._left.is_set() and switchboard.open(new, payload):
                    if self._left.is_set():
                        switchboard.abort(new)
                    return True
        except BaseException:
            self.alive.discard(new)
            raise
        self.alive.discard(new)
        return False

    def _has_room(self) -> bool:
        """True if a request may be opened: who reads slowly must not make us hoard results."""
        return self._left.is_set() or (len(self._events) < self._backlog and self._switchboard.has_slot())

    def _tell(self, outcome: Outcome | None) -> None:
        """Let the thread that reads the events know, whether it polls or not."""
        with self._switchboard.lock:
            if outcome is not None:
                self._events.append(outcome)
            self.wake()
            self._switchboard.outbox.ring()

    def events(self) -> Iterator[Result | Outcome]:
        """Yield until everything that was fed has ended."""
        while self._core.turns.wait(self, self._has_news) and self._events:
            event = self._events.popleft()
            if len(self._events) == self._backlog - 1:
                self._switchboard.look_again()
            if isinstance(event, Outcome):
                yield event
            else:
                request_id, stage, part, payload = event
                yield Result(request_id, stage, part, open_payload(payload))
        if self._switchboard.died is not None:
            raise StageDiedError(self._switchboard.died)
        if self._error is not None:
            raise self._error

    def _has_news(self) -> bool:
        return bool(self._events) or self._is_over()

    def _is_over(self) -> bool:
        refused = self._switchboard.refusal() is not None
        return (self._fed or refused) and not self.alive

    def leave(self) -> None:
        """Abort what is left: nobody reads its results."""
        self._left.set()
        with self._switchboard.lock:
            self._switchboard.dependents.remove(self)
        for request in list(self.alive):
            self._switchboard.abort(request)
        self._switchboard.look_again()


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
        try:
            if close is not None:
                # A generator that the feeder is just executing cannot be closed: it ends with its next item.
                with suppress(ValueError):
                    close()
        finally:
            feeder.join(FEEDER_JOIN_S)
