"""The ledger: exactly one outcome for each request, whatever the graph and whatever comes in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage.codec import Payload
from supervisor import PipelineConfig
from supervisor.ledger import Ledger, Request
from supervisor.stage_graph import build_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.seats import Seat

Graph = list[dict[str, Any]]


def payload(value: Any) -> Payload:
    return Payload(msgspec.msgpack.encode(value), ())


class Told(Request):
    """A request that notes what it is told, and fails when it is told anything after its outcome."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.results: list[tuple[str, tuple[int, ...], Any]] = []
        self.ends: list[tuple[str | None, str | None]] = []

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        assert not self.ends, "a result came after the outcome"
        self.results.append((stage, tuple(part), msgspec.msgpack.decode(payload.body)))

    def end(self) -> None:
        self.ends.append((self.outcome, self.error))


def stage_of(seat: Seat) -> str:
    return seat.key.decode().partition("/")[0]


class Stages:
    """All stages of a graph: what each has been sent, in order."""

    def __init__(self, graph: Graph) -> None:
        config = PipelineConfig.from_dict({"stages": graph})
        self.sent: dict[str, tuple[Seat, Any]] = {}
        self.every_id: list[str] = []
        self.cancelled: list[str] = []
        self.posted: list[tuple[str, bytes, str]] = []
        """Everything in order, as `(add or abort, routing id, engine id)`."""
        self.ledger = Ledger(build_graph(config), self)
        self.requests: list[Told] = []

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        self.sent[engine_id] = (seat, msgspec.msgpack.decode(payload.body))
        self.every_id.append(engine_id)
        self.posted.append(("add", seat.key, engine_id))

    def abort(self, seat: Seat, engine_ids: list[str]) -> None:
        assert all(self.sent[engine_id][0] is seat for engine_id in engine_ids)
        self.cancelled += engine_ids
        for engine_id in engine_ids:
            del self.sent[engine_id]
            self.posted.append(("abort", seat.key, engine_id))

    def open(self, request_id: str, value: Any = "x") -> Told:
        request = Told(request_id)
        self.ledger.open(request, payload(value))
        self.requests.append(request)
        return request

    def id_at(self, name: str) -> str:
        """The oldest task of a stage."""
        return next(engine_id for engine_id, (seat, _) in self.sent.items() if stage_of(seat) == name)

    def finish(self, engine_id: str, value: Any) -> None:
        """Let a stage answer with one output, which is its last."""
        del self.sent[engine_id]
        self.ledger.output(engine_id, payload(value), finished=True)


def line(*names: str, **keys: Any) -> Graph:
    return [{"name": name, "engine": "m:C", **keys} for name in names]


def test_one_stage() -> None:
    """An output is delivered with its number, and the last one ends the request."""
    stages = Stages(line("only"))
    request = stages.open("r1")
    engine_id = stages.id_at("only")
    assert engine_id.startswith("r1")
    stages.ledger.output(engine_id, payload("a"), finished=False)
    assert request.ends == []
    stages.ledger.output(engine_id, payload("b"), finished=True)
    assert request.results == [("only", (0,), "a"), ("only", (1,), "b")]
    assert request.ends == [("finished", None)]
    assert (len(stages.ledger.requests), stages.ledger.done) == (0, 1)


def test_take_each() -> None:
    """Each output of a stage is a task of the next one, which outlives the first stage's end."""
    stages = Stages(line("a", "b"))
    request = stages.open("r1")
    stages.ledger.output(stages.id_at("a"), payload(1), finished=False)
    stages.ledger.output(stages.id_at("a"), payload(2), finished=True)
    assert [value for seat, value in stages.sent.values() if stage_of(seat) == "b"] == [1, 2]
    for _ in range(2):
        assert request.ends == []
        stages.finish(stages.id_at("b"), "done")
    assert request.results == [("b", (0, 0), "done"), ("b", (1, 0), "done")]
    assert request.ends == [("finished", None)]


@pytest.mark.parametrize("marked", [True, False])
def test_take_final(marked: bool) -> None:
    """Only the last output that carries data is passed on, whether it or an end without data finishes the task."""
    stages = Stages([*line("a"), *line("b", take="final")])
    request = stages.open("r1")
    engine_id = stages.id_at("a")
    stages.ledger.output(engine_id, payload(1), finished=False)
    stages.ledger.output(engine_id, payload(2), finished=marked)
    if not marked:
        assert [stage_of(seat) for seat, _ in stages.sent.values()] == ["a"]
        stages.ledger.end(engine_id)
    stages.finish(stages.id_at("b"), "done")
    assert request.results == [("b", (1, 0), "done")]
    assert stages.every_id[1:] != []
    assert len(stages.every_id) == 2


