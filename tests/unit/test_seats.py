"""Seats: which replica takes a task, and who waits for one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from supervisor.seats import Seat, Seats

if TYPE_CHECKING:
    from supervisor.seats import Balance


def seats(count: int, balance: Balance = "least_loaded", limit: int | None = None) -> Seats:
    return Seats([Seat(replica, f"s/{replica}".encode()) for replica in range(count)], balance, limit)


def taken(stage: Seats, *sessions: str) -> list[int | None]:
    """Who takes a task of each of these sessions, one after the other."""
    found = [stage.take(f"{session}#1", session) for session in sessions]
    return [None if seat is None else seat.replica for seat in found]


def test_ties_rotate() -> None:
    """Replicas that are equally loaded take turns, also when every task ends before the next one comes."""
    stage = seats(3)
    order = []
    for _ in range(6):
        seat = stage.take("t#1", "t")
        assert seat is not None
        order.append(seat.replica)
        stage.give_back(seat)
    assert order == [0, 1, 2, 0, 1, 2]


def test_least_loaded() -> None:
    """The replica with the fewest tasks takes the next one; what waits at a replica counts twice."""
    stage = seats(3)
    loads = {0: (3, 0), 1: (2, 2), 2: (3, 1)}
    for seat in stage:
        seat.in_flight, seat.waiting = loads[seat.replica]
    assert taken(stage, "t", "u", "v") == [0, 1, 2]


def test_round_robin_passes_who_is_full() -> None:
    """One after the other, whatever their load, past those that are full."""
    stage = seats(3, "round_robin", limit=5)
    full, busy, _ = stage
    full.in_flight, busy.in_flight = 5, 4
    assert taken(stage, *"abcd") == [1, 2, 2, 2]


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(2, 6))
def test_sticky(sessions: list[str], count: int) -> None:
    """A session stays at its replica; when one goes, only its sessions move."""
    stage = seats(count, "sticky")
    before = dict(zip(sessions, taken(stage, *sessions), strict=True))
    assert dict(zip(sessions, taken(stage, *sessions), strict=True)) == before
    stage.remove(b"s/0")
    after = dict(zip(sessions, taken(stage, *sessions), strict=True))
    assert {session for session in sessions if before[session] != after[session]} == {
        session for session in sessions if before[session] == 0
    }


def test_sticky_spreads() -> None:
    """Many sessions are shared out about equally."""
    counts = Counter(taken(seats(4, "sticky"), *map(str, range(4000))))
    assert all(900 < count < 1100 for count in counts.values())


def test_full_seats_make_tasks_wait_in_order() -> None:
    """What finds every seat full waits, nobody overtakes it, and it takes the first seat that is given back."""
    stage = seats(2, limit=1)
    assert taken(stage, "a", "b", "c", "d") == [0, 1, None, None]
    last = list(stage)[1]
    stage.give_back(last)
    assert taken(stage, "e") == [None]
    assert stage.next_waiting() == ("c#1", last)
    assert stage.next_waiting() is None
    assert stage.waiting == 2


def test_sticky_task_waits_for_its_own_seat() -> None:
    """A session whose replica is full waits for that one, and holds up no other session."""
    stage = seats(2, "sticky", limit=1)
    by_replica: dict[int | None, str] = {}
    for session in map(str, range(100)):
        by_replica.setdefault(seats(2, "sticky").take("t", session).replica, session)  # type: ignore[union-attr]
    zero, one = by_replica[0], by_replica[1]
    assert taken(stage, zero, zero, one) == [0, None, 1]
    stage.give_back(next(seat for seat in stage if seat.replica == 1))
    assert stage.next_waiting() is None
    stage.give_back(next(seat for seat in stage if seat.replica == 0))
    found = stage.next_waiting()
    assert found is not None
    assert (found[0], found[1].replica) == (f"{zero}#1", 0)


def test_removed_seat_takes_nothing() -> None:
    """A replica that is removed keeps what it has and takes nothing more; one that is added takes its share."""
    stage = seats(2)
    gone = stage.remove(b"s/0")
    assert gone is not None
    assert stage.remove(b"s/0") is None
    assert taken(stage, *"abc") == [1, 1, 1]
    stage.add(Seat(2, b"s/2"))
    assert taken(stage, *"abc") == [2, 2, 2]
