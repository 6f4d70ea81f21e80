"""Two hundred pipelines, one after the other: what is there afterwards is what was there before.

The fixture that every test has compares descriptors, threads (zmq's own included), processes, files and shared memory
with those before the test, as sets; here the directories are compared that deaths leave for their logs.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Events, fault, pipeline_config, stage, watching

from supervisor import Pipeline, RequestFailedError, StageProcManager, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

CYCLES = 200
KILLED_AT_SPAWN = "killed-at-spawn"


def dies_while_starting(one: dict[str, Any]) -> Path:
    """A stage that does not become ready; its report tells where its log is."""
    with pytest.raises(StartupError) as caught:
        Pipeline(pipeline_config(one)).start()
    return log_dir(caught.value.report.log_path)


def dies_when_idle(signum: signal.Signals) -> Path:
    """A stage that is ended from outside while it has nothing to do; the end of the block comes upon its death."""
    with Pipeline(pipeline_config(stage("idle"))) as pipeline:
        pid = pipeline.stages[0].pid
        with watching(pid) as wait_gone:
            os.kill(pid, signum)
            wait_gone()
    assert pipeline.died is not None
    return log_dir(pipeline.died.log_path)


def dies_at_work(action: str) -> Path:
    """A stage that ends with a request in its hands."""
    with Pipeline(pipeline_config(fault("step", action))) as pipeline:
        handle = pipeline.submit(["x", bytes(100_000)])
        with pytest.raises(RequestFailedError):
            handle.result(HANG_S)
    assert pipeline.died is not None
    return log_dir(pipeline.died.log_path)


def dies_without_a_pipeline() -> Path:
    """A process that is killed while it waits for a handshake that nobody will make."""
    with StageProcManager(pipeline_config(stage("alone"))) as manager:
        pid = manager.procs[0].pid
        with watching(pid) as wait_gone:
            os.kill(pid, signal.SIGKILL)
            wait_gone()
        assert manager.finished_procs() == {"stage:alone/0": -9}
    return manager.run_dir.path


def is_closed_at_once() -> None:
    """A process that is asked to stop while it boots."""
    with StageProcManager(pipeline_config(stage("alone"))):
        pass


def is_closed_idle() -> None:
    """A pipeline that has done its work."""
    with Pipeline(pipeline_config(stage("idle"))) as pipeline:
        assert len(pipeline.submit(["x", bytes(100_000)]).result(HANG_S)) == 1


def is_closed_at_work() -> None:
    """A pipeline that is closed with a request under way."""
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        pipeline.submit(["x"])


MOMENTS: list[Callable[[], Path | None]] = [
    partial(dies_while_starting, stage(KILLED_AT_SPAWN)),
    is_closed_idle,
    partial(dies_while_starting, fault("init", "sigkill")),
    dies_without_a_pipeline,
    partial(dies_while_starting, fault("init", "raise")),
    partial(dies_when_idle, signal.SIGKILL),
    is_closed_at_once,
    partial(dies_while_starting, fault("io", "exit0")),
    partial(dies_at_work, "sigkill"),
    is_closed_at_work,
    partial(dies_when_idle, signal.SIGTERM),
    partial(dies_at_work, "raise"),
]


def log_dir(log_path: str | None) -> Path:
    assert log_path is not None
    return Path(log_path).parent


def kill_at_spawn(event: dict[str, Any]) -> None:
    if event["stage"] == KILLED_AT_SPAWN:
        os.kill(event["pid"], signal.SIGKILL)


@pytest.mark.timeout(300)
def test_many_cycles(events: Events) -> None:
    """After cycles that are killed at every moment, or closed, only the logs of those that died are left."""
    events.react("stage_spawned", kill_at_spawn)

    with ThreadPoolExecutor(2) as two_at_once:
        logs = list(two_at_once.map(lambda live: live(), islice(cycle(MOMENTS), CYCLES)))

    kept = {path for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("stages-")}
    assert {path for path in logs if path is not None} == kept
    for path in kept:
        # None in that of a stage which was killed before it could begin one.
        assert {".log"} >= {log.suffix for log in path.iterdir()}
        shutil.rmtree(path)
    alone = sum(live is dies_without_a_pipeline for live in islice(cycle(MOMENTS), CYCLES))
    assert len(kept) - alone == len(events.of("stage_died"))
