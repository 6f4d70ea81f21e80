"""The graph of stages as requests travel through it (pure), each with the seats of its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stage.names import label_of
from supervisor.seats import Seat, Seats

if TYPE_CHECKING:
    from supervisor.config import PipelineConfig, StageConfig


@dataclass(eq=False)
class StageNode:
    """A stage as the ledger sees it.

    Args:
        name: the stage's name.
        seats: its replicas.
        take: which outputs of the stages above become requests of this one.
        consumers: the stages below; none for a final stage.
    """

    name: str
    seats: Seats
    take: str
    consumers: list[StageNode] = field(default_factory=list)


def build_graph(config: PipelineConfig) -> list[StageNode]:
    """Turn a config into the stages that take requests, each linked to its consumers."""
    nodes = {stage.name: StageNode(stage.name, _seats(stage), stage.take) for stage in config.stages}
    for node in nodes.values():
        node.consumers = [nodes[consumer.name] for consumer in config.consumers(node.name)]
    return [nodes[source.name] for source in config.sources]


def reachable(nodes: list[StageNode]) -> list[StageNode]:
    """These stages and all that are below them; one of several inputs comes several times."""
    return nodes + [below for node in nodes for below in reachable(node.consumers)]


def _seats(stage: StageConfig) -> Seats:
    seats = [Seat(replica, label_of(stage.name, replica).encode()) for replica in range(stage.replicas)]
    return Seats(seats, stage.balance, stage.max_in_flight)