def test_end_without_data() -> None:
    """A task that ends without any data finishes the request and sends nothing on."""
    stages = Stages([*line("a"), *line("b", take="final")])
    request = stages.open("r1")
    stages.ledger.end(stages.id_at("a"))
    assert (request.results, request.ends) == ([], [("finished", None)])
    assert len(stages.every_id) == 1


def test_refusal_cancels_all_other_tasks() -> None:
    """A stage that refuses a task fails the request, and every other stage is told to forget it."""
    stages = Stages([*line("a"), *line("b", "c", inputs=["a"])])
    request = stages.open("r1")
    stages.ledger.output(stages.id_at("a"), payload("x"), finished=False)
    refused, *others = [engine_id for engine_id in stages.every_id if engine_id != stages.id_at("b")]
    refused = stages.id_at("b")
    stages.ledger.refuse(refused, "too long")
    assert request.ends == [("failed", "stage 'b': too long")]
    assert set(stages.cancelled) == set(stages.every_id) - {refused}
    assert refused not in others


def test_close_twice_changes_nothing() -> None:
    """The first outcome stands."""
    stages = Stages(line("only"))
    request = stages.open("r1")
    stages.ledger.close(request, "aborted")
    stages.ledger.close(request, "failed", "late")
    assert request.ends == [("aborted", None)]
    assert len(stages.cancelled) == 1


def test_close_of_an_old_request_spares_a_new_one_of_the_same_id() -> None:
    """A request is known by itself, not by its id."""
    stages = Stages(line("only"))
    old = stages.open("same")
    stages.ledger.close(old, "aborted")
    new = stages.open("same")
    stages.ledger.close(old, "aborted")
    assert (new.ends, "same" in stages.ledger.requests) == ([], True)


def test_abort_makes_room_behind_itself() -> None:
    """What waits for the place of a request that is aborted is sent behind the abort, and the old one is no more."""
    stages = Stages(line("only", replicas=2, max_in_flight=1))
    first, _, waiting = (stages.open(name) for name in ("first", "second", "waiting"))
    old, free = stages.every_id[0], b"only/0"
    stages.ledger.close(first, "aborted")
    new = stages.every_id[-1]
    assert stages.posted[2:] == [("abort", free, old), ("add", free, new)]
    again = stages.open("first")
    assert stages.every_id[-1] == new, "it waits, as both are full"
    stages.ledger.output(old, payload("under way at the abort"), finished=True)
    assert stages.every_id[-1] == new, "the old one has no place to give back"
    stages.finish(new, "w")
    stages.ledger.output(old, payload("later still"), finished=False)
    stages.finish(stages.every_id[-1], "a")
    assert (first.results, first.ends) == ([], [("aborted", None)])
    assert (waiting.results, waiting.ends) == ([("only", (0,), "w")], [("finished", None)])
    assert (again.results, again.ends) == ([("only", (0,), "a")], [("finished", None)])
    assert stages.ledger.strangers == []


@pytest.mark.parametrize("balance", ["least_loaded", "sticky"])
def test_what_is_aborted_while_it_waits_leaves_the_queue(balance: str) -> None:
    """Nobody has to look past it, however many there are while a replica is stuck."""
    stages = Stages(line("only", replicas=2, max_in_flight=1, balance=balance))
    (node,) = stages.ledger._sources
    held = [stages.open(f"held {number}") for number in range(8)]
    for number in range(3):
        waiting = node.seats.waiting
        request = stages.open(f"waits {number}")
        assert node.seats.waiting == waiting + 1
        stages.ledger.close(request, "aborted")
        assert node.seats.waiting == waiting
    while stages.sent:
        stages.finish(next(iter(stages.sent)), "x")
    assert {request.outcome for request in held} == {"finished"}
    assert node.seats.waiting == 0


def test_alive_id_is_refused() -> None:
    """An id that is alive raises ValueError, and the request of that id is untouched."""
    stages = Stages(line("only"))
    first = stages.open("same")
    with pytest.raises(ValueError, match="'same' is still alive"):
        stages.open("same")
    assert list(stages.ledger.requests.values()) == [first]


def test_strangers_are_ignored() -> None:
    """Messages about ids that never were change nothing."""
    stages = Stages(line("only"))
    request = stages.open("r1")
    for stranger in ("r1", "r1#99", ""):
        stages.ledger.output(stranger, payload("x"), finished=True)
        stages.ledger.end(stranger)
        stages.ledger.refuse(stranger, "no")
    assert (request.results, request.ends, len(stages.ledger.requests)) == ([], [], 1)


