"""Who belongs to a stage of several replicas: who joins, who leaves, and whom the others can do without.

All of it is done by the thread that polls, or by the one that handles deaths, so nothing here happens at once with
anything else here. Others wait for `news`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervisor.autopsy import has_failed
from supervisor.lifecycle import State
from supervisor.log import log
from supervisor.teardown import warn_of_bad_end
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.handshakes import Handshakes
    from supervisor.manager import StageProcManager
    from supervisor.monitor import Monitor
    from supervisor.report import StageDeathReport
    from supervisor.stage_proc import StageProc
    from supervisor.switchboard import Switchboard

_MEET_S = 1.0
"""How much later than READY the first word of a replica on the other socket may come: it was sent before."""


class News(Waitable):
    """Changes whenever a replica joins, is asked to leave or leaves, or fails to, and when all is over."""

    def __init__(self) -> None:
        self.tokens = ()


class Membership:
    """Let replicas join and leave.

    Args:
        manager: owns the processes.
        monitor: polls them.
        switchboard: gives them requests.
        handshakes: answers those that start.
    """

    def __init__(
        self, manager: StageProcManager, monitor: Monitor, switchboard: Switchboard, handshakes: Handshakes
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._switchboard = switchboard
        self._handshakes = handshakes
        self._stages = {stage.name: stage for stage in manager.config.stages}
        self._joining: set[StageProc] = set()
        self.failures: dict[StageProc, StageDeathReport] = {}
        """Those that died before they had joined; who has asked for them takes them out."""
        self.news = News()
        switchboard.dependents.append(self.news)

    def living(self, stage: str) -> list[StageProc]:
        """The replicas of a stage that take requests."""
        procs = [proc for proc in self._manager.procs if proc.stage == stage and proc.role == "stage"]
        return [proc for proc in procs if self._switchboard.takes_requests(proc) and proc not in self._monitor.dying]

    def expect(self, proc: StageProc) -> None:
        """Let a process join its stage as soon as it is READY; called before it may say so."""
        self._switchboard.expect(proc)
        self._handshakes.expect(proc)
        self._joining.add(proc)

    def is_joining(self, proc: StageProc) -> bool:
        """True if a process has not joined yet, but may."""
        return proc in self._joining

    def hear(self, identity: bytes, content: bytes) -> None:
        """Take a message of the handshake socket."""
        failure = self._handshakes.answer(identity, content)
        if failure is not None:
            self._monitor.notice(failure[0])
        for proc in [proc for proc in tuple(self._joining) if proc.state is State.READY]:
            self._join(proc)

    def retire(self, procs: Iterable[StageProc]) -> list[StageProc]:
        """Let replicas finish what they have, and end; return those that do, which the last one of a stage does not."""
        return [proc for proc in procs if self._others(proc, []) and self._retire(proc)]

    def can_do_without(self, dying: list[StageProc]) -> bool:
        """True if each of those who are dying is one that its stage goes on without."""
        return all(proc in self._joining or self._may_lose(proc, dying) for proc in dying)

    def lost(self, proc: StageProc, report: StageDeathReport) -> None:
        """Take note of a death that the others go on after."""
        if proc in self._joining:
            self.failures[proc] = report  # first: it is looked at once the process is not joining any more
            self._joining.discard(proc)
        else:
            self._tell_members(proc.stage)
            log.info("replica_left", stage=proc.stage, replica=proc.replica, pid=proc.pid)
        self.tell_news()

    def _join(self, proc: StageProc) -> None:
        if not self._switchboard.welcome(proc, _MEET_S):
            self._monitor.accuse(proc, f"it was READY, but has not connected for its input within {_MEET_S:g} s")
            return
        self._joining.discard(proc)
        self._tell_members(proc.stage)
        log.info("replica_joined", stage=proc.stage, replica=proc.replica, pid=proc.pid)
        self.tell_news()

    def _retire(self, proc: StageProc) -> bool:
        # Not at once: it may be called under the switchboard's lock.
        ask = partial(self._monitor.soon, partial(self._ask_to_end, proc))
        return self._switchboard.retire(proc, ask)

    def _ask_to_end(self, proc: StageProc) -> None:
        """Ask a replica to end, so that its end is no death."""
        if proc.has_left:
            return  # it has died, and the undertaker has been quicker
        if proc in self._monitor.dying or proc.wait_end(0):
            self._monitor.notice(proc)
        else:
            proc.terminate()
            self._monitor.forget(proc, on_end=partial(self._part_with, proc))
            self.tell_news()

    def _part_with(self, proc: StageProc) -> None:
        """Let go of a replica that has ended since we asked it to."""
        proc.wait_end(0)
        if proc.exit_code:
            warn_of_bad_end(proc)
        self._switchboard.forget(proc)
        self._manager.part_with(proc)
        self._tell_members(proc.stage)
        log.info("replica_left", stage=proc.stage, replica=proc.replica, pid=proc.pid)
        self.tell_news()

    def _may_lose(self, proc: StageProc, dying: list[StageProc]) -> bool:
        stage = self._stages[proc.stage]
        degrades = proc.role == "stage" and stage.on_death == "degrade" and not stage.lockstep
        return degrades and bool(self._others(proc, dying))

    def _others(self, proc: StageProc, dying: list[StageProc]) -> list[StageProc]:
        """Who else takes the requests of a stage, as far as is known."""
        return [
            other
            for other in self.living(proc.stage)
            if other is not proc and other not in dying and not has_failed(other)
        ]

    def _tell_members(self, stage: str) -> None:
        """Tell a stage's coordinator which replicas there are."""
        self._switchboard.tell_members(stage, [proc.replica for proc in self.living(stage) if proc.replica is not None])

    def tell_news(self) -> None:
        """Let who waits look again."""
        with self._switchboard.lock:
            self.news.wake()
