"""The ledger of requests (pure): each accepted request gets exactly one terminal outcome.

A request travels as tasks: one for each stage process that works on a piece of it. A task is known by an engine id,
unique for the ledger's life, so a message about anything that has ended finds no task and is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from stage.codec import Payload
    from supervisor.config import PipelineConfig
    from supervisor.report import StageDeathReport

OutcomeName = Literal["finished", "aborted", "failed"]


class Piece(NamedTuple):
    """A result whose data is still encoded."""

    stage: str
    part: list[int]
    payload: Payload


class Sink(Protocol):
    """Who gets what a request produces."""

    def deliver(self, request: Request, piece: Piece) -> None:
        """Take one result."""

    def end(self, request: Request) -> None:
        """Take the outcome, which `request` now has; nothing comes after it."""


@dataclass(eq=False)
class StageNode:
    """A stage as the router sees it.

    Args:
        name: the stage's name.
        key: the routing id of its process.
        take: which outputs of the stages above become requests of this one.
        consumers: the stages below; none for a final stage.
    """

    name: str
    key: bytes
    take: str
    consumers: list[StageNode] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Request:
    """One request of a user, from `open` to its outcome."""

    id: str
    sink: Sink
    tasks: dict[str, Task] = field(default_factory=dict)
    outcome: OutcomeName | None = None
    error: str | None = None
    report: StageDeathReport | None = None
    """The death that failed it."""


@dataclass(eq=False, slots=True)
class Task:
    """A piece of a request at one stage."""

    request: Request
    node: StageNode
    part: list[int]
    outputs: int = 0
    held: Payload | None = None
    """The last output that carried data, for consumers that take only that one."""


class Forward(NamedTuple):
    """Data that a stage must be sent."""

    node: StageNode
    engine_id: str
    payload: Payload


Cancel = tuple[StageNode, list[str]]
"""Engine ids that a stage must be told to forget."""


def build_graph(config: PipelineConfig) -> list[StageNode]:
    """Turn a config into the stages that take requests, each linked to its consumers."""
    nodes = {stage.name: StageNode(stage.name, f"{stage.name}/0".encode(), stage.take) for stage in config.stages}
    for stage in config.stages:
        for upstream in stage.inputs:
            nodes[upstream].consumers.append(nodes[stage.name])
    return [nodes[stage.name] for stage in config.stages if not stage.inputs]


class Ledger:
    """Keep account of every request.

    Args:
        sources: the stages that take a new request, as `build_graph` returns them.
    """

    def __init__(self, sources: list[StageNode]) -> None:
        self._sources = sources
        self._requests: dict[str, Request] = {}
        self._tasks: dict[str, Task] = {}
        self._numbers = count(1)
        self.done = 0
        """Requests that have ended."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def open(self, request_id: str, payload: Payload, sink: Sink) -> tuple[Request, list[Forward]]:
        """Accept a request.

        Raises:
            ValueError: a request of this id is alive.
        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is still alive: wait for its outcome, or use another id")
        request = Request(request_id, sink)
        self._requests[request_id] = request
        return request, [self._begin(request, node, [], payload) for node in self._sources]

    def output(self, engine_id: str, payload: Payload, finished: bool) -> list[Forward]:
        """Account for an output with data: deliver it, or say where it goes on."""
        task = self._tasks.get(engine_id)
        if task is None:
            return []
        part = [*task.part, task.outputs]
        task.outputs += 1
        request = task.request
        forwards: list[Forward] = []
        if not task.node.consumers:
            request.sink.deliver(request, Piece(task.node.name, part, payload))
        for consumer in task.node.consumers:
            if consumer.take == "each":
                forwards.append(self._begin(request, consumer, part, payload))
            else:
                task.held = payload
        if finished:
            forwards += self._finish(engine_id, task)
        return forwards

    def end(self, engine_id: str) -> list[Forward]:
        """Account for the end of a task without further data."""
        task = self._tasks.get(engine_id)
        return [] if task is None else self._finish(engine_id, task)

    def refuse(self, engine_id: str, error: str) -> list[Cancel]:
        """Fail the request whose task a stage has refused."""
        task = self._tasks.get(engine_id)
        if task is None:
            return []
        self._drop(engine_id, task)
        return self.close(task.request, "failed", f"stage {task.node.name!r} refused it: {error}")

    def close(
        self,
        request: Request,
        outcome: OutcomeName,
        error: str | None = None,
        report: StageDeathReport | None = None,
    ) -> list[Cancel]:
        """End a request that is alive, whatever it waits for; one that has ended stays as it is."""
        if request.outcome is not None:
            return []
        cancels: dict[str, Cancel] = {}
        for engine_id, task in list(request.tasks.items()):
            cancels.setdefault(task.node.name, (task.node, []))[1].append(engine_id)
            self._drop(engine_id, task)
        request.report = report
        self._end(request, outcome, error)
        return list(cancels.values())

    def find(self, request_id: str) -> Request | None:
        """The request of this id, if it is alive."""
        return self._requests.get(request_id)

    def alive(self) -> list[Request]:
        """All requests without an outcome, oldest first."""
        return list(self._requests.values())

    def _begin(self, request: Request, node: StageNode, part: list[int], payload: Payload) -> Forward:
        engine_id = f"{request.id}#{next(self._numbers)}"
        self._tasks[engine_id] = request.tasks[engine_id] = Task(request, node, part)
        return Forward(node, engine_id, payload)

    def _finish(self, engine_id: str, task: Task) -> list[Forward]:
        request = task.request
        forwards: list[Forward] = []
        if task.held is not None:
            part = [*task.part, task.outputs - 1]
            forwards = [
                self._begin(request, consumer, part, task.held)
                for consumer in task.node.consumers
                if consumer.take == "final"
            ]
        self._drop(engine_id, task)
        if not request.tasks:
            self._end(request, "finished", None)
        return forwards

    def _drop(self, engine_id: str, task: Task) -> None:
        del self._tasks[engine_id], task.request.tasks[engine_id]

    def _end(self, request: Request, outcome: OutcomeName, error: str | None) -> None:
        del self._requests[request.id]
        self.done += 1
        request.outcome, request.error = outcome, error
        request.sink.end(request)
