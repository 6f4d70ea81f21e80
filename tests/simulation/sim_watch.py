"""Watches the real parts of the supervisor from close by, and fails at the moment a promise is broken.

Every request has a `Life`: an account of its own, made from what its user can see, never from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim_engine import Graph, answer_of, data_of, model_of

from supervisor.calls import Call
from supervisor.handle import Handle, open_payload

if TYPE_CHECKING:
    from sim_switchboard import WatchedSwitchboard
    from sim_world import World

    from stage.codec import Payload
    from supervisor.ledger import Request
    from supervisor.switchboard import Switchboard
    from supervisor.turns import Turns


@dataclass(eq=False)
class Life:
    """One request, as its user sees it.

    Args:
        serial: its number; travels in its data.
        user_id: its id, which later requests may have as well.
        value: what it asks for.
        session: what `sticky` goes by.
        request: the ledger's side of it, once it has been accepted.
        may_abort: somebody has asked for its end.
        results: stage, part and value of each result.
        ends: how often it was told its outcome.
    """

    serial: int
    user_id: str
    value: int
    session: str
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
        """Each with the label of the replica, the name and the argument."""
        self.ending = False
        """Somebody ends the pipeline: any request may be aborted from now on."""
        self.switchboard: WatchedSwitchboard | None = None

    def begin(self, user_id: str, value: int, session: str | None) -> Life:
        """Make an account of a request that is about to be submitted."""
        life = Life(len(self.lives), user_id, value, user_id if session is None else session)
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
        report, switchboard = request.report, self.switchboard
        deaths = [] if switchboard is None else [switchboard.died, *switchboard.parted.values()]
        self.world.expect(
            any(report is death for death in deaths) if report is not None else model_of(self.graph, life.value).spoilt,
            f"{life.user_id} fails without a reason that its user could find: {request.error}",
        )

    def expect_answers(self) -> None:
        """See that every call was answered, by the right answer or by an error."""
        for call, label, name, argument in self.calls:
            if name == "forgotten":
                continue
            what = f"utility {name!r} of {label}"
            self.world.expect(call.answered(), f"{what} is never answered")
            if call.answer is not None:
                self.world.expect(call.error is None, f"{what} has an answer and an error")
                right = name == "echo" and open_payload(call.answer) == answer_of(label, argument)
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

    def __init__(self, life: Life, watch: Watch, switchboard: Switchboard, turns: Turns) -> None:
        super().__init__(life.user_id, switchboard, turns, life.session)
        self.life = life
        self.witness = watch

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        self.witness.delivered(self.life, stage, part, payload)
        super().deliver(stage, part, payload)

    def end(self) -> None:
        self.witness.ended(self.life, self)
        super().end()
