"""A stage may die at any point of a request's life, or stand still: each request ends once, nobody waits in vain."""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness import (
    HANG_S,
    Announcements,
    Events,
    data_of,
    ended,
    fault,
    in_thread,
    is_asleep,
    pid_of,
    pipeline_config,
    stage,
    until,
)

from supervisor import Pipeline, RequestAbortedError, RequestFailedError, UtilityError

SOON_S = 1.0
"""Within this time of a death all that waited for it has failed."""


POINTS = {"queued": (0, 2, 1), "between": (1, 2, 2), "in the second": (2, 2, 3)}
"""How many steps the first stage takes, and how many requests each stage has been given then, one before included."""


@pytest.mark.parametrize("victim", ["first", "second"])
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point(point: str, victim: str) -> None:
    """Wherever a request is, the death of either stage ends it as failed, and what was finished stays finished."""
    steps, at_first, at_second = POINTS[point]
    with Pipeline(pipeline_config(stage("first", "Gate"), stage("second", "Gate"))) as pipeline:
        done = pipeline.submit(["done"], "done")
        open_gate(pipeline, "first", 1)
        open_gate(pipeline, "second", 1)
        until(lambda: done.outcome == "finished", "a request is finished whose result nobody has read")
        handle = pipeline.submit(["x", "y"], "r1")
        open_gate(pipeline, "first", steps)
        until(lambda: given(pipeline, "first") == at_first, "it is in the first stage")
        until(lambda: given(pipeline, "second") == at_second, "its pieces are in the second stage")
        began = time.monotonic()
        os.kill(pid_of(pipeline, victim), signal.SIGKILL)
        with pytest.raises(RequestFailedError, match=repr(victim)):
            handle.result(HANG_S)
        assert time.monotonic() - began < SOON_S
        handle.abort()
        assert handle.outcome == "failed"
        assert data_of(done.result(HANG_S)) == ["done"]
    assert pipeline.died is not None
    assert pipeline.died.requests_lost == ["r1"]


def open_gate(pipeline: Pipeline, name: str, steps: int) -> None:
    """Permit a stage so many steps."""
    pipeline.utility(name, "open", (steps,), timeout_s=HANG_S)


def given(pipeline: Pipeline, name: str) -> int:
    """How many requests a stage has been given."""
    return len(pipeline.utility(name, "added", timeout_s=HANG_S))


def test_all_that_waits_hears_of_a_death(announcements: Announcements) -> None:
    """Waits for results and for answers, of the stage that dies and of others, fail within a second of the death."""
    config = pipeline_config(stage("gate", "Gate"), fault("utility", "block", announce=announcements.path))
    seen: list[str] = []
    with Pipeline(config) as pipeline:
        handle = pipeline.submit(["x"])

        def wait() -> None:
            with pytest.raises(RequestFailedError):
                handle.result(HANG_S)
            seen.append("result")

        def call() -> None:
            with pytest.raises(UtilityError, match="'gate'"):
                pipeline.utility("faulty", "echo", timeout_s=HANG_S)
            seen.append("utility")

        callers = [in_thread(call), *(in_thread(wait) for _ in range(3))]
        assert announcements.wait().startswith("utility")
        until(lambda: all(is_asleep(caller) for caller in callers), "all of them wait")
        began = time.monotonic()
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        assert all(ended(caller) for caller in callers)
        assert time.monotonic() - began < SOON_S
        os.kill(pid_of(pipeline, "faulty"), signal.SIGKILL)  # it would not end by itself
    assert sorted(seen) == ["result"] * 3 + ["utility"]


MEGABYTE = bytes(1 << 20)


def test_stopped_stage_whose_socket_is_full(events: Events) -> None:
    """It blocks no submit, no abort, no other request, no call to another stage and not the close."""
    config = pipeline_config(stage("first", "Split"), stage("second"), max_in_flight=200, shutdown_timeout_s=0.5)
    with Pipeline(config) as pipeline:
        os.kill(pid_of(pipeline, "second"), signal.SIGSTOP)
        handles = [pipeline.submit([MEGABYTE]) for _ in range(100)]
        assert pipeline.submit([]).result(HANG_S) == []
        assert pipeline.utility("first", "echo", (1,), timeout_s=HANG_S) == [1]
        with pytest.raises(TimeoutError, match="timeout_s"):
            pipeline.utility("second", "echo", timeout_s=0.1)
        with pytest.raises(TimeoutError, match="lives on"):
            handles[0].result(0.1)
        handles[1].abort()
        with pytest.raises(RequestAbortedError):
            handles[1].result(HANG_S)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5 + 2
    assert {handle.outcome for handle in handles} == {"aborted"}
    assert [event["stage"] for event in events.of("stage_killed")] == ["second"]


def test_stopped_stage_that_is_continued() -> None:
    """A stage that stood still takes up all that has gathered; aborted requests give nothing any more."""
    with Pipeline(pipeline_config(stage("only"), max_in_flight=200)) as pipeline:
        os.kill(pid_of(pipeline, "only"), signal.SIGSTOP)
        handles = [pipeline.submit([number, MEGABYTE]) for number in range(50)]
        for handle in handles[::2]:
            handle.abort()
            handle.abort()
        os.kill(pid_of(pipeline, "only"), signal.SIGCONT)
        results = [data_of(handle.result(HANG_S))[0][0] for handle in handles[1::2]]
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
        aborted = pipeline.utility("only", "aborted", timeout_s=HANG_S)
    assert results == list(range(1, 50, 2))
    # Each abort went to the engine once, however often it was asked for.
    assert len(aborted) == len(set(aborted)) == 25


def test_killed_while_it_is_stopped() -> None:
    """A stage that is killed while it stands still, with much unsent, fails all its requests within a second."""
    with Pipeline(pipeline_config(stage("only"), max_in_flight=200)) as pipeline:
        os.kill(pid_of(pipeline, "only"), signal.SIGSTOP)
        handles = [pipeline.submit(MEGABYTE) for _ in range(50)]
        began = time.monotonic()
        os.kill(pid_of(pipeline, "only"), signal.SIGKILL)
        for handle in handles:
            with pytest.raises(RequestFailedError):
                handle.result(HANG_S)
        assert time.monotonic() - began < SOON_S
    assert pipeline.died is not None
    assert pipeline.died.requests_lost == [handle.id for handle in handles]


def test_refusal_in_the_second_stage_fails_alone() -> None:
    """A piece that the second stage refuses fails its own request, and the others go on."""
    config = pipeline_config(stage("first", "Split"), fault("add", "raise_request_error", nth=2))
    with Pipeline(config) as pipeline:
        assert data_of(pipeline.submit(["a"]).result(HANG_S)) == ["a"]
        with pytest.raises(RequestFailedError, match="no thanks in add") as caught:
            pipeline.submit(["b"]).result(HANG_S)
        assert caught.value.report is None
        assert data_of(pipeline.submit(["c"]).result(HANG_S)) == ["c"]
        assert pipeline.died is None
