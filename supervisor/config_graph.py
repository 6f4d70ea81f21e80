"""Finds what is wrong with the graph that the stages of a raw config form: names, inputs and rings.

Pure, and forgiving: what `supervisor.config_check` refuses is skipped here, so that both can look at the same config.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.config_check import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class _Node(NamedTuple):
    """A stage with a usable name; `given` holds the inputs as written, None where the stage above is meant."""

    position: int
    name: str
    above: str | None
    given: tuple[Any, ...] | None


def find_graph_problems(raw: object) -> list[str]:
    """Tell what is wrong with how the stages of this raw config are named and joined."""
    stages = raw.get("stages") if isinstance(raw, dict) else None
    if not isinstance(stages, list | tuple):
        return []
    nodes = list(_nodes(stages))
    return [*_duplicate_names(nodes), *_bad_inputs(nodes), *_rings(nodes)]


def _nodes(stages: Sequence[Any]) -> Iterator[_Node]:
    above = None
    for index, stage in enumerate(stages):
        name = stage.get("name") if isinstance(stage, dict) else None
        if isinstance(name, str):
            given = stage.get("inputs")
            yield _Node(index, name, above, tuple(given) if isinstance(given, list | tuple) else None)
        above = name if isinstance(name, str) else None


def _duplicate_names(nodes: list[_Node]) -> Iterator[str]:
    first: dict[str, int] = {}
    for node in nodes:
        earlier = first.setdefault(node.name, node.position)
        if earlier != node.position:
            yield (
                f"stages[{node.position}].name: {node.name!r} is also the name of stages[{earlier}], "
                "wanted a name of its own"
            )


def _bad_inputs(nodes: list[_Node]) -> Iterator[str]:
    known = list(dict.fromkeys(node.name for node in nodes))
    for node in nodes:
        for index, name in enumerate(node.given or ()):
            if isinstance(name, str):
                path = f"stages[{node.position}].inputs[{index}]"
                yield from _bad_input(path, node, index, known)


def _bad_input(path: str, node: _Node, index: int, known: list[str]) -> Iterator[str]:
    given = node.given or ()
    name = given[index]
    others = [other for other in known if other != node.name]
    if name == node.name:
        yield f"{path}: {name!r} is the stage itself, wanted another one; {nearest(None, others, 'stages')}"
    elif name not in known:
        yield f"{path}: unknown stage {name!r}, {nearest(name, others, 'stages')}"
    elif name in given[:index]:
        yield f"{path}: {name!r} is given twice, wanted each input once"


def _rings(nodes: list[_Node]) -> Iterator[str]:
    """Name each ring once; a stage is in one of the named rings at most."""
    positions = {node.name: node.position for node in reversed(nodes)}
    graph = {node.name: _joined_to(node, positions) for node in reversed(nodes)}
    while ring := _find_ring(graph):
        start = ring.index(min(ring, key=positions.__getitem__))
        turned = [*ring[start:], *ring[:start], ring[start]]
        yield (
            f"stages[{positions[ring[start]]}].inputs: {' -> '.join(turned)} is a ring, "
            "wanted inputs from stages that do not wait for this one"
        )
        graph = {
            name: [source for source in inputs if source not in ring]
            for name, inputs in graph.items()
            if name not in ring
        }


def _joined_to(node: _Node, known: dict[str, int]) -> list[str]:
    inputs = (node.above,) if node.given is None else node.given
    return [name for name in inputs if isinstance(name, str) and name in known and name != node.name]


def _find_ring(graph: dict[str, list[str]]) -> list[str]:
    """Return the stages of one ring, each feeding the next one, the last one feeding the first; or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        return ring[:-1]
    return []
