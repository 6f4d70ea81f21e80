"""Bugs to seed into what the product knows of replicas, one at a time; as those of `sim_bugs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.protocol import Abort
from supervisor.calls import Calls
from supervisor.ledger import Ledger
from supervisor.membership import Membership
from supervisor.outbox import Outbox
from supervisor.seats import Seats
from supervisor.turns import Turns
from supervisor.undertaker import Undertaker

if TYPE_CHECKING:
    import pytest


def give_a_seat_back_too_soon(patch: pytest.MonkeyPatch) -> None:
    """The seat of an aborted task is given to another one before the abort is put into the replica's channel."""
    close = Ledger.close

    def buggy(self: Ledger, *about: Any) -> None:
        post = self._post
        late = self._post = _LateAborts(post)
        close(self, *about)
        self._post = post
        for abort in late.aborts:
            post.abort(*abort)

    patch.setattr(Ledger, "close", buggy)


class _LateAborts:
    """Passes on what replicas are given, and keeps the aborts."""

    def __init__(self, post: Any) -> None:
        self.add = post.add
        self.aborts: list[Any] = []

    def abort(self, *about: Any) -> None:
        """Keep it."""
        self.aborts.append(about)


def give_a_full_replica_one_more(patch: pytest.MonkeyPatch) -> None:
    """A replica is full when it has more than its `max_in_flight`."""
    init = Seats.__init__

    def buggy(self: Seats, *about: Any) -> None:
        init(self, *about)
        self._limit += 1

    patch.setattr(Seats, "__init__", buggy)


def abort_at_the_first_replica(patch: pytest.MonkeyPatch) -> None:
    """An abort goes to the first replica, whichever has the task."""

    def buggy(self: Outbox, seat: Any, engine_ids: list[str]) -> None:
        self._put(seat.key.partition(b"/")[0] + b"/0", Abort(engine_ids), ())

    patch.setattr(Outbox, "abort", buggy)


def forget_the_session(patch: pytest.MonkeyPatch) -> None:
    """`sticky` goes by what is different for each task."""
    take = Seats.take
    patch.setattr(Seats, "take", lambda self, task, _: take(self, task, task))


def forget_what_the_dead_had(patch: pytest.MonkeyPatch) -> None:
    """The requests of a replica that has died are not ended."""
    patch.setattr(Ledger, "requests_at", lambda *_: [])


def fail_all_that_a_stage_has(patch: pytest.MonkeyPatch) -> None:
    """The death of a replica fails what the others of its stage have, too."""

    def buggy(self: Ledger, stage: str, _: bytes) -> list[Any]:
        there = [task.request for task in self._tasks.values() if task.node.name == stage]
        return [request for request in self.requests.values() if request in there]

    patch.setattr(Ledger, "requests_at", buggy)


def leave_the_dead_a_seat(patch: pytest.MonkeyPatch) -> None:
    """A replica that has died is given requests."""
    patch.setattr(Ledger, "retire", lambda *_: None)


def let_them_wait_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """What waits for a replica that has died is not given to others."""

    def buggy(self: Ledger, task: Any) -> None:
        if task.seat is not None:
            task.node.seats.give_back(task.seat)
            if task.seat in list(task.node.seats):
                self._seat_waiting(task.node.seats)

    patch.setattr(Ledger, "retire", lambda self, stage, key: self._nodes[stage].seats.remove(key))
    patch.setattr(Ledger, "_free", buggy)


def forget_the_calls_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Utility calls to a replica that has died are not failed."""
    fail = Calls.fail

    def buggy(self: Calls, error: str, key: bytes | None = None) -> None:
        if key is None:
            fail(self, error)

    patch.setattr(Calls, "fail", buggy)


def keep_the_turn(patch: pytest.MonkeyPatch) -> None:
    """Nobody may poll after the death of a replica."""
    patch.setattr(Turns, "resume", lambda _: None)


def go_on_without_any(patch: pytest.MonkeyPatch) -> None:
    """The last replica is taken for one that the others can do without."""
    patch.setattr(Membership, "_others", lambda *_: ["somebody"])


def stop_for_any_death(patch: pytest.MonkeyPatch) -> None:
    """The death of a replica ends the pipeline, though `on_death` is `degrade`."""
    patch.setattr(Membership, "can_do_without", lambda *_: False)


def tell_no_members(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is not told of a replica's death."""
    patch.setattr(Membership, "_tell_members", lambda *_: None)


def hear_out_one_replica(patch: pytest.MonkeyPatch) -> None:
    """Of several replicas that are known to be dead only one is heard out before its requests fail."""
    part_with, hear_out_all = Undertaker._part_with, Undertaker._hear_out_all

    def buggy(self: Undertaker, *about: Any) -> None:
        vars(self)["parts"] = True
        part_with(self, *about)
        vars(self)["parts"] = False

    patch.setattr(Undertaker, "_part_with", buggy)
    patch.setattr(Undertaker, "_hear_out_all", lambda self: vars(self).get("parts") or hear_out_all(self))


def look_once_at_the_close(patch: pytest.MonkeyPatch) -> None:
    """Who dies while the death of a replica is examined, at the close, gets no report."""

    def buggy(self: Undertaker) -> None:
        if self._switchboard.died is None and self._monitor.poll(0):
            self.bury()

    patch.setattr(Undertaker, "bury_rest", buggy)


REPLICA_BUGS = (
    give_a_seat_back_too_soon,
    give_a_full_replica_one_more,
    abort_at_the_first_replica,
    forget_the_session,
    forget_what_the_dead_had,
    fail_all_that_a_stage_has,
    leave_the_dead_a_seat,
    let_them_wait_for_the_dead,
    forget_the_calls_of_the_dead,
    keep_the_turn,
    go_on_without_any,
    stop_for_any_death,
    tell_no_members,
    hear_out_one_replica,
    look_once_at_the_close,
)
