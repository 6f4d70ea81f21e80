"""One life of the soak's pipeline: started, loaded, struck in one way at one moment, and looked at afterwards.

Its plan comes from the seed and the number of the life, so a life can be lived again.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from soak_clients import ANSWER_S, Account, Client, send, settle
from soak_plan import ENDS, GROUP, REQUESTS, SIGNALS
from soak_scaling import ScaleCall, check_call, scale_at_ease

from supervisor import Pipeline, StageDiedError, StartupError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from soak_log import Log
    from soak_plan import Plan

    from supervisor import PipelineConfig

CLIENTS = 3


class Life:
    """Live once.

    Args:
        config: of the soak's pipeline.
        plan: how this life goes.
        rng: of this life.
        log: its events so far are forgotten.
        wait: waits so many seconds, and returns True at once if the user has asked to stop.
    """

    def __init__(
        self, config: PipelineConfig, plan: Plan, rng: random.Random, log: Log, wait: Callable[[float], bool]
    ) -> None:
        self.account = Account()
        self._plan = plan
        self._config, self._rng, self._log, self._wait = config, rng, log, wait
        self._struck: set[int] = set()
        """Who may be the one that dies: several, if a poisoned request goes to one of a group."""
        self._striker: threading.Timer | None = None

    def run(self) -> None:
        """Start, load, strike, and see that all is as promised."""
        self._log.forget()
        self._log.on_spawn = self._aim if self._plan.moment == "starting" or self._plan.hits_newcomer else None
        pipeline = Pipeline(self._config)
        try:
            pipeline.start()
        except StartupError as error:
            if self._plan.moment != "starting":
                self._note(f"did not start: {error}")
        else:
            self._load(pipeline)
        finally:
            self._log.on_spawn = None
            self._join_striker()
        self._check_reports()

    def _load(self, pipeline: Pipeline) -> None:
        """Keep clients busy until the end of the pipeline, and wait until all have settled."""
        clients = [
            Client(pipeline, random.Random(self._rng.random()), f"client-{number}")  # noqa: S311
            for number in range(CLIENTS)
        ]
        try:
            self._live(pipeline)
        finally:
            pipeline.close()
            for client in clients:
                client.ended()
                self.account += client.account
        self._check_cost(pipeline)

    def _live(self, pipeline: Pipeline) -> None:
        plan, call = self._plan, None
        if plan.moment != "starting" and self._wait(plan.delay_s):
            return
        if plan.moment == "scaling":
            call = ScaleCall(pipeline, plan.scale_to)
            if not plan.hits_newcomer:  # that one is struck so long after it was spawned
                self._wait(plan.scaling_s)
        if plan.action is None:
            pipeline.close()
        elif plan.moment != "starting" and not plan.hits_newcomer:
            self._strike(pipeline, plan.action)
        if call is not None:
            check_call(call, self._struck, self.account)
        self._join_striker()
        if plan.action is not None and (not self._struck or self._await_end()) and self._goes_on(pipeline):
            for replicas in plan.then:
                if not self._wait(0):
                    scale_at_ease(pipeline, replicas, self.account, self._wait)

    def _strike(self, pipeline: Pipeline, action: str) -> None:
        victim = self._plan.victim
        pids = {info.replica: info.pid for info in pipeline.processes if info.name == victim.stage}
        if action in SIGNALS:
            # Who has left already cannot be struck any more.
            if victim.replica in pids:
                self._signal(pids[victim.replica], SIGNALS[action])
            return
        with suppress(StageDiedError):  # then somebody else has killed it, and there is a report too many
            poison = send(pipeline, {"trail": [], "pieces": 1, REQUESTS[action]: victim.stage}, self.account)
            self.account.counts["deaths"] += 1
            settle(poison, self.account)
            # Now, since a newcomer may have been given it.
            self._struck = {*pids.values(), *(info.pid for info in pipeline.stages if info.name == victim.stage)}

    def _aim(self, event: dict[str, Any]) -> None:
        """Strike a process that has just been spawned, in a moment."""
        plan = self._plan
        if (event["stage"], event.get("replica")) == plan.victim and plan.action is not None:
            delay_s = plan.delay_s if plan.moment == "starting" else plan.scaling_s
            self._striker = threading.Timer(delay_s, self._signal, (event["pid"], SIGNALS[plan.action]))
            self._striker.start()

    def _join_striker(self) -> None:
        if self._striker is not None:
            self._striker.join()

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        self._struck.add(pid)
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            self._struck.discard(pid)
        else:
            # One that leaves may have been asked to end before: then there is no death.
            self.account.counts["deaths"] += not self._plan.hits_leaving

    def _await_end(self) -> bool:
        """Wait until the victim has died, or has left if it was about to; False if neither has come."""
        log = self._log
        if log.wait(lambda: bool(log.reports or (self._plan.hits_leaving and self._struck & log.left)), ANSWER_S):
            self.account.counts["deaths"] += self._plan.hits_leaving and len(log.reports)
            return True
        if self._plan.hits_leaving:
            self._note("the victim was about to leave, and has neither left nor died")
        return False

    def _goes_on(self, pipeline: Pipeline) -> bool:
        """True if the pipeline has survived; see that it has done so if it had to."""
        survived, plan = pipeline.died is None, self._plan
        newcomer = bool(self._struck - self._log.joined) and plan.hits_newcomer
        if newcomer or not self._log.reports:
            right = survived
        elif not plan.hits_replica or plan.on_death == "stop":
            right = not survived
        else:
            # The last one that takes requests cannot be done without.
            right = survived or (plan.moment == "scaling" and plan.scale_to == 1 and not plan.hits_leaving)
        if not right:
            self._note(f"the pipeline {'goes on' if survived else 'has ended'}, and must not")
        self.account.counts["survived"] += survived and bool(self._log.reports)
        return survived

    def _check_reports(self) -> None:
        """There is one report for a death, of the process that was struck, with its end and its cause."""
        reports, plan, counts = self._log.reports, self._plan, self.account.counts
        counts["reports"] += len(reports)
        for report in reports:
            cause, exit_code = ENDS.get(plan.action or "", (None, None))
            right = report["pid"] in self._struck and report["role"] == self._role
            # What a SIGTERM makes of a process that is only just starting is another matter.
            if plan.action != "SIGTERM" or not (plan.moment == "starting" or plan.hits_newcomer):
                right = right and (report["cause"], report.get("exit_code")) == (cause, exit_code)
            if not right:
                counts["wrong reports"] += 1
                self._note(f"victims {self._struck}, but the report says {report}")
        if len(reports) != counts["deaths"]:
            self._note(f"{counts['deaths']} deaths, but {len(reports)} reports")

    def _check_cost(self, pipeline: Pipeline) -> None:
        """Each report names just those requests that have failed because of its death."""
        for report in pipeline.deaths:
            if sorted(report.requests_lost) != sorted(self.account.cost.get(report.pid, [])):
                self.account.counts["wrong reports"] += 1
                self._note(f"{report.summary()}: it names {report.requests_lost}, not {self.account.cost}")
        if pipeline.in_flight:
            self._note(f"{pipeline.in_flight} requests are still under way")
        strangers = self.account.cost.keys() - {report.pid for report in pipeline.deaths}
        if strangers:
            self._note(f"requests failed by the deaths of {strangers}, which have no reports")

    @property
    def _role(self) -> str:
        return "coordinator" if self._plan.victim == (GROUP, None) else "stage"

    def _note(self, note: str) -> None:
        self.account.notes.append(note)
