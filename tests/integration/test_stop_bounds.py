"""A stop is bounded by its deadline and two seconds, whatever a stage does; what cannot be killed is named."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from harness import (
    HANG_S,
    Announcements,
    Events,
    ended,
    fault,
    in_thread,
    pid_of,
    pipeline_config,
    stage,
    until,
    watching,
)

from supervisor import Pipeline, RequestFailedError, StageProcManager

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 0.5
ROOM_S = 2.0
"""What the issue of a stop may take beyond its deadline."""

_PTRACE_SEIZE = 0x4206
_PTRACE_DETACH = 17
_PTRACE_O_TRACEEXIT = 0x40


def lingerer(how: str, announcements: Announcements, engine: str = "Lingerer") -> dict[str, object]:
    """A stage that does not end when it is asked to."""
    return stage("linger", f"troublesome_engines:{engine}", args={"how": how, "announce": announcements.path})


@pytest.mark.parametrize("how", ["thread", "exit hook", "writes", "forks", "ignores"])
def test_stage_that_lingers(events: Events, announcements: Announcements, how: str) -> None:
    """A stage that writes, forks, or hangs when it is asked to end is killed at the deadline, and all it has forked."""
    config = pipeline_config(lingerer(how, announcements), stage("fine"), shutdown_timeout_s=DEADLINE_S)
    with Pipeline(config) as pipeline:
        if how == "forks":
            leader = psutil.Process(pid_of(pipeline, "linger"))
            until(lambda: len(leader.children()) > 3, "it forks")
        pids = [pid_of(pipeline, "linger"), *_children(pid_of(pipeline, "linger"))]
        with watching(*pids) as wait_gone:
            began = time.monotonic()
            pipeline.close()
            took = time.monotonic() - began
            wait_gone()
    assert DEADLINE_S <= took < DEADLINE_S + ROOM_S
    assert [event["stage"] for event in events.of("stage_killed")] == ["linger"]
    assert events.of("stage_died") == []


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


@pytest.mark.parametrize("how", ["thread", "exit hook", "writes"])
def test_failed_stage_that_lingers(events: Events, announcements: Announcements, how: str) -> None:
    """A stage that has failed and does not end is killed at the deadline; the cause stays what it was."""
    config = pipeline_config(lingerer(how, announcements, "FatalLingerer"), shutdown_timeout_s=DEADLINE_S)
    with Pipeline(config) as pipeline:
        began = time.monotonic()
        with pytest.raises(RequestFailedError, match="a step too far") as caught:
            pipeline.submit("x").result(HANG_S)
        assert time.monotonic() - began < DEADLINE_S + ROOM_S
    report = caught.value.report
    assert report is not None
    assert (report.cause, report.signal, report.error_type) == ("fatal", "SIGKILL", "ValueError")
    assert len(events.of("stage_died")) == 1


def test_one_deadline_for_a_failed_stage_and_the_others(announcements: Announcements) -> None:
    """A stage that has failed and lingers, and one that ignores SIGTERM, take one deadline together."""
    timeout_s = 3.0
    stubborn = fault("never", "raise", name="stubborn", also="ignore_sigterm")
    config = pipeline_config(lingerer("thread", announcements, "FatalLingerer"), stubborn, shutdown_timeout_s=timeout_s)
    with Pipeline(config) as pipeline:
        pipeline.submit("x")
        # By now it has failed, and is about to hang.
        assert announcements.wait().startswith("shutdown")
        began = time.monotonic()
        pipeline.close()
        assert time.monotonic() - began < timeout_s + ROOM_S
    assert pipeline.died is not None
    assert (pipeline.died.stage, pipeline.died.cause) == ("linger", "fatal")


@contextmanager
def unkillable(pid: int) -> Iterator[None]:
    """Hold a process at its very exit, as a driver that hangs does: no signal ends it any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    release, seized = threading.Event(), threading.Event()
    outcome: list[int] = []

    def trace() -> None:
        outcome.append(libc.ptrace(_PTRACE_SEIZE, pid, None, ctypes.c_void_p(_PTRACE_O_TRACEEXIT)))
        seized.set()
        release.wait()
        # By now it stands at its exit: the tracer lets go.
        libc.ptrace(_PTRACE_DETACH, pid, None, None)

    tracer = in_thread(trace)
    assert seized.wait(HANG_S)
    try:
        if outcome != [0]:
            pytest.skip("this place permits no ptrace")
        yield
    finally:
        release.set()
        assert ended(tracer)


def test_process_that_cannot_be_killed(events: Events, logs_may_stay: None) -> None:
    """Such a process is named in the log, and the stop returns within its bound."""
    manager = StageProcManager(pipeline_config(stage("stuck"), stage("fine"), shutdown_timeout_s=DEADLINE_S))
    manager.start()
    stuck = manager.procs[0]
    try:
        with unkillable(stuck.pid):
            began = time.monotonic()
            manager.close()
            took = time.monotonic() - began
            assert not manager.run_dir.path.exists()
    finally:
        # What the manager had to leave behind.
        assert stuck.wait_end(HANG_S)
        stuck.release()
    assert took < DEADLINE_S + ROOM_S + 1
    (event,) = events.of("stage_unkillable")
    assert (event["stage"], event["pid"]) == ("stuck", stuck.pid)
    assert manager.finished_procs()["stage:fine/0"] == 0


def test_stop_while_outputs_pour_in(events: Events) -> None:
    """A stage that has megabytes of outputs to send when it is asked to end sends them and ends by itself."""
    with Pipeline(pipeline_config(stage("only"), max_in_flight=500)) as pipeline:
        for _ in range(200):
            pipeline.submit(os.urandom(1000) * 500)
    assert events.of("stage_killed") == []
    assert pipeline._core.manager.finished_procs() == {"stage:only/0": 0}
