"""One life of the soak's pipeline: started, loaded, killed in one way at one moment, and looked at afterwards.

Which way and which moment comes from the seed and the number of the life, so a life can be lived again.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from soak_clients import ANSWER_S, STAGES, Client, send, settle

from supervisor import Pipeline, StageDiedError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor import PipelineConfig

CLIENTS = 3
LONGEST_S = 1.0
STARTING_S = 0.15

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


class Plan(NamedTuple):
    """How a life ends: `action` is a key of `ENDS`, or None for a pipeline that is closed under load."""

    action: str | None
    stage: str
    starting: bool
    delay_s: float


class Log(logging.Handler):
    """The supervisor's log events: its reports, and faults of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.on_spawn: Callable[[dict[str, Any]], None] | None = None
        self.died = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] = getattr(record, "event_dict", {})
        if event.get("event") == "stage_died":
            self.reports.append(event)
            self.died.set()
        elif event.get("event") == "stage_spawned" and self.on_spawn is not None:
            self.on_spawn(event)
        elif record.levelno >= logging.ERROR:
            self.faults.append(record.getMessage())


class Life:
    """Live once.

    Args:
        config: of the soak's pipeline.
        rng: of this life.
        log: its events so far are forgotten.
        wait: waits so many seconds, and returns True at once if the user has asked to stop.
    """

    def __init__(self, config: PipelineConfig, rng: random.Random, log: Log, wait: Callable[[float], bool]) -> None:
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.plan = _make_plan(rng)
        self._config, self._rng, self._log, self._wait = config, rng, log, wait
        self._victim: int | None = None
        self._killer: threading.Timer | None = None
        self._seen_reports = len(log.reports)

    def run(self) -> None:
        """Start, load, kill, and see that all is as promised."""
        self._log.died.clear()
        self._log.on_spawn = self._aim if self.plan.starting else None
        pipeline = Pipeline(self._config)
        try:
            pipeline.start()
        except StartupError as error:
            if not self.plan.starting:
                self.notes.append(f"did not start: {error}")
        else:
            self._load(pipeline)
        finally:
            self._log.on_spawn = None
            if self._killer is not None:
                self._killer.join()
        self._check_reports()

    def _load(self, pipeline: Pipeline) -> None:
        """Keep clients busy until the end of the pipeline, and wait until all have settled."""
        clients = [
            Client(pipeline, random.Random(self._rng.random()), f"client-{number}")  # noqa: S311
            for number in range(CLIENTS)
        ]
        try:
            self._end(pipeline)
        finally:
            pipeline.close()
            for client in clients:
                client.ended()
                self.counts += client.counts
                self.notes += client.notes

    def _end(self, pipeline: Pipeline) -> None:
        plan = self.plan
        if not plan.starting:
            if self._wait(plan.delay_s) or plan.action is None:
                return
            self._kill(pipeline, plan.action)
        if self._log.died.wait(ANSWER_S) and pipeline.died is None:
            self.notes.append("a report was logged, but pipeline.died is None")

    def _kill(self, pipeline: Pipeline, action: str) -> None:
        pid = next(stage.pid for stage in pipeline.stages if stage.name == self.plan.stage)
        if action in SIGNALS:
            self._signal(pid, SIGNALS[action])
            return
        with suppress(StageDiedError):  # then somebody else has killed it, and there is a report too many
            poison = send(pipeline, {"trail": [], "pieces": 1, REQUESTS[action]: self.plan.stage}, self.counts)
            self._victim = pid
            self.counts["deaths"] += 1
            settle(poison, self.counts, self.notes)

    def _aim(self, event: dict[str, Any]) -> None:
        """Kill a stage that has just been spawned, in a moment."""
        if event["stage"] == self.plan.stage and self.plan.action is not None:
            args = (event["pid"], SIGNALS[self.plan.action])
            self._killer = threading.Timer(self.plan.delay_s, self._signal, args)
            self._killer.start()

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
            self._victim = pid
            self.counts["deaths"] += 1

    def _check_reports(self) -> None:
        """There is one report for a death, of the process that was killed, with its end and its cause."""
        reports = self._log.reports[self._seen_reports :]
        self.counts["reports"] += len(reports)
        for report in reports:
            cause, exit_code = ENDS.get(self.plan.action or "", (None, None))
            right = report["pid"] == self._victim
            # What a SIGTERM makes of a stage that is only just starting is another matter.
            if not self.plan.starting or self.plan.action != "SIGTERM":
                right = right and (report["cause"], report.get("exit_code")) == (cause, exit_code)
            if not right:
                self.counts["wrong reports"] += 1
                self.notes.append(f"victim {self._victim}, but the report says {report}")
        if len(reports) != self.counts["deaths"]:
            self.notes.append(f"{self.counts['deaths']} deaths, but {len(reports)} reports")


def _make_plan(rng: random.Random) -> Plan:
    stage = rng.choice(STAGES)
    kind = rng.random()
    if kind < 0.1:
        return Plan(None, stage, starting=False, delay_s=rng.random() * LONGEST_S)
    if kind < 0.3:
        return Plan(rng.choice(sorted(SIGNALS)), stage, starting=True, delay_s=rng.random() * STARTING_S)
    return Plan(rng.choice(sorted(ENDS)), stage, starting=False, delay_s=rng.random() * LONGEST_S)
