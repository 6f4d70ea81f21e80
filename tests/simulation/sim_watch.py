"""Watches the real parts of the supervisor from close by, and fails at the moment a promise is broken.

Every request has a `Life`: an account of its own, made from what its user can see, never from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim_engine import Graph, answer_of, data_of, model_of

from stage.codec import Payload, decode
from stage.protocol import End, Out, Refused, from_stage_decoder
from supervisor.calls import Call
from supervisor.handle import Handle, open_payload
from supervisor.outbox import Outbox
from supervisor.switchboard import Switchboard

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim_stage import SimulatedStage
    from sim_world import World

    from supervisor.config import PipelineConfig
    from supervisor.ledger import Request
    from supervisor.monitor import Monitor
    from supervisor.report import StageDeathReport
    from supervisor.seats import Seat


@dataclass(eq=False)
class Life:
    """One request, as its user sees it.

    Args:
        serial: its number; travels in its data.
        user_id: its id, which later requests may have as well.
        value: what it asks for.
        request: the ledger's side of it, once it has been accepted.
        may_abort: somebody has asked for its end.
        results: stage, part and value of each result.
        ends: how often it was told its outcome.
    """

    serial: int
    user_id: str
    value: int
    request: Request | None = None
    may_abort: bool = False
    results: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    ends: int = 0

    @property
    def is_alive(self) -> bool:
        """True from its acceptance to its outcome."""
        return self.request is not None and not self.ends


class Watch:
    """All lives and calls of a history."""

    def __init__(self, world: World, graph: Graph) -> None:
        self.world = world
        self.graph = graph
        self.final = {name for name, _, _ in graph if not any(name in inputs for _, inputs, _ in graph)}
        self.lives: list[Life] = []
        self.calls: list[tuple[Call, str, str, int]] = []
        """Each with the stage, the name and the argument."""
        self.ending = False
        """Somebody ends the pipeline: any request may be aborted from now on."""
        self.switchboard: WatchedSwitchboard | None = None

    def begin(self, user_id: str, value: int) -> Life:
        """Make an account of a request that is about to be submitted."""
        life = Life(len(self.lives), user_id, value)
        self.lives.append(life)
        return life

    def alive(self) -> list[Life]:
        """Requests under way, the oldest first."""
        return [life for life in self.lives if life.is_alive]

    def delivered(self, life: Life, stage: str, part: list[int], payload: Payload) -> None:
        """See a result come."""
        world, name = self.world, life.user_id
        serial, value, *filler = open_payload(payload)
        world.note(name, f"gets {stage}{part}")
        world.expect(not life.ends, f"{name} gets a result after its outcome")
        world.expect(serial == life.serial, f"{name} gets a result of another request")
        world.expect([serial, value, *filler] == data_of(serial, value), f"{name} gets the frames of another result")
        right = model_of(self.graph, life.value).results.get(value)
        world.expect((stage, tuple(part)) == right, f"{name} gets {stage}{part}, where it must be {right}")
        world.expect((stage, tuple(part), value) not in life.results, f"{name} gets {stage}{part} twice")
        life.results.append((stage, tuple(part), value))

    def ended(self, life: Life, request: Request) -> None:
        """See an outcome come."""
        world, name, outcome = self.world, life.user_id, request.outcome
        world.note(name, f"is {outcome} {request.error or ''}")
        life.ends += 1
        world.expect(life.ends == 1, f"{name} has a second outcome, {outcome}")
        may_abort = life.may_abort or self.ending
        world.expect(outcome != "aborted" or may_abort, f"{name} is aborted, though nobody asked for it")
        if outcome == "finished":
            world.expect(self._is_complete(life), f"{name} has finished without some of its results")
        if outcome == "failed":
            self._failed(life, request)

    def _is_complete(self, life: Life) -> bool:
        model = model_of(self.graph, life.value)
        return not model.spoilt and len(life.results) == len(model.results)

    def _failed(self, life: Life, request: Request) -> None:
        switchboard = self.switchboard
        died = None if switchboard is None else switchboard.died
        refused = request.report is None
        self.world.expect(
            request.report is died if not refused else model_of(self.graph, life.value).spoilt,
            f"{life.user_id} fails without a reason that its user could find: {request.error}",
        )

    def expect_answers(self) -> None:
        """See that every call was answered, by the right answer or by an error."""
        for call, stage, name, argument in self.calls:
            if name == "forgotten":
                continue
            what = f"utility {name!r} of {stage}"
            self.world.expect(call.answered(), f"{what} is never answered")
            if call.answer is not None:
                self.world.expect(call.error is None, f"{what} has an answer and an error")
                right = name == "echo" and open_payload(call.answer) == answer_of(stage, argument)
                self.world.expect(right, f"{what} has a wrong answer")


class WatchedCall(Call):
    """A call that notes when its answer changes."""

    world: World

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {"answer", "error"} and value is not None:
            answered = getattr(self, "answer", None) is not None or getattr(self, "error", None) is not None
            self.world.expect(not answered, "a utility call is answered twice")
        super().__setattr__(name, value)


class WatchedHandle(Handle):
    """A handle that tells of what it gets."""

    __slots__ = ("life", "witness")

    def __init__(self, life: Life, watch: Watch, *args: Any) -> None:
        super().__init__(life.user_id, *args)
        self.life = life
        self.witness = watch

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        self.witness.delivered(self.life, stage, part, payload)
        super().deliver(stage, part, payload)

    def end(self) -> None:
        self.witness.ended(self.life, self)
        super().end()


class WatchedOutbox(Outbox):
    """An outbox that notes whose every task is, and what was passed on."""

    def __init__(self, router: Any) -> None:
        super().__init__(router)
        self.tasks: dict[str, tuple[str, int]] = {}
        """The stage and the request's serial number of each engine id."""
        self.over: set[str] = set()
        """Engine ids that their stages are known to be done with."""
        self.passed: set[tuple[str, int, int]] = set()

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        buffers = [getattr(frame, "buffer", frame) for frame in payload.frames]
        serial, value, *_ = decode(payload.body, buffers)
        stage = seat.key.decode().partition("/")[0]
        self.tasks[engine_id] = stage, serial
        self.passed.add((stage, serial, value))
        super().add(seat, engine_id, payload)


