"""The ledger beside a model that knows each request's tasks: every call has just the effects that the model foresees.

The model says what must be posted, delivered and ended; the engine ids are the ledger's own, so the model learns them
from what was posted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stage.codec import Payload
from supervisor import PipelineConfig
from supervisor.ledger import Ledger, Request
from supervisor.stage_graph import build_graph

if TYPE_CHECKING:
    from supervisor.ledger import OutcomeName
    from supervisor.seats import Seat

GRAPHS: dict[str, list[tuple[str, list[str], str]]] = {
    "one stage": [("a", [], "each")],
    "line": [("a", [], "each"), ("b", ["a"], "each"), ("c", ["b"], "final")],
    "fork": [("a", [], "each"), ("b", ["a"], "each"), ("c", ["a"], "final")],
    "two sources": [("a", [], "each"), ("b", [], "each"), ("c", ["a", "b"], "each")],
    "diamond": [("a", [], "each"), ("b", ["a"], "final"), ("c", ["a"], "each"), ("d", ["b", "c"], "final")],
}
"""Stages, each with its inputs and with what it takes of them."""


@dataclass(eq=False)
class Piece:
    """A task as the model sees it: of one request, at one stage."""

    owner: Known
    stage: str
    part: tuple[int, ...]
    outputs: int = 0
    last: Any = None


@dataclass(eq=False)
class Known:
    """A request as the model sees it."""

    pieces: dict[str, Piece] = field(default_factory=dict)
    delivered: list[tuple[str, tuple[int, ...], Any]] = field(default_factory=list)
    outcome: tuple[str, str | None] | None = None


class Told(Request):
    """A request that notes what it is told."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.known = Known()
        self.results: list[tuple[str, tuple[int, ...], Any]] = []
        self.ends: list[tuple[str | None, str | None]] = []

    def deliver(self, stage: str, part: list[int], payload: Payload) -> None:
        self.results.append((stage, tuple(part), msgspec.msgpack.decode(payload.body)))

    def end(self) -> None:
        self.ends.append((self.outcome, self.error))


def stage_of(seat: Seat) -> str:
    return seat.key.decode().partition("/")[0]


