"""A service manager tells every process at once to end: what ends in order then was asked to, and is no death."""

from __future__ import annotations

import os
import signal

import pytest
from harness import HANG_S, Events, pid_of, pipeline_config, readable, stage

from supervisor import Pipeline, RequestAbortedError, RequestFailedError, StageProcManager


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("first", ["supervisor", "stage"])
def test_stage_that_ends_while_a_stop_is_asked_for(events: Events, first: str, signum: signal.Signals) -> None:
    """A stage that ends in order when the supervisor is asked to stop is no death; one that is killed then is."""
    stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    with Pipeline(pipeline_config(stage("gate", "Gate"), stage("other")), stop_fd=stop_fd) as pipeline:
        handle = pipeline.submit(["x"])
        pid = pid_of(pipeline, "gate")
        pidfd = os.pidfd_open(pid)
        if first == "supervisor":
            # Neither the request to stop nor the end can be taken in before both are there.
            with pipeline._core.switchboard.lock:
                os.eventfd_write(stop_fd, 1)
                os.kill(pid, signum)
                assert readable(pidfd)
        else:
            os.kill(pid, signum)
            assert readable(pidfd)
            os.eventfd_write(stop_fd, 1)
        os.close(pidfd)
        with pytest.raises((RequestAbortedError, RequestFailedError)):
            handle.result(HANG_S)
    os.close(stop_fd)
    assert [event["stage"] for event in events.of("stage_died")] == (["gate"] if signum == signal.SIGKILL else [])


def test_death_that_nobody_has_looked_at(logs_may_stay: None) -> None:
    """A manager keeps the logs of a process that died, also if it is closed before anybody has asked."""
    manager = StageProcManager(pipeline_config(stage("only")))
    manager.start()
    (proc,) = manager.procs
    os.kill(proc.pid, signal.SIGKILL)
    assert readable(proc.pidfd)
    manager.close()
    assert [path.name for path in manager.run_dir.path.iterdir()] in ([], ["only-0.log"])
    assert manager.run_dir.path.exists()