@st.composite
def graphs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Graph:
    """Up to five stages, each with any of those above it as its inputs."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 5)))]
    graph = []
    for index, name in enumerate(names):
        inputs = draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        graph.append({**line(name)[0], "inputs": inputs, "take": draw(st.sampled_from(["each", "final"]))})
    return graph


ACTS = st.tuples(
    st.sampled_from(["open", "output", "last output", "end", "refuse", "close", "again"]), st.integers(0, 999)
)


def act(stages: Stages, what: str, number: int) -> None:
    """Let one thing happen, to the request or task that `number` picks."""
    if what == "open":
        open_again(stages, f"r{number % 4}")
    elif what == "close" and stages.requests:
        request = stages.requests[number % len(stages.requests)]
        stages.ledger.close(request, "failed" if number % 2 else "aborted", "why")
    elif what == "again" and stages.every_id:
        # A stage may speak of a task that has ended, as long as it has not heard of that.
        engine_id = stages.every_id[number % len(stages.every_id)]
        if engine_id not in stages.sent:
            stages.ledger.output(engine_id, payload(number), finished=bool(number % 2))
            stages.ledger.refuse(engine_id, "again")
            stages.ledger.end(engine_id)
    elif stages.sent:
        answer(stages, list(stages.sent)[number % len(stages.sent)], what)


def open_again(stages: Stages, request_id: str) -> None:
    if request_id in stages.ledger.requests:
        with pytest.raises(ValueError, match="still alive"):
            stages.open(request_id)
    else:
        stages.open(request_id)


def answer(stages: Stages, engine_id: str, what: str) -> None:
    """Let a stage speak of a task that is alive."""
    if what == "output":
        stages.ledger.output(engine_id, payload(what), finished=False)
    elif what == "last output":
        stages.finish(engine_id, what)
    elif what in {"end", "refuse"}:
        del stages.sent[engine_id]
        if what == "end":
            stages.ledger.end(engine_id)
        else:
            stages.ledger.refuse(engine_id, "no")


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), history=st.lists(ACTS, max_size=60))
def test_any_history(graph: Graph, history: list[tuple[str, int]]) -> None:
    """Each request has exactly one outcome when all is done, nothing comes after it, and nothing is left open."""
    stages = Stages(graph)
    for what, number in history:
        act(stages, what, number)
        ended = [request for request in stages.requests if request.ends]
        assert stages.ledger.done == len(ended)
        assert list(stages.ledger.requests.values()) == [request for request in stages.requests if not request.ends]
    while stages.sent:
        stages.finish(next(iter(stages.sent)), "rest")
    assert all(len(request.ends) == 1 for request in stages.requests)
    assert (len(stages.ledger.requests), stages.ledger._tasks) == (0, {})
    assert not any(request.tasks for request in stages.requests)
    assert len(set(stages.every_id)) == len(stages.every_id)


def results_of_one_process(graph: Graph, outputs: int) -> list[tuple[str, tuple[int, ...], Any]]:
    """What a request gives if each stage answers `[value, …]` with `outputs` outputs, computed depth first."""
    consumers = {stage["name"]: [other for other in graph if stage["name"] in other["inputs"]] for stage in graph}
    found = []

    def run(name: str, part: tuple[int, ...]) -> None:
        for index in range(outputs):
            here = (*part, index)
            if not consumers[name]:
                found.append((name, here, f"{name}{index}"))
            for consumer in consumers[name]:
                if consumer["take"] == "each" or index == outputs - 1:
                    run(consumer["name"], here)

    for stage in graph:
        if not stage["inputs"]:
            run(stage["name"], ())
    return sorted(found)


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), outputs=st.integers(1, 2), picks=st.randoms(use_true_random=False))
def test_any_order_gives_the_results_of_one_process(graph: Graph, outputs: int, picks: Any) -> None:
    """Whichever stage answers first, the results are those of one process alone, once they are sorted by part."""
    stages = Stages(graph)
    request = stages.open("r1")
    given_so_far: dict[str, int] = {}
    while stages.sent:
        engine_id = picks.choice(list(stages.sent))
        name = stage_of(stages.sent[engine_id][0])
        index = given_so_far.get(engine_id, 0)
        given_so_far[engine_id] = index + 1
        last = index == outputs - 1
        if last:
            del stages.sent[engine_id]
        stages.ledger.output(engine_id, payload(f"{name}{index}"), finished=last)
    assert sorted(request.results) == results_of_one_process(graph, outputs)
    assert request.ends == [("finished", None)]


def test_requests_at_a_replica_are_named_in_the_order_in_which_they_came() -> None:
    """An old request may have come to a stage later than a younger one."""
    stages = Stages(line("first", "last"))
    old, young = stages.open("old"), stages.open("young")
    ids = {stages.ledger._tasks[engine_id].request: engine_id for engine_id in stages.sent}
    stages.finish(ids[young], "x")
    stages.finish(ids[old], "x")
    assert stages.ledger.requests_at("last", b"last/0") == [old, young]
