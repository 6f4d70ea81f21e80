"""Bugs that were mended once, seen from the program that holds the pipeline: its calls, its threads, its signals."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from harness import HANG_S, Events, data_of, ended, in_thread, pid_of, pipeline_config, stage, until, watching

from supervisor import Outcome, Pipeline, Request, StageProcManager, undertaker
from supervisor.monitor import Monitor
from supervisor.outbox import Outbox
from supervisor.run import BACKLOG
from supervisor.turns import Turns, Waitable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Flag(Waitable):
    """Something to wait for."""

    def __init__(self) -> None:
        self.tokens = ()
        self.up = False


def test_change_right_before_the_poll() -> None:
    """A change by another thread between a leader's last look and its poll is not lost."""
    flag, looks = Flag(), []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        lock, outbox = threading.Lock(), Outbox(router)
        monitor = Monitor([], {}, lambda *_: False, lambda _: None, None, lambda _: None)
        turns = Turns(monitor, outbox, lock)

        def change() -> None:
            with lock:
                flag.up = True
                flag.wake()
                outbox.ring()

        def is_up() -> bool:
            seen = flag.up
            looks.append(seen)
            if len(looks) == 2:  # the first one is before the turn is taken
                assert ended(in_thread(change))
            return seen

        waiter = in_thread(lambda: turns.wait(flag, is_up))
        assert ended(waiter)
        monitor.close()
    assert looks[:2] == [False, False]


@pytest.mark.parametrize(
    ("request_id", "data"),
    [
        pytest.param(5, "x", id="id is no str"),
        pytest.param("\ud800", "x", id="id has a lone surrogate"),
        pytest.param("bad", object(), id="object"),
        pytest.param("bad", memoryview(b"abcdef")[::2], id="memoryview with gaps"),
        pytest.param("bad", msgspec.Raw(b"\x01"), id="Raw"),
        pytest.param("bad", "\ud800", id="text with a lone surrogate"),
    ],
)
def test_run_with_a_request_that_cannot_be_sent(request_id: Any, data: Any) -> None:
    """In `run` an id or data that cannot be sent fails that request alone, and the run ends."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        events = list(pipeline.run([Request(request_id, data), Request("good", "x")]))
    bad, good = (event for event in events if isinstance(event, Outcome))
    assert (bad.id, bad.outcome) == (str(request_id), "failed")
    assert bad.error
    assert Outcome("good", "finished", None) == good


def test_run_with_something_else_than_a_request() -> None:
    """An element of the source that is no Request raises TypeError out of the run."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        with pytest.raises(TypeError, match=r"run takes Request objects.* not 'r1'"):
            list(pipeline.run(["r1"]))  # type: ignore[list-item]
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]


@pytest.mark.parametrize(("name", "error"), [(5, TypeError), ("\ud800", ValueError)])
def test_utility_name_that_cannot_be_sent(name: Any, error: type[Exception]) -> None:
    """A utility's name that is no valid text raises at once, and what has been submitted right before goes on."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        handles = [pipeline.submit(number) for number in range(20)]
        with pytest.raises(error):
            pipeline.utility("only", name, timeout_s=HANG_S)
        assert [data_of(handle.result(HANG_S)) for handle in handles] == [[number] for number in range(20)]
        assert pipeline.utility("only", "echo", ("y",), timeout_s=HANG_S) == ["y"]


def test_slow_reader_holds_up_the_source() -> None:
    """A run whose results are not read takes no more requests than fill its backlog."""
    taken = []

    def source() -> Iterator[Request]:
        for number in range(1000):
            taken.append(number)
            yield Request(None, number)

    backlog = 4 + BACKLOG
    with Pipeline(pipeline_config(stage("only"), max_in_flight=1)) as pipeline:
        events = pipeline.run(source())
        next(events)
        # A request makes two events, its result and its outcome.
        until(lambda: 2 * len(taken) >= backlog, "the backlog is full")
        for _ in range(50):
            # In the time of each call a feeder that does not wait would get a request answered.
            pipeline.utility("only", "echo", timeout_s=HANG_S)
        assert 2 * len(taken) <= backlog + 4
        assert len(list(events)) == 2 * 1000 - 1


def test_collected_under_the_lock() -> None:
    """A pipeline in a cycle that is collected while its lock is held stops its stages all the same."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    pipeline.start()
    pipeline.cycle = pipeline  # type: ignore[attr-defined]
    lock, held = pipeline._core.switchboard.lock, [pipeline]

    def drop() -> None:
        with lock:
            held.clear()
            gc.collect()

    with watching(pid_of(pipeline, "only")) as wait_gone:
        del pipeline
        assert ended(in_thread(drop))
        wait_gone()


@pytest.mark.parametrize("holder", [Pipeline, StageProcManager])
def test_interrupt_during_the_close(events: Events, holder: type[Pipeline | StageProcManager]) -> None:
    """A KeyboardInterrupt in the middle of the close comes after it: no process and no directory is left."""
    events.react("stage_killed", lambda _: signal.raise_signal(signal.SIGINT))
    opened = holder(pipeline_config(stage("only"), shutdown_timeout_s=0.1))
    opened.start()
    pid = events.wait("stage_spawned")["pid"]
    with watching(pid) as wait_gone:
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(KeyboardInterrupt):
            opened.close()
        wait_gone()
    assert list(Path(tempfile.gettempdir()).glob("stages-*")) == []


def test_log_handler_that_closes(events: Events) -> None:
    """A log handler may close the pipeline when it hears of a death."""
    with Pipeline(pipeline_config(stage("a"), stage("b"))) as pipeline:
        events.react("stage_died", lambda _: pipeline.close())
        with watching(pid_of(pipeline, "b")) as wait_gone:
            os.kill(pid_of(pipeline, "a"), signal.SIGKILL)
            events.wait("pipeline_stopped")
            wait_gone()
        until(lambda: "pipeline-watch" not in {thread.name for thread in threading.enumerate()}, "its thread ends")
    assert pipeline.died is not None
    assert (pipeline.died.stage, pipeline.died.signal) == ("a", "SIGKILL")
    assert events.of("pipeline_failed") == []


def test_death_without_a_run_directory(events: Events) -> None:
    """A death is reported though somebody has removed the run directory meanwhile."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        (directory,) = Path(tempfile.gettempdir()).glob("stages-*")
        shutil.rmtree(directory)
        os.kill(pid_of(pipeline, "only"), signal.SIGKILL)
        events.wait("stage_died")
    assert pipeline.died is not None
    assert (pipeline.died.phase, pipeline.died.signal) == ("ready", "SIGKILL")


def test_closed_pipeline_has_nothing_left_to_do() -> None:
    """A pipeline that is closed starts no thread when it is collected."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        pass
    assert pipeline._finalizer is not None
    assert not pipeline._finalizer.alive


@pytest.mark.usefixtures("logs_may_stay")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_death_that_cannot_be_examined(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours in the middle of a death keeps no stage from being stopped."""

    def fail(*_: object) -> None:
        raise OSError("no file can be read any more")

    monkeypatch.setattr(undertaker, "examine", fail)
    pipeline = Pipeline(pipeline_config(stage("gate", "Gate"), stage("other")))
    pipeline.start()
    pids = [info.pid for info in pipeline.stages]
    with watching(*pids) as wait_gone:
        os.kill(pids[0], signal.SIGKILL)
        events.wait("pipeline_failed")
        with pytest.raises(OSError, match="no file can be read"):
            pipeline.close()
        wait_gone()
