"""A replica's part in the waves of its group: when it steps, so that all step equally often.

While any replica has work, all step: those without work call `dummy_step`. After each round of `ROUND` steps every
replica votes and waits for the verdict, which is the same for all. So within a wave all take the same number of steps,
and an engine whose step is a collective over the group never waits for a partner that does not come.
The idea is that of the data-parallel engines of vLLM, whose replicas agree by a collective of their own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from stage.group_protocol import NeedWave, StartWave, ToReplicas, Verdict, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUND = 32
"""Steps between two votes: so many may be in vain at the end of a wave."""


class _Phase(Enum):
    PAUSED = "paused"
    STEPPING = "stepping"
    VOTING = "voting"


class WaveEngine:
    """An engine as the busy loop of a lockstep replica sees it.

    Args:
        engine: the engine, with a `dummy_step`.
        replica: our number.
        tell: passes a message on to the coordinator.
    """

    def __init__(self, engine: Any, replica: int, tell: Callable[[NeedWave | Vote], object]) -> None:
        self.add = engine.add
        self.abort = engine.abort
        self.utility = engine.utility
        if hasattr(engine, "set_failure_callback"):
            self.set_failure_callback = engine.set_failure_callback
        self.wave = 0
        """The wave that runs, or that will be the next one."""
        self._engine = engine
        self._replica = replica
        self._tell = tell
        self._phase = _Phase.PAUSED
        self._has_asked = False
        self._steps = self._round = 0

    def has_work(self) -> bool:
        """True while a step is due; asks for a wave, once, if there is work and none runs."""
        has_work = self._engine.has_work()  # always asked: its load is noted then, also while we wait for the others
        if has_work and self._phase is _Phase.PAUSED and not self._has_asked:
            self._has_asked = True
            self._tell(NeedWave(self._replica, self.wave))
        return self._phase is _Phase.STEPPING

    def step(self) -> Sequence[Any]:
        """Take a step with the group, and vote if it was the last one of a round."""
        # A list: what a generator does, a collective perhaps, belongs to this step.
        outputs = list(self._engine.step()) if self._engine.has_work() else self._dummy_step()
        self._steps += 1
        if self._steps == ROUND:
            self._phase = _Phase.VOTING
            self._tell(Vote(self._replica, self.wave, self._round, self._engine.has_work()))
        return outputs

    def _dummy_step(self) -> Sequence[Any]:
        self._engine.dummy_step()
        return ()

    def hear(self, message: ToReplicas) -> None:
        """Take a message of the coordinator's; what is about another wave than ours is out of date."""
        if isinstance(message, StartWave) and message.wave == self.wave and self._phase is _Phase.PAUSED:
            self._phase, self._steps, self._round = _Phase.STEPPING, 0, 0
        elif isinstance(message, Verdict) and (message.wave, message.round) == (self.wave, self._round):
            if message.goes_on:
                self._phase, self._steps, self._round = _Phase.STEPPING, 0, self._round + 1
            else:
                self._phase, self._has_asked, self.wave = _Phase.PAUSED, False, self.wave + 1
