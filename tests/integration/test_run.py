"""`Pipeline.run`: requests in lazily, results and outcomes out, and nothing left waiting when it ends."""

from __future__ import annotations

import os
import queue
import signal
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, data_of, ended, fault, in_thread, is_asleep, pid_of, pipeline_config, stage, until

from supervisor import Outcome, Pipeline, Request, Result, StageDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator

END = object()


class Source:
    """An iterable of requests that blocks until the test puts the next one in."""

    def __init__(self, *requests: Request) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.taken = 0
        self.closed = 0
        for request in requests:
            self.queue.put(request)

    def __iter__(self) -> Iterator[Request]:
        while (request := self.queue.get()) is not END:
            self.taken += 1
            yield request

    def close(self) -> None:
        self.closed += 1
        self.queue.put(END)


def outcomes_of(events: list[Result | Outcome]) -> dict[str, str]:
    """Each request's outcome; every request has at most one, and nothing comes after it."""
    outcomes: dict[str, str] = {}
    for event in events:
        assert event.id not in outcomes, f"{event} came after the outcome"
        if isinstance(event, Outcome):
            outcomes[event.id] = event.outcome
    return outcomes


def test_results_go_on_while_the_source_blocks() -> None:
    """Results and the outcome of a request come while the next one is still being waited for."""
    source = Source(Request("r1", "a"))
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        events = pipeline.run(source)
        assert Result("r1", "only", [0], "a") == next(events)
        assert Outcome("r1", "finished", None) == next(events)
        source.queue.put(Request("r2", "b"))
        assert Result("r2", "only", [0], "b") == next(events)
        assert Outcome("r2", "finished", None) == next(events)
        source.queue.put(END)
        assert list(events) == []
    assert source.closed == 1


def test_source_that_ends_late() -> None:
    """A source that ends when everything has been answered already ends the run, which waits in a poll by then."""
    source = Source(Request("r1", "a"))
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        events = pipeline.run(source)
        assert len([next(events), next(events)]) == 2
        rest: list[Result | Outcome] = []
        reader = in_thread(lambda: rest.extend(events))
        until(lambda: is_asleep(reader), "the reader waits")
        source.queue.put(END)
        assert ended(reader)
    assert rest == []


