"""The coordinator's account of its group (pure): the barrier at the start, the loads, the waves.

It does no IO and takes the time as an argument. What it has to say goes out through two functions: `publish` reaches
every replica, `tell` the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage.group_protocol import (
    GroupReady,
    Load,
    Loads,
    Members,
    NeedWave,
    StartWave,
    ToCoordinator,
    ToReplicas,
    ToSupervisor,
    Verdict,
    Vote,
    WaveEnded,
    WaveStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOADS_EVERY_S = 0.1
"""How often the supervisor hears of loads that change, at most."""


class Group:
    """Coordinate the replicas of a stage.

    Args:
        replicas: the numbers of those that the group begins with.
        publish: sends a message to every replica that listens.
        tell: sends a message to the supervisor.
    """

    def __init__(
        self,
        replicas: Iterable[int],
        publish: Callable[[ToReplicas], object],
        tell: Callable[[ToSupervisor], object],
    ) -> None:
        self.replicas = set(replicas)
        self.is_open = False
        """Every replica that the group began with listens."""
        self.wave = 0
        """The wave that runs, or that will be the next one."""
        self.is_running = False
        self._publish = publish
        self._tell = tell
        self._listeners = 0
        self._left: set[int] = set()
        self._loads = dict.fromkeys(sorted(self.replicas), (0, 0))
        self._loads_changed = False
        self._loads_due = 0.0
        self._round = 0
        self._votes: dict[int, bool] = {}

    def subscribed(self) -> None:
        """Somebody listens from now on: the last one of the start opens the group, a later one may begin at once."""
        self._listeners += 1
        self.is_open = self.is_open or self._listeners >= len(self.replicas)
        if self.is_open:
            self._publish(GroupReady())

    def hear(self, message: ToCoordinator) -> None:
        """Take a message from a replica; one that is no member any more is not listened to.

        The load of a newcomer may come before the supervisor's word that it belongs to us.
        """
        if isinstance(message, Load):
            self._take_load(message)
        elif message.replica not in self.replicas:
            return
        elif isinstance(message, NeedWave):
            self._start_wave(message.wave)
        else:
            self._count(message)

    def set_members(self, replicas: Iterable[int]) -> None:
        """Take the supervisor's word on who belongs to the group, and pass it on; who has left never comes back."""
        members = set(replicas)
        self._left |= self.replicas - members
        self.replicas = members
        known = sorted(members | self._loads.keys() - self._left)
        self._loads = {replica: self._loads.get(replica, (0, 0)) for replica in known}
        self._publish(Members(sorted(self.replicas)))

    def wait_s(self, now: float) -> float | None:
        """Seconds until `tell_loads` has something to do, or None if nothing has changed."""
        return max(0.0, self._loads_due - now) if self._loads_changed else None

    def tell_loads(self, now: float) -> None:
        """Tell the supervisor of the loads, if they have changed and it is time."""
        if self._loads_changed and now >= self._loads_due:
            self._loads_changed = False
            self._loads_due = now + LOADS_EVERY_S
            self._tell(Loads(dict(self._loads)))

    def _take_load(self, load: Load) -> None:
        counts = (load.waiting, load.running)
        if load.replica not in self._left and self._loads.get(load.replica, (0, 0)) != counts:
            self._loads[load.replica] = counts
            self._loads_changed = True

    def _start_wave(self, wave: int) -> None:
        """Start the wave that somebody needs; if it runs, or has been, it has served who asked."""
        if self.is_running or wave != self.wave:
            return
        self.is_running, self._round = True, 0
        self._publish(StartWave(wave))
        self._tell(WaveStarted(wave))

    def _count(self, vote: Vote) -> None:
        if not self.is_running or (vote.wave, vote.round) != (self.wave, self._round):
            return
        self._votes[vote.replica] = vote.has_work
        if len(self._votes) < len(self.replicas):
            return
        goes_on = any(self._votes.values())
        self._votes.clear()
        self._publish(Verdict(self.wave, self._round, goes_on))
        if goes_on:
            self._round += 1
        else:
            self.is_running = False
            self._tell(WaveEnded(self.wave))
            self.wave += 1
