"""The undertaker: from the first sign of a death to its report, and to the end of the other stages."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from supervisor.autopsy import examine
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
        first, *_ = self._monitor.dying
        evidence = self._examine(first, deadline)
        report = self._switchboard.lose(partial(build_report, evidence, collateral_of=None))
        self._reporter.publish(report)
        # Who else has died by now was not asked to either.
        self._monitor.poll(0)
        for proc in self._monitor.dying[1:]:
            self._reporter.publish(build_report(self._examine(proc, deadline), [], first.label))
        self._manager.close()

    def _examine(self, proc: StageProc, deadline: float) -> Evidence:
        said = self._switchboard.last_words.get(proc.label)
        if said is None:
            self._monitor.drain(proc)
            said = self._switchboard.last_words.get(proc.label)
        return examine(proc, said=said, verdict=None, deadline=deadline, stops=self._manager.stops)
