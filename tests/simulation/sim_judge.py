"""What must hold when a pipeline is at rest, and at the end of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_process import SimulatedCoordinator
from sim_stage import SimulatedStage

from stage.names import label_of

if TYPE_CHECKING:
    from sim_process import SimulatedProcess
    from sim_supervisor import Supervisor
    from sim_watch import Watch

    from supervisor.report import StageDeathReport


class Judge:
    """Compare what the supervisor says with what has happened.

    Args:
        watch: knows the requests and calls.
        supervisor: who is judged.
        procs: its processes.
    """

    def __init__(self, watch: Watch, supervisor: Supervisor, procs: list[SimulatedProcess]) -> None:
        self._world = watch.world
        self._watch = watch
        self._supervisor = supervisor
        self._switchboard = supervisor.switchboard
        self._procs = {proc.label: proc for proc in procs}

    def expect_at_rest(self) -> None:
        """See that no request waits, though nothing happens any more, and that no replica works for nobody."""
        world = self._world
        waiting = [life.user_id for life in self._watch.alive()]
        world.expect(not waiting, f"nothing happens any more, and {waiting} wait")
        for proc in self._procs.values():
            if isinstance(proc, SimulatedStage) and proc.is_alive:
                world.expect(not proc.engine.requests, f"{proc.label} still holds {list(proc.engine.requests)}")
                not_told = self._switchboard.not_told(proc.label, proc.engine.aborted)
                world.expect(not not_told, f"{proc.label} was never told to forget {not_told}")
            if isinstance(proc, SimulatedCoordinator):
                replicas = [other.replica for other in self._replicas_of(proc.stage) if other.is_alive]
                world.expect(proc.members == replicas, f"{proc.label} knows of {proc.members}, not {replicas}")
        for watch in self._switchboard.outbox.watches.values():
            told = f"{watch.proc.label} was sent {watch.sent} messages, and is said to have handled others"
            world.expect(watch.proc.is_released or watch.proc.read_box().handled == watch.sent, told)
        self._watch.expect_answers()

    def expect_all_over(self) -> None:
        """See that nothing is left of any request or call."""
        world, ledger = self._world, self._switchboard._ledger
        for life in self._watch.lives:
            if life.request is not None:
                world.expect(life.ends == 1, f"{life.user_id} has {life.ends} outcomes")
        left = [*ledger.requests, *ledger._tasks, *self._switchboard._calls._waiting]
        world.expect(not left, f"the supervisor still holds {left}")
        taken = {seat.key: seat.in_flight for node in ledger._nodes.values() for seat in node.seats if seat.in_flight}
        world.expect(not taken, f"seats are taken that nobody sits on: {taken}")
        accepted = [life for life in self._watch.lives if life.request is not None]
        world.expect(self._switchboard.done == len(accepted), "the requests that are done are miscounted")
        self._watch.expect_answers()

    def expect_reports(self) -> None:
        """See that each death has one report; all but the first one that ends the pipeline are laid to that."""
        world, reports = self._world, self._supervisor.reporter.reports
        labels = [label_of(report.stage, report.replica) for report in reports]
        excused = {proc.label for proc in self._procs.values() if proc.is_excused}
        owed = set(self._supervisor.manager.owed) - excused
        world.expect(not excused & set(labels), f"excused and reported: {excused & set(labels)}")
        in_order = {proc.label for proc in self._procs.values() if proc.got_signal and proc.status == 0}
        world.expect(excused <= in_order, f"excused without reason: {excused - in_order}")
        world.expect(len(set(labels)) == len(labels), f"reported twice: {labels}")
        world.expect(owed <= set(labels), f"died without a report: {owed - set(labels)}")
        parted = list(self._switchboard.parted)
        world.expect(labels[: len(parted)] == parted, f"{parted} died alone, and the reports are of {labels}")
        world.expect(self._supervisor.manager.parted == parted, f"{parted} died alone, and are not let go of once each")
        ending, causes = reports[len(parted) :], labels[len(parted) :]
        blamed = [report.collateral_of for report in reports]
        right = [None] * len(parted) + [None, *causes[:1] * len(causes)][: len(causes)]
        world.expect(blamed == right, f"{labels} are laid to {blamed}")
        world.expect(self._supervisor.reporter.deaths == reports, "some reports are made, and not published in order")
        world.expect(self._switchboard.died is (ending[0] if ending else None), "`died` is another report")
        for report, label in zip(reports, labels, strict=True):
            self._expect_right(report, self._procs[label])

    def _expect_right(self, report: StageDeathReport, proc: SimulatedProcess) -> None:
        world, label = self._world, proc.label
        world.expect(proc.failed, f"{label} is reported, and was asked to end")
        world.expect(report.exit_code == proc.status, f"{label} ended with {proc.status}: {report}")
        recorded = None if proc.error is None else proc.error.cause
        cause = recorded or ("signal" if (proc.status or 0) < 0 else "exit")
        cause = "hung" if proc.was_convicted else cause
        world.expect(report.cause == cause, f"{label} died of {cause}, and the report says {report.cause}")
        world.expect(report.role == proc.role, f"{label} is reported as a {report.role}")

    def _replicas_of(self, stage: str) -> list[SimulatedProcess]:
        return [proc for proc in self._procs.values() if proc.stage == stage and proc.role == "stage"]