class LedgerBesideModel(RuleBasedStateMachine):
    """A ledger, and a model of what it must do; the machine is the ledger's post as well."""

    @initialize(name=st.sampled_from(sorted(GRAPHS)))
    def begin(self, name: str) -> None:
        graph = GRAPHS[name]
        self.consumers = {one: [(other, take) for other, inputs, take in graph if one in inputs] for one, _, _ in graph}
        self.sources = [one for one, inputs, _ in graph if not inputs]
        stages = [{"name": one, "engine": "m:C", "inputs": inputs, "take": take} for one, inputs, take in graph]
        self.ledger = Ledger(build_graph(PipelineConfig.from_dict({"stages": stages})), self)
        self.requests: list[Told] = []
        self.pieces: dict[str, Piece] = {}
        self.gone: list[str] = []
        self.foreseen: list[tuple[Known, str, tuple[int, ...], Any]] = []
        self.posted: list[tuple[str, str, Any]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.number = 0

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        """Take what the ledger sends to a stage."""
        self.posted.append((stage_of(seat), engine_id, msgspec.msgpack.decode(payload.body)))

    def abort(self, seat: Seat, engine_ids: list[str]) -> None:
        """Take what the ledger cancels."""
        self.cancelled += [(stage_of(seat), engine_id) for engine_id in engine_ids]

    def payload(self) -> tuple[Any, Payload]:
        """New data, and how it travels."""
        self.number += 1
        return self.number, Payload(msgspec.msgpack.encode(self.number), ())

    def pick(self, among: list[Any], number: int) -> Any:
        return among[number % len(among)]

    @rule(number=st.integers(0, 3))
    def open(self, number: int) -> None:
        """Open a request; an id that is alive is refused without any effect."""
        request, (data, payload) = Told(f"r{number}"), self.payload()
        if request.id in self.alive():
            with pytest.raises(ValueError, match="still alive"):
                self.ledger.open(request, payload)
            return
        self.ledger.open(request, payload)
        self.requests.append(request)
        self.foreseen = [(request.known, source, (), data) for source in self.sources]
        self.learn()

    @precondition(lambda self: self.pieces)
    @rule(number=st.integers(0, 99), finished=st.booleans())
    def output(self, number: int, finished: bool) -> None:
        """A stage answers with data."""
        engine_id = self.pick(list(self.pieces), number)
        piece, (data, payload) = self.pieces[engine_id], self.payload()
        self.ledger.output(engine_id, payload, finished)

        part = (*piece.part, piece.outputs)
        piece.outputs, piece.last = piece.outputs + 1, data
        if not self.consumers[piece.stage]:
            piece.owner.delivered.append((piece.stage, part, data))
        self.pass_on(piece, part, data, "each")
        if finished:
            self.finish(engine_id)
        self.learn()

    @precondition(lambda self: self.pieces)
    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        """A stage ends a task without data."""
        engine_id = self.pick(list(self.pieces), number)
        self.ledger.end(engine_id)
        self.finish(engine_id)
        self.learn()

    @precondition(lambda self: self.pieces)
    @rule(number=st.integers(0, 99))
    def refuse(self, number: int) -> None:
        """A stage refuses a task: the request fails, and all its other tasks are cancelled."""
        engine_id = self.pick(list(self.pieces), number)
        piece = self.pieces[engine_id]
        self.ledger.refuse(engine_id, "no")
        self.forget(engine_id)
        self.cancel(piece.owner, ("failed", f"stage {piece.stage!r}: no"))

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 99), outcome=st.sampled_from(["aborted", "failed"]))
    def close(self, number: int, outcome: OutcomeName) -> None:
        """The user or a death ends a request; one that has ended stays as it is."""
        request = self.pick(self.requests, number)
        self.ledger.close(request, outcome, "why")
        if request.known.outcome is None:
            self.cancel(request.known, (outcome, "why"))

    @precondition(lambda self: self.gone)
    @rule(number=st.integers(0, 99), finished=st.booleans())
    def speak_late(self, number: int, finished: bool) -> None:
        """A stage speaks of a task that has ended: nothing happens, and nobody is called a stranger."""
        engine_id = self.pick(self.gone, number)
        self.ledger.output(engine_id, self.payload()[1], finished)
        self.ledger.end(engine_id)
        self.ledger.refuse(engine_id, "late")
        assert self.ledger.strangers == []

    @rule(stranger=st.sampled_from(["", "r1", "r1#", "r1#0", "r1#999999", "r1#x", "#-1"]))
    def speak_of_a_stranger(self, stranger: str) -> None:
        """A stage speaks of a task that never was: it is told, and nothing else happens."""
        self.ledger.output(stranger, self.payload()[1], finished=True)
        self.ledger.end(stranger)
        assert [stranger, stranger] == self.ledger.strangers
        self.ledger.strangers.clear()

    @invariant()
    def effects_are_those_foreseen(self) -> None:
        """Nothing was posted or cancelled beyond what the rules took in; results and outcomes are the model's."""
        assert (self.posted, self.cancelled, self.foreseen) == ([], [], [])
        for request in self.requests:
            assert request.known.delivered == request.results
            assert ([] if request.known.outcome is None else [request.known.outcome]) == request.ends

    @invariant()
    def account_is_right(self) -> None:
        """The ledger holds the requests without an outcome, oldest first, and counts the others."""
        alive = self.alive()
        assert alive == self.ledger.requests
        assert list(alive) == list(self.ledger.requests)
        assert len(self.requests) - len(alive) == self.ledger.done
        assert set(self.pieces) == set(self.ledger._tasks)

    def teardown(self) -> None:
        """Whatever has happened, the ends of all tasks are the ends of all requests."""
        while self.pieces:
            self.end(0)
        assert all(len(request.ends) == 1 for request in self.requests)

    def alive(self) -> dict[str, Request]:
        return {request.id: request for request in self.requests if request.known.outcome is None}

    def pass_on(self, piece: Piece, part: tuple[int, ...], data: Any, take: str) -> None:
        self.foreseen += [
            (piece.owner, consumer, part, data) for consumer, takes in self.consumers[piece.stage] if takes == take
        ]

    def finish(self, engine_id: str) -> None:
        """The model's own idea of a task's end."""
        piece = self.pieces[engine_id]
        if piece.outputs:
            self.pass_on(piece, (*piece.part, piece.outputs - 1), piece.last, "final")
        self.forget(engine_id)
        if not piece.owner.pieces and not self.foreseen:
            piece.owner.outcome = ("finished", None)

    def forget(self, engine_id: str) -> None:
        del self.pieces[engine_id].owner.pieces[engine_id], self.pieces[engine_id]
        self.gone.append(engine_id)

    def cancel(self, known: Known, outcome: tuple[str, str | None]) -> None:
        """See that all that is left of a request was cancelled, each at its own stage."""
        expected = [(piece.stage, engine_id) for engine_id, piece in known.pieces.items()]
        assert Counter(expected) == Counter(self.cancelled)
        self.cancelled = []
        for engine_id in list(known.pieces):
            self.forget(engine_id)
        known.outcome = outcome

    def learn(self) -> None:
        """See that just the tasks that were foreseen have been posted, and take their ids."""
        assert [(stage, data) for _, stage, _, data in self.foreseen] == [(one, data) for one, _, data in self.posted]
        for (owner, stage, part, _), (_, engine_id, _) in zip(self.foreseen, self.posted, strict=True):
            assert engine_id not in {*self.pieces, *self.gone}
            owner.pieces[engine_id] = self.pieces[engine_id] = Piece(owner, stage, part)
        self.foreseen, self.posted = [], []


def test_any_history() -> None:
    """Any history of any of the graphs has the effects that the model foresees, and no others."""
    run_state_machine_as_test(LedgerBesideModel, settings=settings(max_examples=80, stateful_step_count=40))
