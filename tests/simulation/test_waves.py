"""The waves of a lockstep group in every order of events: all replicas step equally often, and nobody waits for ever.

Real code: `Group` and `WaveEngine`. Simulated: the channels between them, which keep the order of their messages and
nothing else, and an engine whose step is a collective: it ends only when every replica has begun it.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stage import waves as waves_module
from stage.engine import Output
from stage.group import Group
from stage.group_protocol import NeedWave, StartWave, ToReplicas, Verdict, Vote, WaveEnded, WaveStarted
from stage.waves import ROUND, WaveEngine

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORIES = 2000
LONGEST = 20_000
"""Events of a history, at most; one that takes more goes round in circles."""


class CollectiveEngine:
    """Each request takes so many steps."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.done: list[str] = []
        self.in_vain = 0

    def add(self, request_id: str, steps: int) -> None:
        self.left[request_id] = steps

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.left.pop(request_id, None)

    def utility(self, name: str, args: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def has_work(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Output]:
        self.left = {request_id: left - 1 for request_id, left in self.left.items()}
        ended = [request_id for request_id, left in self.left.items() if left == 0]
        for request_id in ended:
            del self.left[request_id]
        self.done += ended
        return [Output(request_id, None, finished=True) for request_id in ended]

    def dummy_step(self) -> None:
        self.in_vain += 1


class DeadlockError(Exception):
    """Nothing can happen any more, and not everything is done."""


class History:
    """A group, and the requests that arrive at it.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (no secret)
        self.size = self.random.randint(1, 4)
        replicas = range(self.size)
        self.to_group: list[deque[NeedWave | Vote]] = [deque() for _ in replicas]
        self.to_replica: list[deque[ToReplicas]] = [deque() for _ in replicas]
        self.told: list[Any] = []
        self.group = Group(replicas, self.publish, self.told.append)
        self.engines = [CollectiveEngine() for _ in replicas]
        self.waves = [
            WaveEngine(engine, replica, self.to_group[replica].append) for replica, engine in enumerate(self.engines)
        ]
        self.begun = [0] * self.size
        self.in_step = [False] * self.size
        self.steps_of: list[list[int]] = [[] for _ in replicas]
        """For each replica, the wave in which each of its steps was taken."""
        self.arrivals = deque(f"r{number}" for number in range(self.random.randint(1, 12)))
        self.arrived = list(self.arrivals)
        self.rate = self.random.choice([0.5, 0.02, 0.002])
        """How likely one arrives rather than that something else happens."""

    def publish(self, message: ToReplicas) -> None:
        for inbox in self.to_replica:
            inbox.append(message)

    def run(self) -> None:
        for _ in range(self.size):
            self.group.subscribed()
        for _ in range(LONGEST):
            events = self.possible()
            if self.arrivals and (not events or self.random.random() < self.rate):
                self.arrive()
            elif events:
                self.random.choice(events)()
            else:
                break
        else:
            raise DeadlockError("it never comes to rest")
        self.judge()

    def possible(self) -> list[Callable[[], object]]:
        """What can happen now, but for an arrival."""
        events: list[Callable[[], object]] = []
        for replica in range(self.size):
            if self.in_step[replica]:
                if min(self.begun) >= self.begun[replica]:
                    events.append(partial(self.end_step, replica))
            elif self.to_replica[replica]:
                events.append(partial(self.reach_replica, replica))
            elif self.waves[replica].has_work():
                events.append(partial(self.begin_step, replica))
            if self.to_group[replica]:  # last: whether there is work may just have been told
                events.append(partial(self.reach_group, replica))
        return events

    def arrive(self) -> None:
        engine = self.random.choice(self.engines)
        engine.add(self.arrivals.popleft(), self.random.choice([1, 2, ROUND - 1, ROUND, ROUND + 1, 3 * ROUND]))

    def reach_group(self, replica: int) -> None:
        self.group.hear(self.to_group[replica].popleft())

    def reach_replica(self, replica: int) -> None:
        self.waves[replica].hear(self.to_replica[replica].popleft())

    def begin_step(self, replica: int) -> None:
        self.begun[replica] += 1
        self.in_step[replica] = True

    def end_step(self, replica: int) -> None:
        self.in_step[replica] = False
        self.steps_of[replica].append(self.waves[replica].wave)
        self.waves[replica].step()

    def judge(self) -> None:
        done = sorted(request_id for engine in self.engines for request_id in engine.done)
        if any(self.in_step) or done != sorted(self.arrived):
            raise DeadlockError(f"done: {done}, in a step: {self.in_step}")
        assert all(steps == self.steps_of[0] for steps in self.steps_of), "some have stepped more often in a wave"
        assert not self.group.is_running
        waves = [message.wave for message in self.told if isinstance(message, WaveStarted)]
        assert waves == list(range(len(waves)))
        assert [message.wave for message in self.told if isinstance(message, WaveEnded)] == waves
        assert {wave.wave for wave in self.waves} == {len(waves)}
        # A wave is no longer than its work: at most one round was taken by nobody but in vain.
        assert len(self.steps_of[0]) % ROUND == 0


def test_histories() -> None:
    """In every order of events all requests end, with equally many steps everywhere, and the group comes to rest."""
    live_through_all()


def live_through_all() -> None:
    """Live through every history, and name the first one that goes wrong."""
    for seed in range(HISTORIES):
        try:
            History(seed).run()
        except (AssertionError, DeadlockError) as exc:
            pytest.fail(f"seed {seed}: {exc!r}")


def ask_never_again(patch: pytest.MonkeyPatch) -> None:
    """A replica that has asked for a wave once never asks again."""
    hear = WaveEngine.hear

    def hear_and_forget(self: WaveEngine, message: ToReplicas) -> None:
        asked = self._has_asked
        hear(self, message)
        self._has_asked = self._has_asked or asked

    patch.setattr(WaveEngine, "hear", hear_and_forget)


def exclude_the_sender(patch: pytest.MonkeyPatch) -> None:
    """The replica that asks for a wave is taken to step already."""
    step_at_once = WaveEngine.has_work

    def has_work(self: WaveEngine) -> bool:
        due = step_at_once(self)
        if not due and self._has_asked and self._phase is waves_module._Phase.PAUSED:
            self._phase = waves_module._Phase.STEPPING
            return True
        return due

    patch.setattr(WaveEngine, "has_work", has_work)


def end_for_the_idle(patch: pytest.MonkeyPatch) -> None:
    """A replica without work does not wait for the verdict: it takes the wave for ended."""
    step = WaveEngine.step

    def step_and_leave(self: WaveEngine) -> Any:
        outputs = step(self)
        if self._phase is waves_module._Phase.VOTING and not self._engine.has_work():
            self.hear(Verdict(self.wave, self._round, goes_on=False))
        return outputs

    patch.setattr(WaveEngine, "step", step_and_leave)


def forget_who_needs_a_wave(patch: pytest.MonkeyPatch) -> None:
    """The coordinator starts the first wave only."""
    start = Group._start_wave
    patch.setattr(Group, "_start_wave", lambda self, wave: None if wave else start(self, wave))


def start_whatever_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The coordinator starts a wave also for a request that an earlier wave has served."""

    def start(self: Group, _wave: int) -> None:
        if not self.is_running:
            self.is_running, self._round = True, 0
            self._publish(StartWave(self.wave))

    patch.setattr(Group, "_start_wave", start)


BUGS = [
    ask_never_again,
    exclude_the_sender,
    end_for_the_idle,
    forget_who_needs_a_wave,
    start_whatever_is_asked_for,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these bugs shows in some history."""
    bug(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        live_through_all()
