"""What a stage prints goes to its log, never blocks it, and its end is in the report of its death."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from harness import HANG_S, Events, data_of, pid_of, pipeline_config, stage
from troublesome_engines import PRINTS

from supervisor import Pipeline, StageDeathReport

LAST_LINES = {
    "megabytes without a newline": ["x" * 65536],
    "junk": ["the end"],
    "a child's": ["to output", "to errors"],
    "progress": [f"progress {number}" for number in range(980, 1000)],
    "closed": ["closing"],
    "surrogates": ["a\\ud800b"],
}


def die_after(events: Events, *prints: str) -> StageDeathReport:
    """Let a stage print, work, and be killed; the stage is fine until then."""
    with Pipeline(pipeline_config(stage("printer", "troublesome_engines:Printer"))) as pipeline:
        for name in prints:
            pipeline.utility("printer", name, timeout_s=HANG_S)
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
        os.kill(pid_of(pipeline, "printer"), signal.SIGKILL)
        events.wait("stage_died")
    assert pipeline.died is not None
    return pipeline.died


@pytest.mark.parametrize("what", PRINTS)
def test_prints_end_in_the_report(events: Events, what: str) -> None:
    """A stage prints whatever it likes and works on; after its death the last lines are in the report."""
    report = die_after(events, what)
    assert report.log_tail[-len(LAST_LINES[what]) :] == LAST_LINES[what]
    assert len(report.log_tail) <= 20
    path = Path(report.log_path or "")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_bytes()


def test_log_is_removed_after_an_end_in_order() -> None:
    """A stage that printed much and ended when it was asked to leaves no directory."""
    with Pipeline(pipeline_config(stage("printer", "troublesome_engines:Printer"))) as pipeline:
        pipeline.utility("printer", "megabytes without a newline", timeout_s=HANG_S)
        (log,) = [proc.log for proc in pipeline._core.manager.procs]
        assert log.stat().st_size == 20_000_000
    assert not log.parent.exists()


def test_logs_of_the_others_are_kept_too(events: Events) -> None:
    """After a death the directory holds the logs of every stage, and nothing else."""
    with Pipeline(pipeline_config(stage("printer", "troublesome_engines:Printer"), stage("other"))) as pipeline:
        os.kill(pid_of(pipeline, "other"), signal.SIGKILL)
        events.wait("stage_died")
    assert pipeline.died is not None
    directory = Path(pipeline.died.log_path or "").parent
    assert sorted(path.name for path in directory.iterdir()) == ["other-0.log", "printer-0.log"]
