"""The undertaker: from the first sign of a death to its report, and to the end of the other stages."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from supervisor.autopsy import convict, examine, has_failed
from supervisor.teardown import ECHO_S, SETTLE_S, is_excused

if TYPE_CHECKING:
    from supervisor.manager import StageProcManager
    from supervisor.membership import Membership
    from supervisor.monitor import Monitor
    from supervisor.report import Evidence
    from supervisor.reporter import Reporter
    from supervisor.stage_proc import StageProc
    from supervisor.switchboard import Switchboard


class Undertaker:
    """Handle the deaths that the monitor has noticed, on a thread that may wait.

    Args:
        manager: owns the processes.
        monitor: polled by nobody else any more.
        switchboard: whose requests are lost.
        reporter: publishes each report.
        membership: knows whom the others can do without.
    """

    def __init__(
        self,
        manager: StageProcManager,
        monitor: Monitor,
        switchboard: Switchboard,
        reporter: Reporter,
        membership: Membership,
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._switchboard = switchboard
        self._reporter = reporter
        self._membership = membership
        self._heard: list[StageProc] = []
        self._parted: list[StageProc] = []
        self._lingering: list[StageProc] = []

    def bury(self) -> bool:
        """Report each death, the first one as the cause of the others; then stop what is left.

        False if nothing was stopped: only replicas have died that the others of their stages can do without.
        """
        deadline = time.monotonic() + self._manager.config.shutdown_timeout_s
        excused = self._excuse()
        dying = [proc for proc in self._monitor.dying if proc not in excused and not proc.asked_to_stop]
        if not dying:
            # Whoever has asked is about to close; nobody waits for it.
            self._switchboard.close("the pipeline was asked to stop")
            return True
        if not excused and self._membership.can_do_without(dying):
            for lost in dying:
                self._let_end_or_part_with(lost, deadline)
            return False
        self._part_with_lingering(deadline)
        # One that the others can do without may die beside the one that ends everything, and is not its cause.
        needed = [proc for proc in self._manager.procs if proc not in self._parted and self._is_needed(proc)]
        first = _first_of([proc for proc in dying if proc in needed] or dying, needed)
        evidence = self._examine(first, deadline)
        self._hear_out_all()
        report = self._switchboard.lose(partial(self._reporter.build, evidence, collateral_of=None))
        self._reporter.publish(report)
        reported = [first, *excused, *self._parted]
        while (proc := self._next_failed(reported)) is not None:
            reported.append(proc)
            self._reporter.publish(self._reporter.build(self._examine(proc, deadline), [], first.label))
        self._manager.close()
        return True

    def bury_rest(self) -> None:
        """Report, at the close, the deaths that nobody has been told of yet; others may come while one is examined."""
        self._part_with_lingering(time.monotonic() + self._manager.config.shutdown_timeout_s)
        while self._switchboard.died is None and self._monitor.poll(0) and not self.bury():
            pass

    def _is_needed(self, proc: StageProc) -> bool:
        return not self._membership.can_do_without([proc])

    def _let_end_or_part_with(self, proc: StageProc, deadline: float) -> None:
        """Go on without a replica; with its report, if it has ended."""
        if proc in self._lingering or self._monitor.finding(proc) is not None or proc.wait_end(0):
            self._part_with(proc, deadline)
        else:
            # Its engine may take its time to shut down, and the others are not to wait for that.
            self._lingering.append(proc)
            self._switchboard.retire(proc)
            self._monitor.let_end(proc, deadline)

    def _part_with_lingering(self, deadline: float) -> None:
        """Report those that are still about to end: what comes now is no work of theirs."""
        if self._lingering:
            self._manager.ask_to_end([*self._monitor.dying, *self._lingering], deadline)
        for proc in list(self._lingering):
            self._part_with(proc, deadline)

    def _part_with(self, proc: StageProc, deadline: float) -> None:
        """Report the death of a replica, and go on without it."""
        evidence = self._gather(proc, deadline)
        self._hear_out_all()
        report = self._switchboard.lose_replica(proc, partial(self._reporter.build, evidence, collateral_of=None))
        self._monitor.forget(proc)
        self._parted.append(proc)
        self._lingering = [other for other in self._lingering if other is not proc]
        self._manager.part_with(proc)
        self._reporter.publish(report)
        self._membership.lost(proc, report)

    def _excuse(self) -> list[StageProc]:
        """Those who have ended as we are asked to end too."""
        excused = []
        until = time.monotonic() + ECHO_S
        for proc in self._monitor.dying:
            if is_excused(proc, self._manager.stops, until):
                excused.append(proc)
                self._monitor.poll(0)  # reads the request to stop; who has ended meanwhile comes behind
        return excused

    def _next_failed(self, reported: list[StageProc]) -> StageProc | None:
        """Somebody who has failed without being asked to end; an examination takes time, so ask again after each."""
        self._monitor.poll(0)
        others = [proc for proc in self._manager.procs if proc not in reported and not proc.asked_to_stop]
        return next((proc for proc in others if proc in self._monitor.dying or has_failed(proc)), None)

    def _examine(self, proc: StageProc, deadline: float) -> Evidence:
        if not proc.wait_end(SETTLE_S):
            self._monitor.poll(0)
            self._manager.ask_to_end(self._monitor.dying, deadline)
        return self._gather(proc, deadline)

    def _gather(self, proc: StageProc, deadline: float) -> Evidence:
        # What has died, or failed, in a long call did not hang: nobody has looked at it meanwhile.
        if (finding := self._monitor.finding(proc)) is not None and not has_failed(proc):
            return convict(proc, "hung" if proc.was_ready else "startup_timeout", finding)
        return examine(proc, self._hear_out(proc), deadline, self._manager.stops)

    def _hear_out_all(self) -> None:
        """Read what those who are dying have sent: it is for requests that are about to fail."""
        for proc in self._monitor.dying:
            if self._monitor.finding(proc) is None:
                self._hear_out(proc)

    def _hear_out(self, proc: StageProc) -> str | None:
        """Read all that a process has sent, up to its `fatal`, if it said one; the error text of that."""
        words = self._switchboard.last_words
        if proc.label not in words and proc not in self._heard:
            self._heard.append(proc)  # once: the end of a connection is told once, a second drain would wait for it
            # Its group first: a fork of it holds the connection open, whose end ends the draining.
            proc.wait_end(0)
            self._monitor.drain(proc)
        return words.get(proc.label)


def _first_of(dying: list[StageProc], procs: list[StageProc]) -> StageProc:
    """Who failed first: when a `fatal` was read tells nothing, and an earlier one may not have come yet."""
    failed_at = {proc: proc.read_box().error_at for proc in (*procs, *dying)}
    if not all(failed_at[proc] for proc in dying):
        return dying[0]
    return min((proc for proc in failed_at if failed_at[proc]), key=failed_at.__getitem__)
