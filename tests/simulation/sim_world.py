"""The simulated world: one seeded scheduler, one clock, and the list of what happened.

Nothing here runs by itself. Code that would wait calls `wait`, and while it waits the scheduler lets other things
happen, one at a time, in an order that the seed alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 150e-6
"""The longest time that one event takes: many a message falls into a burst, and no drain comes near its 50 ms."""

MAX_EVENTS = 3000
MISSES = 5


class BrokenPromiseError(AssertionError):
    """The history shows something that the product promises never to do."""


class Pause(BaseException):
    """Raised where real code would block, so that it can be called again later; nothing has been taken by then."""


@dataclass(slots=True)
class Actor:
    """Something that can make things happen.

    Args:
        name: what the trace calls it.
        can_act: True if something could happen now.
        act: makes it happen.
    """

    name: str
    can_act: Callable[[], bool]
    act: Callable[[], object]


class World:
    """Decide what happens next.

    Args:
        seed: decides everything.
        tells_all: the trace names each event, not only those with a meaning of their own.
    """

    def __init__(self, seed: int, *, tells_all: bool = False) -> None:
        self.rng = Random(seed)  # noqa: S311 (repeatable, not secret)
        self.now = 1000.0
        self.events = 0
        self.trace: list[tuple[float, str, str]] = []
        self.broken: BrokenPromiseError | None = None
        self.on_standstill: Callable[[], bool] = bool
        """Called when nothing can happen and somebody waits without a deadline; False if it has nothing to add."""
        self._tells_all = tells_all
        self._attention = self.rng.choice((0.6, 0.6, 0.2))
        """How soon who waits notices: one that is slow finds more at once."""
        self._actors: list[Actor] = []
        self._lots: list[Actor] = []
        self._alarms: list[tuple[int, Callable[[], object]]] = []

    def add(self, name: str, can_act: Callable[[], bool], act: Callable[[], object]) -> None:
        """Add an actor, more or less eager than the others in this history."""
        actor, random = Actor(name, can_act, act), self.rng.random
        self._actors.insert(int(random() * (len(self._actors) + 1)), actor)
        self._lots += [actor] * (1, 3, 3, 9)[int(random() * 4)]

    def at_event(self, number: int, act: Callable[[], object]) -> None:
        """Let `act` happen right before event `number`, if there are so many."""
        self._alarms.append((number, act))
        self._alarms.sort(key=lambda alarm: -alarm[0])

    def note(self, who: str, what: str) -> None:
        """Write into the trace."""
        self.trace.append((self.now, who, what))

    def fail(self, text: str) -> None:
        """Tell of a broken promise; the first one counts, also if the product catches the exception."""
        self.broken = self.broken or BrokenPromiseError(text)
        raise self.broken

    def expect(self, holds: object, text: str) -> None:
        """Fail with `text` unless it holds."""
        if not holds:
            self.fail(text)

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.rng.random() < probability

    def wait(self, ready: Callable[[], object], until: float | None) -> bool:
        """Let things happen until `ready()` and somebody notices; False if the clock shows `until` before."""
        while not (ready() and self.chance(self._attention)):
            if until is not None and self.now >= until:
                return bool(ready())
            if not self.step():
                if ready():
                    return True
                if until is not None:
                    self.now = until
                elif not self.on_standstill():
                    self.fail("nothing can happen any more, and somebody waits")
        return True

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        self._ring_alarms()
        actor = self._pick()
        if actor is None:
            return False
        self.events += 1
        self.now += self.rng.random() * TICK_S
        self.expect(self.events < MAX_EVENTS, "the history goes on for ever")
        if self._tells_all:
            self.note(actor.name, f"({self.events})")
        actor.act()
        if self.broken is not None:
            raise self.broken
        return True

    def _ring_alarms(self) -> None:
        while self._alarms and self._alarms[-1][0] <= self.events:
            self._alarms.pop()[1]()

    def _pick(self) -> Actor | None:
        lots, random = self._lots, self.rng.random
        for _ in range(MISSES):
            actor = lots[int(random() * len(lots))]
            if actor.can_act():
                return actor
        # Few can: take the next one from anywhere on.
        start = int(random() * len(self._actors))
        for actor in chain(islice(self._actors, start, None), islice(self._actors, start)):
            if actor.can_act():
                return actor
        return None

    def story(self) -> str:
        """The trace as text."""
        return "\n".join(f"{(at - 1000) * 1000:9.3f} ms  {who:<15}{what}" for at, who, what in self.trace)
