"""The switchboard and its outbox, compared with what they were given, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.codec import Payload, decode
from stage.protocol import End, Out, Refused, from_stage_decoder
from supervisor.outbox import Outbox
from supervisor.switchboard import Switchboard

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim_process import SimulatedProcess
    from sim_watch import Life, Watch

    from supervisor.config import PipelineConfig
    from supervisor.ledger import Task
    from supervisor.monitor import Monitor
    from supervisor.report import StageDeathReport
    from supervisor.seats import Seat


class WatchedOutbox(Outbox):
    """An outbox that notes who has which task, and what was passed on.

    Args:
        router: as `Outbox` has it.
        config: tells how much a replica may have, and who sticks to it.
        watch: knows the requests.
    """

    def __init__(self, router: Any, config: PipelineConfig, watch: Watch) -> None:
        super().__init__(router)
        self.tasks: dict[str, tuple[str, int]] = {}
        """Who was given each engine id, as `stage/replica`, and the request's serial number."""
        self.over: set[str] = set()
        """Engine ids that their replicas are known to be done with."""
        self.passed: set[tuple[str, int, int]] = set()
        self.lost: set[str] = set()
        """Replicas that the others go on without."""
        self._stages = {stage.name: stage for stage in config.stages}
        self._labels = {stage.name: [f"{stage.name}/{i}" for i in range(stage.replicas)] for stage in config.stages}
        self._held: dict[str, set[str]] = {label: set() for labels in self._labels.values() for label in labels}
        self._stuck: dict[tuple[str, str], str] = {}
        self._watch = watch

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        serial, value = read_payload(payload)
        label = seat.key.decode()
        stage = label.partition("/")[0]
        self.tasks[engine_id] = label, serial
        self.passed.add((stage, serial, value))
        self._held[label].add(engine_id)
        self._expect_fit(stage, label, engine_id)
        self._expect_stuck(stage, label, self._watch.lives[serial].session)
        super().add(seat, engine_id, payload)

    def abort(self, seat: Seat, engine_ids: list[str]) -> None:
        label = seat.key.decode()
        for engine_id in engine_ids:
            right = self.tasks[engine_id][0]
            self._watch.world.expect(label == right, f"{label} is to forget {engine_id}, which {right} has")
        self._held[label].difference_update(engine_ids)
        super().abort(seat, engine_ids)

    def done(self, engine_id: str) -> None:
        """Note that a replica is done with a task."""
        self.over.add(engine_id)
        self._held[self.tasks[engine_id][0]].discard(engine_id)

    def holders(self, label: str) -> set[int]:
        """The serial numbers of the requests of which a replica has a part, as far as is known."""
        return {self.tasks[engine_id][1] for engine_id in self._held[label]}

    def has_reason_to_wait(self, task: Task) -> bool:
        """True if a task may wait for a seat: every replica that may have it is full."""
        stage, session = self._stages[task.node.name], task.request.session
        labels = [label for label in self._labels[stage.name] if label not in self.lost]
        full = [len(self._held[label]) == stage.max_in_flight for label in labels]
        if stage.balance != "sticky":
            return all(full)
        stuck = self._stuck.get((stage.name, session))
        return full[labels.index(stuck)] if stuck in labels else any(full)

    def _expect_fit(self, stage: str, label: str, engine_id: str) -> None:
        world, limit = self._watch.world, self._stages[stage].max_in_flight
        world.expect(label not in self.lost, f"{engine_id} is given to {label}, which is dead")
        fits = limit is None or len(self._held[label]) <= limit
        world.expect(fits, f"{label} is given {engine_id}, and has {limit} already")

    def _expect_stuck(self, stage: str, label: str, session: str) -> None:
        if self._stages[stage].balance == "sticky":
            before = self._stuck.get((stage, session), label)
            stays = before == label or before in self.lost
            self._watch.world.expect(stays, f"session {session} moves from {before} to {label}")
            self._stuck[stage, session] = label


