"""The undertaker: from the first sign of a death to its report, and to the end of the other stages."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from supervisor.autopsy import convict, examine, has_failed
from supervisor.report import build_report

if TYPE_CHECKING:
    from supervisor.manager import StageProcManager
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
    """

    def __init__(
        self, manager: StageProcManager, monitor: Monitor, switchboard: Switchboard, reporter: Reporter
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._switchboard = switchboard
        self._reporter = reporter

    def bury(self) -> None:
        """Report each death, the first one as the cause of the others; then stop what is left."""
        deadline = time.monotonic() + self._manager.config.shutdown_timeout_s
        first = _first_of(self._monitor.dying)
        evidence = self._examine(first, deadline)
        report = self._switchboard.lose(partial(build_report, evidence, collateral_of=None))
        self._reporter.publish(report)
        # Who else has died by now was not asked to either.
        self._monitor.poll(0)
        for proc in self._manager.procs:
            if proc is not first and (proc in self._monitor.dying or has_failed(proc)):
                self._reporter.publish(build_report(self._examine(proc, deadline), [], first.label))
        self._manager.close()

    def _examine(self, proc: StageProc, deadline: float) -> Evidence:
        if (finding := self._monitor.finding(proc)) is not None:
            return convict(proc, "hung", finding)
        said = self._switchboard.last_words.get(proc.label)
        if said is None:
            self._monitor.drain(proc)
            said = self._switchboard.last_words.get(proc.label)
        return examine(proc, said, deadline, self._manager.stops)


def _first_of(dying: list[StageProc]) -> StageProc:
    """Who failed first: of several that were noticed at once, the order in which they are polled tells nothing."""
    failed_at = [proc.read_box().error_at for proc in dying]
    return dying[failed_at.index(min(failed_at))] if all(failed_at) else dying[0]
