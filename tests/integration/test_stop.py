"""The end of a pipeline: in order, in bounded time, from any thread, and with nothing left running."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest
from harness import (
    HANG_S,
    Announcements,
    Events,
    data_of,
    ended,
    fault,
    in_thread,
    pid_of,
    pipeline_config,
    stage,
    watching,
)

from supervisor import (
    Pipeline,
    Request,
    RequestAbortedError,
    RequestFailedError,
    UtilityError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def stubborn(name: str = "stubborn") -> dict[str, object]:
    """A stage that ignores SIGTERM."""
    return fault("never", "raise", name=name, also="ignore_sigterm")


def test_stages_end_in_order(events: Events) -> None:
    """Every stage ends by itself with status 0, and its log is empty and gone."""
    with Pipeline(pipeline_config(stage("a"), stage("b"))) as pipeline:
        handles = [pipeline.submit(number) for number in range(20)]
        assert [[number] for number in range(20)] == [data_of(handle.result(HANG_S)) for handle in handles]
        manager = pipeline._core.manager
    assert manager.finished_procs() == {"stage:a/0": 0, "stage:b/0": 0}
    assert events.of("stage_killed") == []
    assert events.of("stage_died") == []
    assert not manager.run_dir.path.exists()


def test_close_twice() -> None:
    """A second close, and one on another thread, do nothing."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    pipeline.start()
    pipeline.close()
    pipeline.close()
    assert ended(in_thread(pipeline.close))


def test_close_on_many_threads() -> None:
    """Of several closes at once each returns when the pipeline is down."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    pipeline.start()
    with watching(pid_of(pipeline, "only")) as wait_gone:
        closers = [in_thread(pipeline.close) for _ in range(4)]
        assert all(ended(closer) for closer in closers)
        wait_gone()


def test_exception_in_the_block() -> None:
    """An exception in the `with` block comes out unchanged, and the stages are down."""
    error = LookupError("mine")
    pipeline = Pipeline(pipeline_config(stage("gate", "Gate")))

    def use() -> None:
        with pipeline:
            pipeline.submit("x")
            raise error

    with pytest.raises(LookupError) as caught:
        use()
    assert caught.value is error
    assert pipeline.in_flight == 0
    assert pipeline._core.manager.finished_procs() == {"stage:gate/0": 0}


def test_leaving_the_block_after_a_death() -> None:
    """Leaving the block raises nothing for a death."""
    with Pipeline(pipeline_config(fault("step", "sigkill"))) as pipeline, pytest.raises(RequestFailedError):
        pipeline.submit("x").result(HANG_S)
    assert pipeline.died is not None


def test_dropped_pipeline() -> None:
    """A pipeline that nobody holds any more takes its stages down."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    pipeline.start()
    gone = weakref.ref(pipeline)
    with watching(pid_of(pipeline, "only")) as wait_gone:
        del pipeline
        gc.collect()
        assert gone() is None
        wait_gone()


def test_dropped_pipeline_in_a_cycle() -> None:
    """So does one that only a cycle holds, whichever thread happens to collect it."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    pipeline.start()
    pipeline.itself = pipeline  # type: ignore[attr-defined]
    with watching(pid_of(pipeline, "only")) as wait_gone:
        del pipeline
        assert ended(in_thread(gc.collect))
        wait_gone()


def test_waiting_threads_hear_of_the_close() -> None:
    """Threads that wait for results, and one in `run` that waits for a request, end when the pipeline closes."""
    never = threading.Event()

    def source() -> Iterator[Request]:
        never.wait()
        yield Request("late", "x")

    seen: list[object] = []
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit("x", "r1")

        def wait() -> None:
            with pytest.raises(RequestAbortedError):
                handle.result()
            seen.append("aborted")

        waiters = [in_thread(wait) for _ in range(3)]
        runner = in_thread(lambda: seen.append(list(pipeline.run(source()))))
    assert all(ended(waiter) for waiter in waiters)
    never.set()
    assert ended(runner)
    assert seen.count("aborted") == 3
    assert [] in seen


def test_utility_call_hears_of_the_close() -> None:
    """A utility call that is under way raises UtilityError when the pipeline closes."""
    with Pipeline(pipeline_config(fault("utility", "block"), shutdown_timeout_s=0.2)) as pipeline:
        seen: list[str] = []

        def call() -> None:
            with pytest.raises(UtilityError) as caught:
                pipeline.utility("faulty", "echo", timeout_s=HANG_S)
            seen.append(str(caught.value))

        caller = in_thread(call)
    assert ended(caller)
    assert "closed" in seen[0]


def test_stubborn_stage_is_killed(events: Events) -> None:
    """A stage that ignores SIGTERM is killed after `shutdown_timeout_s`, not before."""
    with Pipeline(pipeline_config(stubborn(), stage("fine"), shutdown_timeout_s=0.5)) as pipeline:
        began = time.monotonic()
        pipeline.close()
        assert 0.5 <= time.monotonic() - began < HANG_S
    assert [event["stage"] for event in events.of("stage_killed")] == ["stubborn"]
    assert events.of("stage_died") == []


@pytest.mark.parametrize("action", ["sigstop", "block"])
def test_stage_that_does_not_move_is_killed(events: Events, announcements: Announcements, action: str) -> None:
    """A stage that is stopped, or whose step never returns, does not keep the pipeline from ending."""
    config = pipeline_config(fault("step", action, announce=announcements.path), shutdown_timeout_s=0.3)
    with Pipeline(config) as pipeline:
        handle = pipeline.submit("x")
        announcements.wait()
    assert [event["stage"] for event in events.of("stage_killed")] == ["faulty"]
    with pytest.raises(RequestAbortedError):
        handle.result(HANG_S)


def test_many_stubborn_stages_share_one_deadline(events: Events) -> None:
    """Eight stages that ignore SIGTERM take one `shutdown_timeout_s` together."""
    timeout_s = 2
    with Pipeline(pipeline_config(*(stubborn(f"s{n}") for n in range(8)), shutdown_timeout_s=timeout_s)) as pipeline:
        began = time.monotonic()
        pipeline.close()
        assert time.monotonic() - began < 2 * timeout_s
    assert len(events.of("stage_killed")) == 8


def test_idle_pipeline_uses_no_cpu(announcements: Announcements) -> None:
    """While nothing happens, neither the supervisor nor a stage is busy: far below what spinning would take."""
    with Pipeline(pipeline_config(stage("a"), stage("b"))) as pipeline:
        pipeline.submit("x").result(HANG_S)
        pids = [os.getpid(), *(info.pid for info in pipeline.stages)]
        before = [cpu_ticks(pid) for pid in pids]
        assert not threading.Event().wait(1.0)
        after = [cpu_ticks(pid) for pid in pids]
    # A tick is 10 ms; one thread that spins would take a hundred.
    assert all(late - early <= 10 for early, late in zip(before, after, strict=True))


def cpu_ticks(pid: int) -> int:
    """The processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
