"""The seats of a stage (pure): its replicas as the ledger sees them, and which of them takes the next task.

A task that finds every seat full that it may take waits here, in order of arrival, until one is given back. A seat is
given back only after the abort for its task, if any, was put into the replica's channel: what is sent behind it finds
the replica with room.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Balance = Literal["least_loaded", "round_robin", "sticky"]


class Seat:
    """A replica that takes tasks.

    Args:
        replica: its number.
        key: the routing id of its process.
    """

    __slots__ = ("in_flight", "key", "on_empty", "replica", "waiting")

    def __init__(self, replica: int, key: bytes) -> None:
        self.on_empty: Callable[[], None] | None = None
        """Called when its last task has ended, once it takes no more."""
        self.replica = replica
        self.key = key
        self.in_flight = 0
        """Tasks that were given to it and have not ended."""
        self.waiting = 0
        """Those of them that its engine had not taken in when it last published its load."""

    @property
    def load(self) -> int:
        """What it has to do; what it has published may be out of date by now, and never tells of more than it has."""
        return self.in_flight + min(self.waiting, self.in_flight)


class Seats:
    """Choose a seat for each task of a stage.

    `least_loaded` takes the seat with the fewest tasks, where a task that waits at its replica counts twice, since it
    tells that the replica is slow; ties rotate. `round_robin` takes one after the other, past those that are full.
    `sticky` takes the same seat for the same session, and moves as few sessions as can be when the seats change
    (rendezvous hashing, Thaler and Ravishankar, 1996).

    Args:
        seats: the replicas that take tasks.
        balance: how to choose.
        limit: the most tasks at one seat, or None.
    """

    def __init__(self, seats: Iterable[Seat], balance: Balance = "least_loaded", limit: int | None = None) -> None:
        self._seats = list(seats)
        self._balance = balance
        self._limit = math.inf if limit is None else limit
        self._next = 0
        self._queue: OrderedDict[str, str] = OrderedDict()  # sessions by task

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats)

    @property
    def waiting(self) -> int:
        """Tasks that wait for a seat."""
        return len(self._queue)

    def take(self, task: str, session: str) -> Seat | None:
        """Take a seat for a task, or let it wait and return None.

        Args:
            task: its engine id.
            session: what `sticky` goes by.
        """
        # Who comes later may only overtake those who could not take the seat that is free: they stick to another.
        seat = None if self._queue and self._balance != "sticky" else self._choose(session)
        if seat is None:
            self._queue[task] = session
        else:
            seat.in_flight += 1
        return seat

    def give_back(self, seat: Seat) -> None:
        """Note that a task of this seat has ended."""
        seat.in_flight -= 1
        if seat.on_empty is not None and not seat.in_flight:
            seat.on_empty()

    def next_waiting(self) -> tuple[str, Seat] | None:
        """Take a seat for the first task that waits and may have one now."""
        for task, session in self._queue.items():
            seat = self._choose(session)
            if seat is not None:
                del self._queue[task]
                seat.in_flight += 1
                return task, seat
            if self._balance != "sticky":
                break
        return None

    def forget(self, task: str) -> None:
        """Let a task wait no more; nothing happens if it does not."""
        self._queue.pop(task, None)

    def add(self, seat: Seat) -> None:
        """Let a new replica take tasks."""
        self._seats.append(seat)

    def remove(self, key: bytes) -> Seat | None:
        """Let a replica take no more tasks; those that it has stay with it. None if it takes none already."""
        for index, seat in enumerate(self._seats):
            if seat.key == key:
                return self._seats.pop(index)
        return None

    def _choose(self, session: str) -> Seat | None:
        seats, limit = self._seats, self._limit
        if len(seats) == 1:
            return seats[0] if seats[0].in_flight < limit else None
        if self._balance == "sticky":
            seat = max(seats, key=lambda seat: _affinity(session, seat.replica), default=None)
            return seat if seat is not None and seat.in_flight < limit else None
        free = [index for index, seat in self._in_turn() if seat.in_flight < limit]
        if not free:
            return None
        best = free[0]
        if self._balance == "least_loaded":
            best = min(free, key=lambda index: seats[index].load)
        self._next = (best + 1) % len(seats)
        return seats[best]

    def _in_turn(self) -> Iterator[tuple[int, Seat]]:
        """All seats with their indexes, beginning behind the one that was taken last."""
        count = len(self._seats)
        for offset in range(count):
            index = (self._next + offset) % count
            yield index, self._seats[index]


def _affinity(session: str, replica: int) -> bytes:
    return blake2b(f"{replica}/{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
