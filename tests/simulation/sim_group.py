"""A lockstep group in a world where one seed decides what happens next: its start, its waves, and what is told of it.

Real code: `Group`, `WaveEngine`, `LoadMeter` and `MeteredEngine`. Simulated: the channels between them, which keep the
order of their messages and nothing else, the clock, and an engine whose step is a collective: it ends only when every
replica has begun it.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stage.engine import Output
from stage.group import LOADS_EVERY_S, Group
from stage.group_protocol import GroupReady, Load, Loads, ToCoordinator, ToReplicas, WaveEnded, WaveStarted
from stage.replica import LoadMeter, MeteredEngine
from stage.waves import ROUND, WaveEngine

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 20_000
"""Events of a history, at most; one that takes more goes round in circles."""


class CollectiveEngine:
    """Each request takes so many steps."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.done: list[str] = []
        self.in_vain = 0

    @property
    def in_hand(self) -> int:
        return len(self.left)

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


class Replica:
    """One replica: its real parts, and what is on its way to it and from it.

    Args:
        number: its number.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.to_group: deque[ToCoordinator] = deque()
        self.from_group: deque[ToReplicas] = deque()
        self.requests: deque[tuple[str, int]] = deque()
        self.engine = CollectiveEngine()
        self.meter = LoadMeter(number)
        self.owes = False
        """Somebody has woken the thread that tells of the load."""
        self.waves = WaveEngine(MeteredEngine(self.engine, self.meter, self.emit), number, self.to_group.append)
        self.listens = self.is_up = False
        self.begun = 0
        self.in_step = False
        self.steps: list[int] = []
        """The wave in which each step was taken."""

    def emit(self, emit: tuple[str]) -> None:
        assert emit == ("load",)
        self.owes = True

    def receive(self, request: tuple[str, int]) -> None:
        self.requests.append(request)
        self.meter.received += 1
        if self.meter.owe():
            self.owes = True

    def tell(self) -> None:
        self.owes = False
        if (load := self.meter.news()) is not None:
            self.to_group.append(load)

    def add(self) -> None:
        self.waves.add(*self.requests.popleft())

    def begin_step(self) -> None:
        self.begun += 1
        self.in_step = True

    def end_step(self) -> None:
        self.in_step = False
        self.steps.append(self.waves.wave)
        self.waves.step()

    @property
    def load(self) -> tuple[int, int]:
        """What it has, as far as its busy loop has looked."""
        return self.meter.received - self.meter.added, self.meter.running


class History:
    """A group, and the requests that arrive at it.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (no secret)
        self.replicas = [Replica(number) for number in range(self.random.randint(1, 4))]
        self.now = 0.0
        self.told: list[Any] = []
        self.told_at = -LOADS_EVERY_S
        self.told_loads = self.heard_loads = {replica.number: (0, 0) for replica in self.replicas}
        """What the supervisor was told last, and what the coordinator has heard by now."""
        self.has_changed = False
        self.group = Group(range(len(self.replicas)), self.publish, self.tell)
        self.arrivals = deque(f"r{number}" for number in range(self.random.randint(1, 12)))
        self.arrived = list(self.arrivals)
        self.rate = self.random.choice([0.5, 0.02, 0.002])
        """How likely one arrives rather than that something else happens."""
        self.pace_s = self.random.choice([0.0001, 0.003, 0.05])

    def publish(self, message: ToReplicas) -> None:
        for replica in self.replicas:
            if replica.listens:
                replica.from_group.append(message)

    def tell(self, message: Any) -> None:
        if not isinstance(message, Loads):
            self.told.append(message)
            return
        assert self.has_changed, "loads were told though nothing had changed"
        assert self.now - self.told_at > LOADS_EVERY_S - 1e-9, "loads were told too often"
        assert message.loads == self.heard_loads
        self.told_at, self.told_loads, self.has_changed = self.now, message.loads, False

    def run(self) -> None:
        for _ in range(LONGEST):
            self.now += self.random.random() * self.pace_s
            events = self.possible()
            is_up = all(replica.is_up for replica in self.replicas)
            if self.arrivals and is_up and (not events or self.random.random() < self.rate):
                self.arrive()
            elif events:
                self.random.choice(events)()
            else:
                break
            if self.random.random() < 0.01:
                self.come_to_rest()
        else:
            raise DeadlockError("it never comes to rest")
        self.judge()

    def possible(self) -> list[Callable[[], object]]:
        """What can happen now, but for an arrival."""
        events: list[Callable[[], object]] = []
        slowest = min(replica.begun for replica in self.replicas)
        for replica in self.replicas:
            if not replica.listens:
                events.append(partial(self.subscribe, replica))
            elif replica.in_step:
                if slowest >= replica.begun:
                    events.append(replica.end_step)
            elif replica.from_group:
                events.append(partial(self.reach_replica, replica))
            elif replica.requests:
                events.append(replica.add)
            elif replica.waves.has_work():
                events.append(replica.begin_step)
        return events + self.possible_tales()

    def possible_tales(self) -> list[Callable[[], object]]:
        """What of it is only telling, after whether there is work may just have been told."""
        tales: list[Callable[[], object]] = [replica.tell for replica in self.replicas if replica.owes]
        tales += [partial(self.reach_group, replica) for replica in self.replicas if replica.to_group]
        if self.group.wait_s(self.now) is not None:
            tales.append(self.wait)
        return tales

    def arrive(self) -> None:
        steps = self.random.choice([1, 2, ROUND - 1, ROUND, ROUND + 1, 3 * ROUND])
        self.random.choice(self.replicas).receive((self.arrivals.popleft(), steps))

    def subscribe(self, replica: Replica) -> None:
        replica.listens = True
        self.group.subscribed()

    def reach_group(self, replica: Replica) -> None:
        message = replica.to_group.popleft()
        if isinstance(message, Load):
            load = (message.waiting, message.running)
            self.has_changed |= self.heard_loads[message.replica] != load
            self.heard_loads = {**self.heard_loads, message.replica: load}
        self.group.hear(message)
        self.group.tell_loads(self.now)

    def reach_replica(self, replica: Replica) -> None:
        message = replica.from_group.popleft()
        if replica.is_up:
            replica.waves.hear(message)
        elif isinstance(message, GroupReady):
            assert all(other.listens for other in self.replicas), "ready before every replica listens"
            replica.is_up = True

    def wait(self) -> None:
        """Nothing comes for the coordinator until it has something to do by the clock."""
        self.now += self.group.wait_s(self.now) or 0.0
        self.group.tell_loads(self.now)

    def come_to_rest(self) -> None:
        """Let every busy loop take what lies ready, and all be told, while no step begins or ends."""
        for replica in self.replicas:
            while replica.from_group and not replica.in_step and replica.listens:
                self.reach_replica(replica)
            while replica.requests and not replica.in_step:
                replica.add()
            if not replica.in_step:
                replica.waves.has_work()
        while tales := self.possible_tales():
            self.random.choice(tales)()
        assert self.told_loads == {replica.number: replica.load for replica in self.replicas}, "a load was not told"

    def judge(self) -> None:
        done = sorted(request_id for replica in self.replicas for request_id in replica.engine.done)
        if any(replica.in_step for replica in self.replicas) or done != sorted(self.arrived):
            raise DeadlockError(f"done: {done}, of {self.arrived}")
        steps = self.replicas[0].steps
        assert all(replica.steps == steps for replica in self.replicas), "some have stepped more often in a wave"
        assert not self.group.is_running
        waves = [message.wave for message in self.told if isinstance(message, WaveStarted)]
        assert waves == list(range(len(waves)))
        assert [message.wave for message in self.told if isinstance(message, WaveEnded)] == waves
        assert {replica.waves.wave for replica in self.replicas} == {len(waves)}
        # A wave is no longer than its work: at most one round was taken by nobody but in vain.
        assert len(steps) % ROUND == 0
        assert set(self.told_loads.values()) == {(0, 0)}