class WatchedSwitchboard(Switchboard):
    """A switchboard that is compared with what it was given, message by message."""

    def __init__(self, config: PipelineConfig, outbox: WatchedOutbox, watch: Watch) -> None:
        super().__init__(config, outbox)
        self.read: dict[str, int] = {}
        """Messages read, by `stage/replica`."""
        self.parted: dict[str, StageDeathReport] = {}
        """The deaths that the others go on after, by `stage/replica`."""
        self.monitor: Monitor | None = None
        self.procs: list[SimulatedProcess] = []
        self._stages = {stage.name: stage for stage in config.stages}
        self._watch = watch
        self._passed = outbox
        watch.switchboard = self

    def on_message(self, proc: Any, frames: list[Any]) -> bool:
        self.read[proc.label] = self.read.get(proc.label, 0) + 1
        useful = self._useful(proc, frames)
        fatal = super().on_message(proc, frames)
        for life, value in useful:
            self._expect_used(proc.stage, life, value)
        self._watch.world.expect(self.in_flight <= self._max_in_flight, "more are in flight than may be")
        self._expect_seated()
        return fatal

    def _useful(self, proc: Any, frames: list[Any]) -> list[tuple[Life, int]]:
        """The outputs in a message whose requests can still use them."""
        found: list[tuple[Life, int]] = []
        failed: set[int] = set()
        at = 1
        for message in from_stage_decoder.decode(frames[0].buffer):
            own = [frame.buffer for frame in frames[at : at + getattr(message, "frames", 0)]]
            at += len(own)
            if not isinstance(message, Out | End | Refused):
                continue
            label, serial = self._passed.tasks[message.request_id]
            self._watch.world.expect(label == proc.label, f"{proc.label} speaks of {message.request_id} of {label}")
            if not self._watch.lives[serial].is_alive or serial in failed:
                continue
            if isinstance(message, Refused):
                failed.add(serial)
            if isinstance(message, Out):
                found.append((self._watch.lives[serial], decode(message.body, own)[1]))
            if not isinstance(message, Out) or message.finished:
                self._passed.done(message.request_id)
        self._watch.world.note(proc.label, f"is heard: {len(found)} outputs that count")
        return found

    def _expect_used(self, stage: str, life: Life, value: int) -> None:
        world = self._watch.world
        if stage in self._watch.final:
            got = any(where == stage and result == value for where, _, result in life.results)
            world.expect(got, f"{life.user_id} never gets an output of {stage} that was read")
        for name, inputs, take in self._watch.graph:
            if stage in inputs and take == "each":
                passed = (name, life.serial, value) in self._passed.passed or self._may_wait(name, life, value)
                world.expect(passed, f"an output of {stage} for {life.user_id} never reaches {name}")

    def _may_wait(self, stage: str, life: Life, value: int) -> bool:
        """True if a value of a request waits for a seat of a stage, or did until the request ended."""
        if not life.is_alive:
            return self._stages[stage].max_in_flight is not None
        waiting = [task for task in self._ledger._tasks.values() if task.seat is None and task.node.name == stage]
        return any(read_payload(task.held) == (life.serial, value) for task in waiting if task.held is not None)

    def _expect_seated(self) -> None:
        """See that nothing waits for a seat while one is free."""
        for engine_id, task in self._ledger._tasks.items():
            if task.seat is None:
                reason = self._passed.has_reason_to_wait(task)
                self._watch.world.expect(reason, f"{engine_id} waits for a seat of {task.node.name}, and one is free")

    def lose(self, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        world = self._watch.world
        lost = self._watch.alive()
        self._expect_drained()
        world.expect(self._cannot_go_on(), "the pipeline is ended by deaths that it could do without")
        report = super().lose(report_for)
        world.note("supervisor", report.summary())
        self._expect_lost(report, lost)
        return report

    def retire(self, proc: Any, on_empty: Callable[[], None] | None = None) -> bool:
        self._passed.lost.add(proc.label)
        retired = super().retire(proc, on_empty)
        self._expect_seated()
        return retired

    def lose_replica(self, proc: Any, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        world, label = self._watch.world, proc.label
        world.expect(not proc.is_alive, f"{label} is given up, and lives")
        degrades = proc.role == "stage" and self._stages[proc.stage].on_death == "degrade"
        self._passed.lost.add(label)
        others = [other for other in self.procs if other.stage == proc.stage and other.role == "stage"]
        degrades = degrades and any(other.label not in self._passed.lost for other in others)
        world.expect(degrades, f"the pipeline goes on without {label}, which it must not")
        self._expect_drained()
        serials = self._passed.holders(label)
        alive = self._watch.alive()

        def noted(requests_lost: list[str]) -> StageDeathReport:
            report = self.parted[label] = report_for(requests_lost)
            return report

        report = super().lose_replica(proc, noted)
        world.note("supervisor", f"goes on without {label}: {report.summary()}")
        self._expect_lost(report, [life for life in alive if life.serial in serials])
        failed = [life.user_id for life in alive if life.serial not in serials and not life.is_alive]
        world.expect(not failed, f"{failed} had nothing at {label}, and fail with it")
        self._expect_seated()
        return report

    def _expect_lost(self, report: StageDeathReport, lost: list[Life]) -> None:
        """See that a report names the requests that a death has cost, and they name the report."""
        world, ids = self._watch.world, [life.user_id for life in lost]
        world.expect(report.requests_lost == ids, f"the report names {report.requests_lost} as lost, not {ids}")
        for life in lost:
            request = life.request
            held = request is not None and request.outcome == "failed" and request.report is report
            world.expect(held, f"{life.user_id} was lost, and does not say so")

    def _cannot_go_on(self) -> bool:
        """True if there has been a death that ends the pipeline, as far as anybody can tell by now."""
        if any(proc.is_excused for proc in self.procs):
            return True
        dying: list[Any] = [] if self.monitor is None else self.monitor.dying  # also those that are stuck
        failed = [proc for proc in self.procs if proc.failed or proc in dying]
        new = [proc for proc in failed if proc.label not in self.parted]
        if any(proc.role == "coordinator" or self._stages[proc.stage].on_death == "stop" for proc in new):
            return True
        replicas = [proc for proc in self.procs if proc.role == "stage"]
        return any(all(proc in failed for proc in replicas if proc.stage == stage) for stage in self._stages)

    def not_told(self, label: str, aborted: set[str]) -> list[str]:
        """Requests that have ended, which a replica at rest has neither done nor been told to forget."""
        tasks = self._passed.tasks.items()
        return [
            engine_id
            for engine_id, (where, _) in tasks
            if where == label and engine_id not in aborted and engine_id not in self._passed.over
        ]

    def _expect_drained(self) -> None:
        """See that all that those known to be dead had sent was read before any request fails."""
        dying: list[SimulatedProcess] = [] if self.monitor is None else list(self.monitor.dying)  # type: ignore[arg-type]
        for proc in dying:
            unread = 0 if proc.is_alive else proc.back.left - self.read.get(proc.label, 0)
            left = f"{unread} messages had left {proc.label} before its death, and are not read"
            self._watch.world.expect(not unread, left)

    def _drop(self, proc: Any, reason: str) -> bool:
        self._watch.world.fail(f"a message of {proc.label} is dropped: {reason}")
        return super()._drop(proc, reason)

    def _warn_of_strangers(self, proc: Any) -> None:
        self._watch.world.fail(f"{proc.label} speaks of {self._ledger.strangers}, which nobody gave it")


def read_payload(payload: Payload) -> tuple[int, int]:
    """The serial number of the request, and the value."""
    buffers = [getattr(frame, "buffer", frame) for frame in payload.frames]
    serial, value, *_ = decode(payload.body, buffers)
    return serial, value
