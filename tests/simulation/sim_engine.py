"""The engine of every simulated stage, and the sequential model of what a request must give.

What a stage answers is a pure function of its name and the value it gets, so one loop over the graph tells every result
with its part; the simulated pipeline must come to the same, in whatever order things happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sim_world import Pause

from stage.engine import Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sim_queue import PausingQueue
    from sim_world import World

    from supervisor.config import StageConfig

FILLER = bytes(20_000)
"""Large enough to travel as a frame of its own."""

Graph = tuple[tuple[str, tuple[str, ...], str], ...]
"""For each stage its name, its inputs and what it takes."""


@dataclass(frozen=True)
class Plan:
    """What a stage does with one value.

    Args:
        refuses: it refuses it right away.
        values: its outputs with data, each known by its own value.
        marks_end: it ends with an output without data, instead of marking the last one.
        spoils: it returns, behind the others, an output that cannot be encoded.
    """

    refuses: bool
    values: tuple[int, ...]
    marks_end: bool
    spoils: bool


@cache
def plan_of(stage: str, value: int) -> Plan:
    """What stage `stage` does with `value`."""
    dice = crc32(f"{stage}:{value}".encode())
    count = (0, 1, 1, 1, 2, 2, 3)[dice % 7]
    values = tuple(crc32(f"{stage}:{value}:{i}".encode()) for i in range(count))
    return Plan(dice // 7 % 40 == 0, values, not count or dice // 280 % 3 == 0, dice // 840 % 20 == 0)


def data_of(serial: int, value: int) -> list[Any]:
    """What travels: whose it is, its value, and sometimes a large frame."""
    return [serial, value, FILLER] if value % 5 == 0 else [serial, value]


@dataclass
class Model:
    """What one request must give.

    Args:
        results: stage and part of each result, by its value. Two results may have one part, if they came by two ways.
        spoilt: a stage on the way refuses it: it cannot finish.
        tasks: how much work it is.
    """

    results: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    spoilt: bool = False
    tasks: int = 0


@lru_cache(maxsize=4096)
def model_of(graph: Graph, value: int) -> Model:
    """Run a request through the graph, one thing after the other."""
    model = Model()
    for name, inputs, _ in graph:
        if not inputs:
            _run(graph, model, name, (), value)
    return model


def _run(graph: Graph, model: Model, name: str, part: tuple[int, ...], value: int) -> None:
    model.tasks += 1
    plan = plan_of(name, value)
    if plan.refuses:
        model.spoilt = True
        return
    model.spoilt = model.spoilt or plan.spoils
    consumers = [(other, take) for other, inputs, take in graph if name in inputs]
    for index, output in enumerate(plan.values):
        if not consumers:
            model.results[output] = name, (*part, index)
        for consumer, take in consumers:
            if take == "each" or index == len(plan.values) - 1:
                _run(graph, model, consumer, (*part, index), output)


@dataclass
class Fault:
    """How an engine fails by itself.

    Args:
        point: the call of the engine: add, abort, step or utility.
        nth: at which of these calls.
        exit_code: the process ends with it at once, or None.
        error: makes what is raised otherwise; None if the call never returns.
    """

    point: str
    nth: int
    exit_code: int | None
    error: type[BaseException] | None


class SimulatedEngine:
    """Do what `plan_of` says, a few outputs a step, and note when the busy loop breaks its promises.

    Args:
        world: decides how much a step does.
        config: of its stage.
        label: `stage/replica`.
        input_queue: the busy loop's, only looked at.
        strike: called with the point that is reached; it may raise, or end the process.
    """

    def __init__(
        self,
        world: World,
        config: StageConfig,
        label: str,
        input_queue: PausingQueue,
        strike: Callable[[str], None],
    ) -> None:
        self._world = world
        self._stage = config.name
        self._limit = config.max_in_flight
        self._label = label
        self._input_queue = input_queue
        self._strike = strike
        self.requests: dict[str, list[Output]] = {}
        self.steps_allowed = 0
        self._seen: set[str] = set()
        self.aborted: set[str] = set()
        """Ids that it was told to forget."""

    def has_work(self) -> bool:
        """True if a step is due; it pauses the loop where the scheduler wants something else to happen first."""
        if not self.steps_allowed:
            raise Pause
        return bool(self.requests)

    def add(self, request_id: str, data: Any) -> None:
        """Take a request."""
        self._strike("add")
        self._world.expect(request_id not in self._seen, f"{self._label} got {request_id} twice")
        self._world.expect(request_id not in self.aborted, f"{self._label} got {request_id} after its abort")
        self._seen.add(request_id)
        serial, value = data[0], data[1]
        if data != data_of(serial, value):
            self._world.fail(f"{self._label} got {request_id} with other frames than were sent")
        plan = plan_of(self._stage, value)
        if plan.refuses:
            raise RequestError("I will not")
        self.requests[request_id] = _outputs(request_id, serial, plan)
        within = self._limit is None or len(self.requests) <= self._limit
        self._world.expect(within, f"{self._label} is given more than its max_in_flight")

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self._strike("abort")
        for request_id in request_ids:
            self._world.expect(request_id in self._seen, f"{self._label} is to forget {request_id}, which it never had")
            self.aborted.add(request_id)
            self.requests.pop(request_id, None)

    def step(self) -> list[Output]:
        """Give some outputs of some requests."""
        self.steps_allowed -= 1
        self._world.expect(not self._input_queue.items, f"{self._label} steps while messages wait to be applied")
        self._strike("step")
        outputs: list[Output] = []
        for request_id in list(self.requests):
            left = self.requests[request_id]
            count = self._world.rng.randrange(len(left) + 1)
            outputs += left[:count]
            del left[:count]
            if not left:
                del self.requests[request_id]
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer with what was asked, or fail, or answer what cannot be encoded."""
        self._strike("utility")
        if name == "raise":
            raise ValueError(*args)
        return object() if name == "odd" else answer_of(self._label, args[0])


def answer_of(label: str, argument: int) -> list[Any]:
    """What the utility `echo` of a replica answers: sometimes with a large frame."""
    return [label, argument, FILLER] if argument % 3 == 0 else [label, argument]


def _outputs(request_id: str, serial: int, plan: Plan) -> list[Output]:
    outputs = [Output(request_id, data_of(serial, value), False) for value in plan.values]
    if plan.spoils:
        outputs.append(Output(request_id, object(), False))
    if plan.marks_end or plan.spoils:
        outputs.append(Output(request_id, None, True))
    else:
        outputs[-1] = outputs[-1]._replace(finished=True)
    return outputs
