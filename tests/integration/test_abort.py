"""Results stream before a request has ended; an aborted request gives nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness import HANG_S, data_of, ended, in_thread, pipeline_config, stage

from supervisor import Pipeline, RequestAbortedError, Result

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipeline(clean_slate: object) -> Iterator[Pipeline]:
    """Two stages; the first one gives an output whenever it is permitted to."""
    with Pipeline(pipeline_config(stage("gate", "Gate"), stage("echo"))) as opened:
        yield opened


def permit(pipeline: Pipeline, steps: int, name: str = "gate") -> None:
    pipeline.utility(name, "open", (steps,), timeout_s=HANG_S)


def test_results_come_before_the_end(pipeline: Pipeline) -> None:
    """Iteration gives each result as it comes, while the request is under way."""
    results = iter(pipeline.submit(["a", "b", "c"]))
    seen = []
    for _ in range(3):
        permit(pipeline, 1)
        seen.append(next(results).data)
        assert pipeline.in_flight <= 1
    assert seen == ["a", "b", "c"]
    assert list(results) == []


def test_two_readers_of_one_handle(pipeline: Pipeline) -> None:
    """Each iteration over a handle gives every result, also on two threads at once."""
    handle = pipeline.submit(["a", "b", "c"])
    seen: list[list[Result]] = []
    readers = [in_thread(lambda: seen.append(list(handle))) for _ in range(2)]
    permit(pipeline, 3)
    assert all(ended(reader) for reader in readers)
    assert [data_of(results) for results in seen] == [["a", "b", "c"]] * 2


def test_abort_of_a_running_request(pipeline: Pipeline) -> None:
    """Results before the abort stay, then comes RequestAbortedError, and every stage has forgotten the request."""
    handle = pipeline.submit(["a", "b", "c"], "r1")
    results = iter(handle)
    permit(pipeline, 1)
    assert next(results).data == "a"
    handle.abort()
    permit(pipeline, 5)
    with pytest.raises(RequestAbortedError, match="'r1' was aborted"):
        next(results)
    with pytest.raises(RequestAbortedError):
        handle.result(HANG_S)
    assert len(pipeline.utility("gate", "aborted", timeout_s=HANG_S)) == 1
    assert len(pipeline.utility("echo", "added", timeout_s=HANG_S)) == 1


def test_abort_of_a_queued_request(pipeline: Pipeline) -> None:
    """A request that no step has touched is dropped by its engine, and its neighbour is not."""
    aborted, neighbour = pipeline.submit(["a"]), pipeline.submit(["b"])
    aborted.abort()
    permit(pipeline, 1)
    assert data_of(neighbour.result(HANG_S)) == ["b"]
    with pytest.raises(RequestAbortedError):
        aborted.result(HANG_S)


def test_abort_reaches_later_stages() -> None:
    """A request whose pieces wait in the second stage is dropped there."""
    with Pipeline(pipeline_config(stage("split", "Split"), stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit(["a", "b"])
        while len(pipeline.utility("gate", "added", timeout_s=HANG_S)) < 2:
            pass
        handle.abort()
        assert len(pipeline.utility("gate", "aborted", timeout_s=HANG_S)) == 2
        with pytest.raises(RequestAbortedError):
            handle.result(HANG_S)


def test_abort_from_another_thread_ends_a_wait(pipeline: Pipeline) -> None:
    """An abort by one thread wakes another one that waits for the result."""
    handle = pipeline.submit(["a"])
    seen: list[str] = []

    def wait() -> None:
        try:
            handle.result()
        except RequestAbortedError:
            seen.append("aborted")

    waiter = in_thread(wait)
    handle.abort()
    assert ended(waiter)
    assert seen == ["aborted"]


def test_abort_of_a_request_that_has_ended(pipeline: Pipeline) -> None:
    """It changes nothing, also for a new request of the same id."""
    permit(pipeline, 10)
    old = pipeline.submit(["a"], "same")
    assert data_of(old.result(HANG_S)) == ["a"]
    new = pipeline.submit(["b"], "same")
    old.abort()
    old.abort()
    assert data_of(old.result(HANG_S)) == ["a"]
    assert data_of(new.result(HANG_S)) == ["b"]


def test_aborted_id_can_be_reused_at_once(pipeline: Pipeline) -> None:
    """What the old request had produced never reaches the new one of the same id."""
    for number in range(20):
        old = pipeline.submit([f"old {number}"] * 3, "same")
        permit(pipeline, 2)
        old.abort()
        new = pipeline.submit([f"new {number}"], "same")
        permit(pipeline, 3)
        assert [f"new {number}"] == data_of(new.result(HANG_S))


def test_leaving_the_block_aborts(pipeline: Pipeline) -> None:
    """What is under way when the pipeline closes ends as aborted."""
    handle = pipeline.submit(["a"])
    pipeline.close()
    with pytest.raises(RequestAbortedError):
        handle.result(HANG_S)


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_result_past_its_time(pipeline: Pipeline, timeout_s: float) -> None:
    """`result(timeout_s)` raises TimeoutError that names the knob, and the request lives on."""
    handle = pipeline.submit(["a"], "r1")
    with pytest.raises(TimeoutError, match=r"'r1'.*timeout_s"):
        handle.result(timeout_s)
    assert pipeline.in_flight == 1
    permit(pipeline, 1)
    assert data_of(handle.result(HANG_S)) == ["a"]
