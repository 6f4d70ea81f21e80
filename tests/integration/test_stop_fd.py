"""`stop_fd`: how a signal handler asks a pipeline to stop."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from harness import HANG_S, Events, ended, fault, in_thread, pipeline_config, stage

from supervisor import Outcome, Pipeline, Request, RequestAbortedError, Result, StopRequestedError, teardown
from supervisor.teardown import StopRequests

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stop_fd(clean_slate: object) -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def test_stop_fd_ends_requests_as_aborted(stop_fd: int) -> None:
    """A write to `stop_fd` ends what is under way as aborted, and `run` returns though its source blocks."""
    never = threading.Event()

    def source() -> Iterator[Request]:
        yield Request("r1", ["a", "b"])
        never.wait()

    with Pipeline(pipeline_config(stage("gate", "Gate")), stop_fd=stop_fd) as pipeline:
        events = pipeline.run(source())
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        assert Result("r1", "gate", [0], "a") == next(events)
        os.eventfd_write(stop_fd, 1)
        assert Outcome("r1", "aborted", None) == next(events)
        never.set()
        assert list(events) == []
        with pytest.raises(RuntimeError, match="asked to stop"):
            pipeline.submit("more")


def test_stop_fd_while_nothing_is_under_way(stop_fd: int) -> None:
    """A write to `stop_fd` ends a `run` that waits for its first request."""
    never = threading.Event()

    def source() -> Iterator[Request]:
        never.wait()
        yield Request("late", "x")

    with Pipeline(pipeline_config(stage("only")), stop_fd=stop_fd) as pipeline:
        seen: list[object] = []
        runner = in_thread(lambda: seen.append(list(pipeline.run(source()))))
        os.eventfd_write(stop_fd, 1)
        assert ended(runner)
        never.set()
    assert seen == [[]]


def test_second_stop_is_immediate(events: Events, stop_fd: int) -> None:
    """A second write to `stop_fd` makes the stop that follows kill at once."""
    with Pipeline(
        pipeline_config(fault("never", "raise", also="ignore_sigterm"), shutdown_timeout_s=HANG_S * 10), stop_fd=stop_fd
    ) as pipeline:
        handle = pipeline.submit(list(range(1_000_000)))
        os.eventfd_write(stop_fd, 2)
        with pytest.raises(RequestAbortedError):
            handle.result(HANG_S)
        began = time.monotonic()
    assert time.monotonic() - began < HANG_S
    assert [event["stage"] for event in events.of("stage_killed")] == ["faulty"]


def test_stop_fd_before_every_stage_is_ready(events: Events, stop_fd: int) -> None:
    """A write to `stop_fd` during the start raises StopRequestedError, and the stages are down."""
    events.react("stage_ready", lambda _: os.eventfd_write(stop_fd, 1))
    config = pipeline_config(stage("fine"), fault("init", "block"))
    with pytest.raises(StopRequestedError), Pipeline(config, stop_fd=stop_fd):
        pytest.fail("it became ready")
    assert events.of("stage_died") == []


def test_somebody_else_reads_the_request(monkeypatch: pytest.MonkeyPatch, stop_fd: int) -> None:
    """Of two pipelines with one descriptor, the one that comes too late to read it goes on."""
    stops = StopRequests(stop_fd)
    monkeypatch.setattr(teardown, "wait_readable", lambda fds, _timeout_s: set(fds))
    stops.read()
    monkeypatch.undo()
    assert not stops.asked_within(0)
    stops.close()
