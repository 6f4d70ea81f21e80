"""The plan of one life of the soak: who is struck, how, and at which moment. It comes from the seed alone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import random

STAGES = ("split", "each", "last")
"""Of the soak's pipeline: `each` takes every piece of `split`, and `last` the last one."""

GROUP = "each"
"""The stage with replicas."""

REPLICAS = 2
ON_DEATH = ("stop", "degrade")
LONGEST_S = 1.0
STARTING_S = 0.15
GROWING_S = 0.4
SHRINKING_S = 0.03

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSEGV": signal.SIGSEGV}
REQUESTS = {"exit": "exit_at", "raise": "raise_at"}
ENDS = {
    "SIGKILL": ("signal", -9),
    "SIGTERM": ("exit", 0),
    "SIGSEGV": ("signal", -11),
    "exit": ("exit", 7),
    "raise": ("fatal", 1),
}
"""The cause and the exit code that a report must name."""


class Victim(NamedTuple):
    """A process: `replica` is None for the coordinator. A request that is poisoned meets any replica of its stage."""

    stage: str
    replica: int | None


class Plan(NamedTuple):
    """How a life goes.

    Args:
        on_death: of the stage with replicas.
        moment: of the end, or of what the stage with replicas may survive.
        delay_s: how long after the start, or, while it starts, after the victim was spawned.
        action: a key of `ENDS`, or None for a pipeline that is closed under load.
        victim: who is struck.
        scale_to: how many replicas the stage is about to have when its time comes, if the moment is `scaling`.
        scaling_s: how long it has been at that, or since a newcomer was spawned.
        then: how many it has afterwards, one after the other, if the pipeline goes on.
    """

    on_death: str
    moment: Literal["starting", "running", "scaling"]
    delay_s: float
    action: str | None
    victim: Victim
    scale_to: int = REPLICAS
    scaling_s: float = 0.0
    then: tuple[int, ...] = ()

    @property
    def hits_replica(self) -> bool:
        """True if the victim is a replica of a group."""
        return self.victim.stage == GROUP and self.victim.replica is not None

    @property
    def hits_newcomer(self) -> bool:
        """True if the victim is yet to be spawned when the load begins, and is struck by a signal."""
        return self.action in SIGNALS and self.hits_replica and (self.victim.replica or 0) >= REPLICAS

    @property
    def hits_leaving(self) -> bool:
        """True if the victim is asked to end, or about to be: then its death need not be one."""
        leaves = self.moment == "scaling" and (self.victim.replica or 0) >= self.scale_to
        return self.action in SIGNALS and self.hits_replica and leaves


def make_plan(rng: random.Random) -> Plan:
    """Make a plan."""
    on_death = rng.choice(ON_DEATH)
    kind = rng.random()
    then = rng.choice(((2,), (2,), (2, 3, 1)))
    delay_s = rng.random() * LONGEST_S
    if kind < 0.1:
        return Plan(on_death, "running", delay_s, None, _victim(rng, None))
    if kind < 0.25:
        action = rng.choice(sorted(SIGNALS))
        return Plan(on_death, "starting", rng.random() * STARTING_S, action, _victim(rng, action), then=then)
    if kind < 0.6:
        action = rng.choice(sorted(ENDS))
        return Plan(on_death, "running", delay_s, action, _victim(rng, action), then=then)
    scale_to = rng.choice((1, 3, 4))
    scaling_s = rng.random() * (SHRINKING_S if scale_to < REPLICAS else GROWING_S)
    last_action = rng.choice((*sorted(ENDS), None))
    victim = _victim(rng, last_action, max(scale_to, REPLICAS))
    return Plan(on_death, "scaling", delay_s, last_action, victim, scale_to, scaling_s, then)


def _victim(rng: random.Random, action: str | None, replicas: int = REPLICAS) -> Victim:
    """Half of the time somebody of the group, and its coordinator only if it can be struck in this way."""
    if rng.random() < 0.5:
        return Victim(rng.choice(STAGES), 0)
    numbers: list[int | None] = [*range(replicas)]
    return Victim(GROUP, rng.choice([*numbers, None] if action in SIGNALS else numbers))
