"""The ledger of requests (pure): each accepted request gets exactly one terminal outcome.

A request travels as tasks: one for each stage process that works on a piece of it. A task is known by an engine id,
unique for the ledger's life, so a message about anything that has ended finds no task and is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from supervisor.stage_graph import reachable

if TYPE_CHECKING:
    from stage.codec import Payload
    from supervisor.report import StageDeathReport
    from supervisor.seats import Seat, Seats
    from supervisor.stage_graph import StageNode

OutcomeName = Literal["finished", "aborted", "failed"]


class AliveError(ValueError):
    """A request of this id has no outcome yet."""


class Request(ABC):
    """One request of a user, from `Ledger.open` to its outcome; subclasses say what becomes of its results.

    Args:
        request_id: the user's id.
        session: requests of one session go to the same replica of a stage whose balance is `sticky`; None for the id.

    Raises:
        TypeError: the session is no str.
    """

    __slots__ = ("error", "id", "outcome", "report", "session", "tasks")

    def __init__(self, request_id: str, session: str | None = None) -> None:
        if session is not None and not isinstance(session, str):
            raise TypeError(f"session {session!r:.100} must be a str, not {type(session).__name__}")
        self.id = request_id
        self.session = request_id if session is None else session
        self.tasks: dict[str, Task] = {}
        self.outcome: OutcomeName | None = None
        self.error: str | None = None
        self.report: StageDeathReport | None = None
        """The death that failed it."""

    @abstractmethod
    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        """Take one result of a final stage, its data still encoded."""

    @abstractmethod
    def end(self) -> None:
        """Take the outcome, which stands in `outcome`; nothing comes after it."""


class Task(msgspec.Struct, gc=False, eq=False):
    """A piece of a request at one stage.

    Args:
        request: whose it is.
        node: the stage.
        seat: the replica that has it, or None while every one is full.
        part: the index of the output at each stage before.
        outputs: outputs with data so far.
        held: the last of them, for consumers that take only that one.
    """

    # Not tracked by the garbage collector: the ring from request to task is undone when the task ends.
    request: Request
    node: StageNode
    seat: Seat | None
    part: list[int]
    outputs: int = 0
    held: Payload | None = None
    """Also what it will be given, while it waits for a seat."""


def check_id(request_id: str) -> None:
    """See that an id can be sent and printed.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or no valid Unicode.
    """
    if not isinstance(request_id, str):
        raise TypeError(f"request id {request_id!r:.100} must be a str, not {type(request_id).__name__}")
    if not request_id:
        raise ValueError("a request id must have at least one character")
    if not request_id.isascii():
        try:
            request_id.encode()
        except UnicodeEncodeError:
            raise ValueError(f"request id {request_id!r:.100} is no valid Unicode: it has a lone surrogate") from None


class Post(Protocol):
    """Where the ledger says what the stages must be sent."""

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        """Give a replica a request."""

    def abort(self, seat: Seat, engine_ids: list[str]) -> None:
        """Tell a replica to forget requests."""


class Ledger:
    """Keep account of every request.

    Args:
        sources: the stages that take a new request, as `build_graph` returns them.
        post: takes what the stages must be sent.
    """

    def __init__(self, sources: list[StageNode], post: Post) -> None:
        self._sources = sources
        self._nodes = {node.name: node for node in reachable(sources)}
        self._post = post
        self.requests: dict[str, Request] = {}
        """Those without an outcome, by id, oldest first; only the ledger changes it."""
        self._tasks: dict[str, Task] = {}
        self._number = 0
        self.done = 0
        """Requests that have ended."""
        self.strangers: list[str] = []
        """Ids in outputs that were never given to any stage; whoever reads them clears the list."""

    def open(self, request: Request, payload: Payload) -> None:
        """Accept a request.

        Raises:
            AliveError: a request of this id is alive; nothing has changed.
        """
        request_id = request.id
        if request_id in self.requests:
            raise AliveError(f"request {request_id!r} is still alive: wait for its outcome, or use another id")
        self.requests[request_id] = request
        for node in self._sources:
            self._begin(request, node, [], payload)

    def output(self, engine_id: str, payload: Payload, finished: bool) -> None:
        """Account for an output with data: deliver it, or pass it on."""
        task = self._tasks.get(engine_id)
        if task is None:
            self._check_stranger(engine_id)
            return
        part = [*task.part, task.outputs]
        task.outputs += 1
        request, node = task.request, task.node
        if not node.consumers:
            request.deliver(node.name, part, payload)
        for consumer in node.consumers:
            if consumer.take == "each":
                self._begin(request, consumer, part, payload)
            else:
                task.held = payload
        if finished:
            self._finish(engine_id, task)

    def end(self, engine_id: str) -> None:
        """Account for the end of a task without further data."""
        task = self._tasks.get(engine_id)
        if task is not None:
            self._finish(engine_id, task)
        else:
            self._check_stranger(engine_id)

    def refuse(self, engine_id: str, error: str) -> None:
        """Fail the request whose task a stage has refused."""
        task = self._tasks.get(engine_id)
        if task is not None:
            del self._tasks[engine_id], task.request.tasks[engine_id]
            self._free(engine_id, task)
            self.close(task.request, "failed", f"stage {task.node.name!r}: {error}")

    def close(
        self,
        request: Request,
        outcome: OutcomeName,
        error: str | None = None,
        report: StageDeathReport | None = None,
    ) -> None:
        """End a request that is alive, whatever it waits for; one that has ended or is not open stays as it is."""
        if self.requests.get(request.id) is not request:
            return
        cancels: dict[bytes, tuple[Seat, list[str]]] = {}
        tasks = list(request.tasks.items())
        for engine_id, task in tasks:
            if task.seat is None:
                task.node.seats.forget(engine_id)  # at once: none of them may take the seat of another
            else:
                cancels.setdefault(task.seat.key, (task.seat, []))[1].append(engine_id)
            del self._tasks[engine_id]
        request.tasks.clear()
        for seat, engine_ids in cancels.values():
            self._post.abort(seat, engine_ids)
        request.report = report
        self._end(request, outcome, error)
        # Behind the aborts: a task that takes a seat now is sent behind the abort of the one that had it.
        for engine_id, task in tasks:
            self._free(engine_id, task)

    def add_seat(self, stage: str, seat: Seat) -> None:
        """Let a replica that has joined take requests, those first that wait."""
        seats = self._nodes[stage].seats
        seats.add(seat)
        self._seat_waiting(seats)

    def has_seat(self, stage: str, key: bytes) -> bool:
        """True if the process of routing id `key` takes requests."""
        return any(seat.key == key for seat in self._nodes[stage].seats)

    def retire(self, stage: str, key: bytes) -> Seat | None:
        """Give a replica nothing any more, and what stuck to it to others; None if it is given nothing already."""
        seats = self._nodes[stage].seats
        seat = seats.remove(key)
        self._seat_waiting(seats)
        return seat

    def requests_at(self, stage: str, key: bytes) -> list[Request]:
        """The requests of which a replica has a part, oldest first."""
        tasks = [task for task in self._tasks.values() if task.node.name == stage]
        there = {task.request for task in tasks if task.seat is not None and task.seat.key == key}
        return [request for request in self.requests.values() if request in there]

    def take_loads(self, stage: str, loads: dict[int, tuple[int, int]]) -> None:
        """Take what a stage's replicas have published: how many requests wait, and how many their engines have."""
        for seat in self._nodes[stage].seats:
            seat.waiting, _ = loads.get(seat.replica, (0, 0))

    def _check_stranger(self, engine_id: str) -> None:
        """Tell an id that has ended from one that was never given out: then an engine mixes its ids up."""
        number = engine_id.rpartition("#")[2]
        if not (number.isdecimal() and 0 < int(number) <= self._number):
            self.strangers.append(engine_id)

    def _begin(self, request: Request, node: StageNode, part: list[int], payload: Payload) -> None:
        self._number += 1
        engine_id = f"{request.id}#{self._number}"
        seat = node.seats.take(engine_id, request.session)
        task = self._tasks[engine_id] = request.tasks[engine_id] = Task(request, node, seat, part)
        if seat is None:
            task.held = payload
        else:
            self._post.add(seat, engine_id, payload)

    def _free(self, engine_id: str, task: Task) -> None:
        """Give the seat of a task that has ended to the next one that waits for it."""
        if task.seat is None:
            task.node.seats.forget(engine_id)
            return
        task.node.seats.give_back(task.seat)
        self._seat_waiting(task.node.seats)

    def _seat_waiting(self, seats: Seats) -> None:
        """Give the seats that are free to those who wait."""
        while (found := seats.next_waiting()) is not None:
            engine_id, seat = found
            waiting = self._tasks[engine_id]
            assert waiting.held is not None  # noqa: S101 (so it was put in)
            payload, waiting.held, waiting.seat = waiting.held, None, seat
            self._post.add(seat, engine_id, payload)

    def _finish(self, engine_id: str, task: Task) -> None:
        request = task.request
        if task.held is not None:
            part = [*task.part, task.outputs - 1]
            for consumer in task.node.consumers:
                if consumer.take == "final":
                    self._begin(request, consumer, part, task.held)
        del self._tasks[engine_id], request.tasks[engine_id]
        self._free(engine_id, task)
        if not request.tasks:
            self._end(request, "finished", None)

    def _end(self, request: Request, outcome: OutcomeName, error: str | None) -> None:
        del self.requests[request.id]
        self.done += 1
        request.outcome, request.error = outcome, error
        request.end()
