"""A stage that dies or does not start gives status 3 and a report that a person understands, once."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from cli_command import COUNTDOWN, Command, lines, wait_until, write_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("logs_may_stay")


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("a:sigkill@step=1", "killed by SIGKILL (sender unknown"),
        ("a:segv@step=1", "killed by SIGSEGV (a crash in native code)"),
        ("a:exit0@step=1", "it exited with status 0"),
        ("a/0:raise@step=1", "injected by --inject"),
        ("a:raise@0.01s", "injected by --inject"),
        ("a:sigkill@0s", "killed by SIGKILL"),
        ("a:sigterm@0s", "it was asked to end by a SIGTERM that the supervisor did not send"),
    ],
)
def test_an_injected_death(tmp_path: Path, fault: str, cause: str) -> None:
    """Each fault ends the command with status 3, and its request as failed."""
    config = write_config(tmp_path, "Hold")
    stdin = lines({"id": "mine", "data": "hold" if fault.endswith("0s") or "0.01" in fault else 1})
    with Command("--config", config, "--input", "-", "--inject", fault, "--serve", stdin=stdin) as command:
        assert command.finish() == 3
    text = command.err.text()
    assert cause in text
    assert text.count("stage 'a' replica 0 (pid ") == 1
    assert text.count("stage_died") == 1
    assert "Traceback" not in text or "raise" in fault
    assert set(command.outcomes().values()) <= {"failed"}


def test_a_stopped_stage_is_left_to_the_user(tmp_path: Path) -> None:
    """sigstop makes no death; SIGINT ends the command and the stopped stage."""
    config = write_config(tmp_path, "Hold", shutdown_timeout_s=0.2)
    arguments: list[str | Path] = ["--config", config, "--serve", "--log-format", "json", "--inject", "a:sigstop@0.1s"]
    with Command(*arguments) as command:
        pid = command.event("stage_ready")["pid"]
        command.event("pipeline_ready")
        stage = psutil.Process(pid)
        wait_until(lambda: stage.status() == psutil.STATUS_STOPPED, "the stage is stopped")
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130
    assert not stage.is_running()


def test_a_stage_killed_while_idle_ends_serving(tmp_path: Path) -> None:
    """kill -9 of an idle stage: the report names stage, pid, signal and phase, on standard error and as a file."""
    reports = tmp_path / "new" / "reports"
    arguments: list[str | Path] = ["--config", COUNTDOWN, "--serve", "--log-format", "json", "--report-dir", reports]
    with Command(*arguments) as command:
        command.output(id="r5", outcome="finished")
        pid = command.event("stage_ready", stage="second")["pid"]
        os.kill(pid, signal.SIGKILL)
        died = command.event("stage_died")
        assert command.finish() == 3
    assert (died["stage"], died["pid"], died["signal"], died["phase"]) == ("second", pid, "SIGKILL", "ready")
    text = command.event("death_report")["text"]
    assert f"stage 'second' replica 0 (pid {pid}) died, phase READY: killed by SIGKILL" in text
    (path,) = reports.iterdir()
    report = json.loads(path.read_text())
    assert (report["stage"], report["pid"], report["cause"], report["exit_code"]) == ("second", pid, "signal", -9)


def test_the_requests_that_a_death_costs_are_named(tmp_path: Path) -> None:
    """Requests in flight end as failed, each with a line, and the report names them."""
    config = write_config(tmp_path, "Hold", "Hold")
    stdin = lines({"id": "done", "data": 1}, {"id": "lost", "data": "hold"})
    with Command("--config", config, "--input", "-", "--log-format", "json", stdin=stdin) as command:
        command.output(id="done", outcome="finished")
        os.kill(command.event("stage_ready", stage="b")["pid"], signal.SIGKILL)
        assert command.finish() == 3
    assert command.outcomes() == {"done": "finished", "lost": "failed"}
    assert "1 request lost: lost" in command.event("death_report")["text"]
    assert "killed by SIGKILL" in command.output(id="lost")["error"]


def test_an_exception_in_a_step(tmp_path: Path) -> None:
    """The report has the engine's own traceback; the log line about it is short."""
    stdin = lines({"id": "r", "data": 1})
    with Command("--config", write_config(tmp_path, "BadStep"), "--input", "-", stdin=stdin) as command:
        assert command.finish() == 3
    assert command.err.text().count('raise ValueError("a step too far")') == 1
    assert command.outcomes() == {"r": "failed"}


def test_a_stage_that_does_not_start(tmp_path: Path) -> None:
    """Its traceback and its last output are told; no request has begun."""
    with Command("--config", write_config(tmp_path, "Echo", "BadInit"), "--input", "-", stdin=lines(1)) as command:
        assert command.finish() == 3
    text = command.err.text()
    for part in ("stage 'b' replica 0", "did not start, phase INIT", 'raise RuntimeError("no such weights")'):
        assert text.count(part) == 1
    assert "loading weights" in text
    assert command.outputs() == []


def test_an_engine_that_cannot_be_imported(tmp_path: Path) -> None:
    """Without --check that is a start-up failure."""
    with Command("--config", write_config(tmp_path, "Nobody"), "--serve") as command:
        assert command.finish() == 3
    assert "did not start, phase IMPORT" in command.err.text()


def test_a_start_that_takes_too_long(tmp_path: Path) -> None:
    """The message names the knob."""
    with Command("--config", write_config(tmp_path, "SlowInit", startup_timeout_s=1), "--serve") as command:
        assert command.finish() == 3
    assert "not ready within 1 s (startup_timeout_s)" in command.err.text()
