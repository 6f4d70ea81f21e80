"""The coordinator's account of its group: the barrier, the loads on a clock, who belongs to it, the waves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage.group import LOADS_EVERY_S, Group
from stage.group_protocol import (
    GroupReady,
    Load,
    Loads,
    Members,
    NeedWave,
    StartWave,
    Verdict,
    Vote,
    WaveEnded,
    WaveStarted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MOMENT = 1e-9
"""What adding up times may lose."""


class Told:
    """A group, what it has published and told, and a clock by which it is asked as its coordinator asks it."""

    def __init__(self, replicas: Iterable[int]) -> None:
        self.published: list[Any] = []
        self.told: list[Any] = []
        self.loads: list[tuple[float, dict[int, tuple[int, int]]]] = []
        """When loads were told, and which."""
        self.now = 5.0
        self.group = Group(replicas, self.published.append, self.tell)

    def tell(self, message: Any) -> None:
        if isinstance(message, Loads):
            self.loads.append((self.now, message.loads))
        else:
            self.told.append(message)

    def hear(self, message: Any) -> None:
        """Let a message come now."""
        self.group.hear(message)
        self.group.tell_loads(self.now)

    def rest(self, duration_s: float) -> None:
        """Let time pass, in which nothing comes."""
        until = self.now + duration_s
        while (wait_s := self.group.wait_s(self.now)) is not None and self.now + wait_s <= until:
            self.now += wait_s
            self.group.tell_loads(self.now)
        self.now = until


def readies(told: Told) -> int:
    return sum(isinstance(message, GroupReady) for message in told.published)


def test_barrier() -> None:
    """The group opens with the last subscription of its beginning; who subscribes later hears it at once."""
    told = Told(range(3))
    for expected in (0, 0, 1, 2):
        told.group.subscribed()
        assert (readies(told), told.group.is_open) == (expected, expected > 0)


@given(st.integers(1, 5), st.lists(st.sampled_from(["subscribe", "load", "wave"]), max_size=30))
def test_barrier_in_any_order(size: int, events: list[str]) -> None:
    """Nothing but as many subscriptions as replicas opens the group, and from then on each is answered."""
    told = Told(range(size))
    subscriptions = 0
    for number, event in enumerate(events):
        if event == "subscribe":
            subscriptions += 1
            told.group.subscribed()
        else:
            told.hear(Load(number % size, number, 0) if event == "load" else NeedWave(number % size, 0))
        told.rest(0.04)
        assert readies(told) == max(0, subscriptions - size + 1)
        assert told.group.is_open == (subscriptions >= size)


def test_barrier_does_not_move_with_the_members() -> None:
    """A group that is open stays open when it grows, and a newcomer hears it at once."""
    told = Told([0, 1])
    told.group.subscribed()
    told.group.subscribed()
    told.group.set_members(range(5))
    assert told.group.is_open
    told.group.subscribed()
    assert told.published[-1] == GroupReady()


def test_loads_at_once_after_a_rest() -> None:
    """A change is told at once if the last time was long enough ago, else when it was."""
    told = Told([0, 1])
    told.hear(Load(0, 1, 0))
    told.rest(0.03)
    told.hear(Load(0, 0, 1))
    told.hear(Load(1, 1, 0))
    told.rest(1.0)
    told.hear(Load(0, 0, 0))
    assert [loads for _, loads in told.loads] == [
        {0: (1, 0), 1: (0, 0)},
        {0: (0, 1), 1: (1, 0)},
        {0: (0, 0), 1: (1, 0)},
    ]
    assert [at for at, _ in told.loads] == pytest.approx([5.0, 5.0 + LOADS_EVERY_S, 6.03])


def test_no_loads_while_nothing_changes() -> None:
    """Neither time nor the same load again makes the group say anything, and there is nothing to wait for."""
    told = Told([0, 1])
    told.hear(Load(0, 0, 0))
    assert told.group.wait_s(told.now) is None
    told.rest(10)
    told.hear(Load(1, 2, 3))
    told.rest(10)
    for _ in range(5):
        told.hear(Load(1, 2, 3))
        told.rest(10)
    assert told.loads == [(15.0, {0: (0, 0), 1: (2, 3)})]


LOADS = st.builds(Load, st.integers(0, 5), st.integers(0, 2), st.integers(0, 2))
LEAVERS = st.integers(0, 3)
WAITS_MS = st.sampled_from([0, 0, 1, 40, 99, 100, 101, 250])


@given(st.lists(st.tuples(WAITS_MS, st.one_of(LOADS, LOADS, LOADS, LEAVERS)), max_size=60))
def test_loads_at_any_time(history: list[tuple[int, Load | int]]) -> None:
    """Each change is told as soon as `LOADS_EVERY_S` allow, at no other time, and the last state is told."""
    told = Told(range(4))
    true = dict.fromkeys(range(6), (0, 0))
    changes: list[float] = []
    for wait_ms, event in history:
        told.rest(wait_ms / 1000)
        if isinstance(event, int):  # one leaves, and two have joined, who may have told of their loads before
            true.pop(event, None)
            told.group.set_members(true)
            continue
        load = (event.waiting, event.running)
        if true.get(event.replica, load) != load:
            true[event.replica] = load
            changes.append(told.now)
        told.hear(event)
    told.rest(LOADS_EVERY_S)
    assert told.group.wait_s(told.now) is None
    _see_times([at for at, _ in told.loads], changes)
    last = told.loads[-1][1] if told.loads else {}
    assert {replica: last.get(replica, (0, 0)) for replica in true} == true


def _see_times(times: list[float], changes: list[float]) -> None:
    """Each change is told when it comes, or `LOADS_EVERY_S` after the last time, unless that is still to come."""
    expected: list[float] = []
    for change in changes:
        if not expected:
            expected.append(change)
        elif change > expected[-1] - MOMENT:
            expected.append(max(change, expected[-1] + LOADS_EVERY_S))
    assert times == pytest.approx(expected, abs=MOMENT)


def test_members() -> None:
    """Who has gone is not listened to, and its load is forgotten; who comes has none; the replicas are told."""
    told = Told([0, 1])
    for replica in (0, 1):
        told.hear(Load(replica, 0, 7))
    told.rest(1)
    told.group.set_members([2, 1])
    assert told.published == [Members([1, 2])]
    told.hear(Load(0, 1, 1))
    told.rest(1)
    assert len(told.loads) == 2
    told.hear(Load(2, 1, 0))
    assert told.loads[-1][1] == {1: (0, 7), 2: (1, 0)}


def test_newcomer_may_be_early() -> None:
    """The load of a replica that joins is told, also if it comes before the word that it belongs to the group."""
    told = Told([0, 1])
    told.hear(Load(2, 3, 0))
    told.group.set_members([0, 1, 2])
    told.rest(1)
    told.hear(Load(1, 0, 1))
    assert told.loads[-1][1] == {0: (0, 0), 1: (0, 1), 2: (3, 0)}


def test_gone_replica_has_no_say_in_waves() -> None:
    """What a replica says that has gone neither starts a wave nor counts as a vote."""
    told = Told([0, 1, 2])
    told.group.set_members([0, 1])
    told.published.clear()
    told.hear(NeedWave(2, 0))
    assert told.published == []
    told.hear(NeedWave(0, 0))
    told.hear(Vote(2, 0, 0, has_work=True))
    told.hear(Vote(0, 0, 0, has_work=False))
    assert told.published == [StartWave(0)]
    told.hear(Vote(1, 0, 0, has_work=False))
    assert told.published[1:] == [Verdict(0, 0, goes_on=False)]


def test_wave() -> None:
    """A wave starts once, however many need it, goes on while any has work, and ends for all."""
    told = Told([0, 1])
    told.hear(NeedWave(1, 0))
    told.hear(NeedWave(0, 0))
    for round_, has_work in enumerate([True, False]):
        told.hear(Vote(0, 0, round_, has_work=has_work))
        told.hear(Vote(1, 0, round_, has_work=False))
    assert told.published == [StartWave(0), Verdict(0, 0, goes_on=True), Verdict(0, 1, goes_on=False)]
    assert told.told == [WaveStarted(0), WaveEnded(0)]
    assert (told.group.wave, told.group.is_running) == (1, False)


@pytest.mark.parametrize("wave", [0, 2])
def test_wave_of_another_number_is_not_started(wave: int) -> None:
    """Who asks for a wave that has been was served by it, and nobody can know of one that is not next."""
    told = Told([0])
    told.hear(NeedWave(0, 0))
    told.hear(Vote(0, 0, 0, has_work=False))
    told.published.clear()
    told.hear(NeedWave(0, wave))
    assert told.published == []
    told.hear(NeedWave(0, 1))
    assert told.published == [StartWave(1)]


@pytest.mark.parametrize("other", [Vote(1, 0, 1, True), Vote(1, 1, 0, True), Vote(0, 0, 0, False)])
def test_vote_of_another_round_does_not_count(other: Vote) -> None:
    """A vote of another round or wave, and one that is cast again, is not the vote that is missing."""
    told = Told([0, 1])
    told.hear(Vote(0, 0, 0, has_work=True))  # before the wave has begun
    told.hear(NeedWave(0, 0))
    told.hear(Vote(0, 0, 0, has_work=False))
    told.hear(other)
    assert told.published == [StartWave(0)]
    told.hear(Vote(1, 0, 0, has_work=False))
    assert told.published[1:] == [Verdict(0, 0, goes_on=False)]