def test_empty_source() -> None:
    """Without a request there is nothing."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        assert list(pipeline.run([])) == []


def test_requests_are_taken_lazily() -> None:
    """No more requests are taken than may be under way, and one that waits to be."""
    source = Source(
        *(Request(f"r{number}", [number]) for number in range(10)),
    )
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=2)) as pipeline:
        events = pipeline.run(source)
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        next(events)
        assert source.taken <= 5
        pipeline.utility("gate", "open", (100,), timeout_s=HANG_S)
        source.queue.put(END)
        rest = list(events)
    assert len(outcomes_of(rest)) == 10


def test_outcomes_come_before_the_exception_of_a_generator() -> None:
    """What a source gave before it raised still has its outcome."""

    def source() -> Iterator[Request]:
        yield Request("r1", "a")
        raise LookupError("no more")

    seen: list[Result | Outcome] = []
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        events = pipeline.run(source())
        with pytest.raises(LookupError, match="no more"):
            seen.extend(events)
        assert data_of(pipeline.submit("b").result(HANG_S)) == ["b"]
    assert outcomes_of(seen) == {"r1": "finished"}


def test_leaving_early() -> None:
    """A loop that breaks off aborts what is under way and closes the source."""
    source = Source(*(Request(f"r{number}", [number, number]) for number in range(5)))
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        events = pipeline.run(source)
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        next(events)
        events.close()  # type: ignore[attr-defined]
        assert source.closed == 1
        assert pipeline.in_flight == 0
        pipeline.utility("gate", "open", (9,), timeout_s=HANG_S)
        assert data_of(pipeline.submit(["x"]).result(HANG_S)) == ["x"]


def test_leaving_while_the_feeder_waits_for_a_slot() -> None:
    """A request that was waiting to be sent off when the loop broke off is not left under way."""
    source = Source(*(Request(f"r{number}", [number, number]) for number in range(5)))
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=1)) as pipeline:
        events = pipeline.run(source)
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        next(events)
        events.close()  # type: ignore[attr-defined]
        assert pipeline.in_flight == 0


def test_bad_requests_fail_alone() -> None:
    """An id that is alive and data that cannot be sent fail that request, and the others go on."""
    requests = [Request("same", ["a"]), Request("same", ["b"]), Request("odd", object()), Request(None, ["c"])]
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        events = pipeline.run(requests)
        seen = [next(events), next(events)]
        pipeline.utility("gate", "open", (9,), timeout_s=HANG_S)
        seen += list(events)
    outcomes = [event for event in seen if isinstance(event, Outcome)]
    assert [outcome.outcome for outcome in outcomes] == ["failed", "failed", "finished", "finished"]
    assert [outcome.id for outcome in outcomes[:2]] == ["same", "odd"]
    assert "still alive" in (outcomes[0].error or "")
    assert sorted(event.data for event in seen if isinstance(event, Result)) == ["a", "c"]


def test_refused_request() -> None:
    """A request that its engine refuses fails with the engine's words, and the stage lives."""
    with Pipeline(pipeline_config(fault("add", "raise_request_error", nth=2))) as pipeline:
        events = list(pipeline.run([Request("r1", "a"), Request("r2", "b"), Request("r3", "c")]))
        assert pipeline.died is None
    assert outcomes_of(events) == {"r1": "finished", "r2": "failed", "r3": "finished"}
    (error,) = [event.error for event in events if isinstance(event, Outcome) and event.outcome == "failed"]
    assert "stage 'faulty': no thanks in add" in (error or "")


@pytest.mark.parametrize("number", range(5))
def test_death_fails_what_is_under_way(number: int) -> None:
    """When a stage dies, each request under way has a failed outcome, then StageDiedError ends the run."""
    source = Source(*(Request(f"r{number}", ["a", "b"]) for number in range(number)))
    with Pipeline(pipeline_config(stage("gate", "Gate"), stage("echo"))) as pipeline:
        events = pipeline.run(source)
        for _ in range(number):
            pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        seen = [next(events) for _ in range(number)]
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        with pytest.raises(StageDiedError) as caught:
            seen.extend(events)
        report = caught.value.report
        assert pipeline.died is report
        late = pipeline.run([Request("late", "x")])
        with pytest.raises(StageDiedError):
            list(late)
    outcomes = outcomes_of(seen)
    assert set(report.requests_lost) == {lost for lost, outcome in outcomes.items() if outcome == "failed"}
    assert number == len(outcomes)
    assert source.closed == 1


def test_no_outcome_is_lost_when_a_stage_dies_under_load() -> None:
    """However the death meets the feeder, each request that was accepted has its one outcome."""
    for nth in range(1, 60, 6):
        seen: list[Result | Outcome] = []
        with Pipeline(pipeline_config(fault("step", "sigkill", nth=nth), max_in_flight=4)) as pipeline:
            events = pipeline.run(Request(f"r{number}", number) for number in range(1000))
            with pytest.raises(StageDiedError) as caught:
                seen.extend(events)
        failed = {event.id for event in seen if isinstance(event, Outcome) and event.outcome == "failed"}
        assert set(caught.value.report.requests_lost) == failed
        assert {event.id for event in seen} == set(outcomes_of(seen))


def test_two_runs_at_once() -> None:
    """Two runs share the pipeline, each one with its own events."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        one = pipeline.run([Request(f"a{number}", number) for number in range(20)])
        two = pipeline.run([Request(f"b{number}", number) for number in range(20)])
        first, second = list(one), list(two)
    assert {f"a{number}" for number in range(20)} == set(outcomes_of(first))
    assert {f"b{number}" for number in range(20)} == set(outcomes_of(second))
