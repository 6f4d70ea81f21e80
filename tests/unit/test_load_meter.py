"""What a replica knows of its load, and when it wakes the thread that tells."""

from __future__ import annotations

from typing import Any

from stage.engine import RequestError
from stage.group_protocol import Load, NeedWave
from stage.replica import LoadMeter, MeteredEngine
from stage.waves import WaveEngine


class Hands:
    """An engine that keeps what it is given, and refuses nothing but None."""

    def __init__(self) -> None:
        self.held: list[str] = []

    @property
    def in_hand(self) -> int:
        return len(self.held)

    def has_work(self) -> bool:
        return bool(self.held)

    def add(self, request_id: str, data: Any) -> None:
        if data is None:
            raise RequestError("nothing")
        self.held.append(request_id)

    def abort(self, request_ids: list[str]) -> None:
        self.held = [held for held in self.held if held not in request_ids]

    def utility(self, name: str, args: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def step(self) -> list[Any]:
        self.held.clear()
        return []

    dummy_step = step


def metered() -> tuple[LoadMeter, MeteredEngine, list[Any]]:
    """A meter that knows of two requests, the engine that gets them, and what is emitted."""
    meter, emits = LoadMeter(7), []  # type: ignore[var-annotated]
    meter.received = 2
    return meter, MeteredEngine(Hands(), meter, emits.append), emits


def test_load_of_a_request() -> None:
    """It waits, is in hand, and has gone; what has not changed is no news."""
    meter, engine, _ = metered()
    assert meter.news() == Load(7, 2, 0)
    engine.add("r1", 1)
    engine.has_work()
    assert meter.news() == Load(7, 1, 1)
    engine.add("r2", 1)
    engine.step()
    engine.has_work()
    assert meter.news() == Load(7, 0, 0)
    engine.has_work()
    assert meter.news() is None


def test_refused_and_aborted_requests_are_no_load() -> None:
    """What the engine has refused, or forgets, neither waits nor is in hand."""
    meter, engine, _ = metered()
    try:
        engine.add("r1", None)
    except RequestError:
        engine.add("r2", 1)
    engine.abort(["r2"])
    engine.has_work()
    assert meter.news() is None


def test_wakes_once_until_it_has_been_looked_at() -> None:
    """Whoever changes the load wakes the thread that tells, unless it is about to look anyway."""
    meter, engine, emits = metered()
    for request_id in ("r1", "r2"):
        engine.add(request_id, 1)
        engine.has_work()
    assert emits == [("load",)]
    assert not meter.owe()
    meter.news()
    assert meter.owe()
    meter.news()
    engine.has_work()
    assert emits == [("load",)]
    engine.step()
    engine.has_work()
    assert emits == [("load",)] * 2


def test_load_of_a_replica_that_waits_for_the_others() -> None:
    """A lockstep replica that may not step notes what it is given, too."""
    meter, engine, _ = metered()
    told: list[Any] = []
    waves = WaveEngine(engine, 7, told.append)
    for running, request_id in enumerate(["r1", "r2"], 1):
        waves.add(request_id, 1)
        assert not waves.has_work()
        assert meter.news() == Load(7, 2 - running, running)
    assert told == [NeedWave(7, 0)]