class WatchedSwitchboard(Switchboard):
    """A switchboard that is compared with what it was given, message by message."""

    def __init__(self, config: PipelineConfig, outbox: WatchedOutbox, watch: Watch) -> None:
        super().__init__(config, outbox)
        self.read: dict[str, int] = {}
        """Messages read, by `stage/replica`."""
        self.monitor: Monitor | None = None
        self._watch = watch
        self._passed = outbox
        watch.switchboard = self

    def on_message(self, proc: Any, frames: list[Any]) -> bool:
        self.read[proc.label] = self.read.get(proc.label, 0) + 1
        useful = self._useful(proc.stage, frames)
        fatal = super().on_message(proc, frames)
        for life, value in useful:
            self._expect_used(proc.stage, life, value)
        self._watch.world.expect(self.in_flight <= self._max_in_flight, "more are in flight than may be")
        return fatal

    def _useful(self, stage: str, frames: list[Any]) -> list[tuple[Life, int]]:
        """The outputs in a message whose requests can still use them."""
        found: list[tuple[Life, int]] = []
        failed: set[int] = set()
        at = 1
        for message in from_stage_decoder.decode(frames[0].buffer):
            own = [frame.buffer for frame in frames[at : at + getattr(message, "frames", 0)]]
            at += len(own)
            if not isinstance(message, Out | End | Refused):
                continue
            serial = self._passed.tasks[message.request_id][1]
            if not self._watch.lives[serial].is_alive or serial in failed:
                continue
            if isinstance(message, Refused):
                failed.add(serial)
            if isinstance(message, Out):
                found.append((self._watch.lives[serial], decode(message.body, own)[1]))
            if not isinstance(message, Out) or message.finished:
                self._passed.over.add(message.request_id)
        self._watch.world.note(stage, f"is heard: {len(found)} outputs that count")
        return found

    def _expect_used(self, stage: str, life: Life, value: int) -> None:
        world = self._watch.world
        if stage in self._watch.final:
            got = any(where == stage and result == value for where, _, result in life.results)
            world.expect(got, f"{life.user_id} never gets an output of {stage} that was read")
        for name, inputs, take in self._watch.graph:
            if stage in inputs and take == "each":
                passed = (name, life.serial, value) in self._passed.passed
                world.expect(passed, f"an output of {stage} for {life.user_id} never reaches {name}")

    def lose(self, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        world = self._watch.world
        lost = self._watch.alive()
        self._expect_drained()
        report = super().lose(report_for)
        world.note("supervisor", report.summary())
        world.expect(
            report.requests_lost == [life.user_id for life in lost],
            f"the report names {report.requests_lost} as lost, not {[life.user_id for life in lost]}",
        )
        for life in lost:
            request = life.request
            held = request is not None and request.outcome == "failed" and request.report is report
            world.expect(held, f"{life.user_id} was lost, and does not say so")
        return report

    def not_told(self, stage: str, aborted: set[str]) -> list[str]:
        """Requests that have ended, which a stage at rest has neither done nor been told to forget."""
        tasks = self._passed.tasks.items()
        return [
            engine_id
            for engine_id, (where, _) in tasks
            if where == stage and engine_id not in aborted and engine_id not in self._passed.over
        ]

    def _expect_drained(self) -> None:
        """See that all that the stages known to be dead had sent was read before any request fails."""
        dying: list[SimulatedStage] = [] if self.monitor is None else list(self.monitor.dying)  # type: ignore[arg-type]
        for proc in dying:
            unread = 0 if proc.is_alive else proc.back.left - self.read.get(proc.label, 0)
            left = f"{unread} messages had left {proc.label} before its death, and are not read"
            self._watch.world.expect(not unread, left)

    def _drop(self, proc: Any, reason: str) -> bool:
        self._watch.world.fail(f"a message of {proc.label} is dropped: {reason}")
        return super()._drop(proc, reason)

    def _warn_of_strangers(self, proc: Any) -> None:
        self._watch.world.fail(f"{proc.label} speaks of {self._ledger.strangers}, which nobody gave it")
