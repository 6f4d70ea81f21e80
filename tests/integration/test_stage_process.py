"""What a stage process is like from inside and outside: settings, names, output, the engine's shutdown."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from harness import HANG_S, TESTS, Announcements, Events, fault, pid_of, pipeline_config, stage

from supervisor import Pipeline, RequestFailedError, StageDeathReport, StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_environment() -> None:
    """A stage has its own variables, its name and number, and one thread unless the config says otherwise."""
    plain, own = stage("plain"), stage("own", env={"OMP_NUM_THREADS": "3", "COLOUR": "blue"})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setenv("COLOUR", "red")
        with Pipeline(pipeline_config(plain, own)) as pipeline:
            wanted = ("STAGE_NAME", "STAGE_REPLICA", "STAGE_REPLICAS", "OMP_NUM_THREADS", "COLOUR")
            of_plain = pipeline.utility("plain", "environ", wanted, timeout_s=HANG_S)
            of_own = pipeline.utility("own", "environ", wanted, timeout_s=HANG_S)
    assert dict(zip(wanted, ("plain", "0", "1", "1", "red"), strict=True)) == of_plain
    assert dict(zip(wanted, ("own", "0", "1", "3", "blue"), strict=True)) == of_own


def test_environment_of_the_supervisor_wins_over_the_default() -> None:
    """A number of threads that the user has set for everything is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "7")
        with Pipeline(pipeline_config(stage("only"))) as pipeline:
            assert pipeline.utility("only", "environ", ("OMP_NUM_THREADS",)) == {"OMP_NUM_THREADS": "7"}


def test_environment_holds_during_the_import() -> None:
    """A stage's variables are there when the engine's module is imported, and only in that stage."""
    faulty = stage("faulty", "fault_on_import:FaultEngine", env={"FAULT": "raise"})
    with pytest.raises(StartupError) as caught, Pipeline(pipeline_config(faulty)):
        pass
    assert (caught.value.report.phase, caught.value.report.error_message) == ("import", "boom in import")
    with Pipeline(pipeline_config(stage("fine", "fault_on_import:FaultEngine"))):
        pass


def test_cpus() -> None:
    """A stage runs on the processors that it is given, and on all of them otherwise."""
    mine = sorted(os.sched_getaffinity(0))
    with Pipeline(pipeline_config(stage("bound", cpus=mine[:1]), stage("free"))) as pipeline:
        assert mine[:1] == pipeline.utility("bound", "cpus", timeout_s=HANG_S)
        assert mine == pipeline.utility("free", "cpus", timeout_s=HANG_S)


def test_import_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The config's directory, then the current one, come first where engines are looked for."""
    monkeypatch.chdir(tmp_path)
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        assert [str(TESTS), str(tmp_path)] == pipeline.utility("only", "path", timeout_s=HANG_S)[:2]


def test_main_module_is_not_imported() -> None:
    """A stage has not imported the main module of its supervisor, here pytest's."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        modules = pipeline.utility("only", "modules", timeout_s=HANG_S)
    assert not {"pytest", "_pytest", "supervisor"} & set(modules)


def test_names() -> None:
    """The process and its threads carry names that a person sees."""
    with Pipeline(pipeline_config(stage("asr"), stage("a-very-long-name-of-a-stage"))) as pipeline:
        names = pipeline.utility("asr", "names", timeout_s=HANG_S)
        assert {"stage:asr/0", "asr/0-input", "asr/0-output"} <= set(names)
        assert psutil.Process(pid_of(pipeline, "asr")).name() == "stage:asr/0"
        long = pipeline.utility("a-very-long-name-of-a-stage", "names", timeout_s=HANG_S)
        assert {"stage:a-very-/0", "a-very-lo-input", "a-very-l-output"} <= set(long)


def test_group_of_its_own() -> None:
    """A stage leads a process group, so that the terminal's SIGINT does not reach it."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        pid = pid_of(pipeline, "only")
        assert pid == os.getpgid(pid)


def test_standard_streams(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing that an engine prints, and nothing that the library does, comes out of the supervisor's own streams."""
    with Pipeline(pipeline_config(fault("never", "raise"))) as pipeline:
        pipeline.submit("x").result(HANG_S)
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.fixture
def shutdowns(announcements: Announcements) -> Iterator[Announcements]:
    """Announcements; when the test is over, the engine has been shut down once."""
    yield announcements
    assert announcements.wait().startswith("shutdown")
    assert announcements.nothing_left()


def test_shutdown_on_stop(shutdowns: Announcements) -> None:
    """`engine.shutdown()` runs when the pipeline closes."""
    with Pipeline(pipeline_config(fault("never", "raise", announce=shutdowns.path))):
        pass


@pytest.mark.parametrize("action", ["raise", "sys_exit"])
def test_shutdown_on_fatal(shutdowns: Announcements, action: str) -> None:
    """`engine.shutdown()` runs when the engine has failed."""
    with Pipeline(pipeline_config(fault("step", action, announce=shutdowns.path))) as pipeline:
        with pytest.raises(RequestFailedError):
            pipeline.submit("x").result(HANG_S)
        assert shutdowns.wait().startswith("step")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_on_signal(events: Events, shutdowns: Announcements, signum: signal.Signals) -> None:
    """`engine.shutdown()` runs when a signal ends the stage."""
    with Pipeline(pipeline_config(fault("never", "raise", announce=shutdowns.path))) as pipeline:
        os.kill(pid_of(pipeline, "faulty"), signum)
        events.wait("stage_died")


def test_shutdown_when_another_stage_fails_to_start(events: Events, shutdowns: Announcements) -> None:
    """`engine.shutdown()` runs for a sibling that was ready when the start failed."""

    def kill_the_other(_ready: object) -> None:
        (pid,) = [event["pid"] for event in events.of("stage_spawned") if event["stage"] == "faulty"]
        os.kill(pid, signal.SIGKILL)

    events.react("stage_ready", kill_the_other)
    fine = fault("never", "raise", name="fine", announce=shutdowns.path)
    with pytest.raises(StartupError), Pipeline(pipeline_config(fine, fault("init", "block"))):
        pass


def test_shutdown_when_the_io_threads_do_not_start(shutdowns: Announcements) -> None:
    """`engine.shutdown()` runs for an engine that was built, though its stage never became ready."""
    with pytest.raises(StartupError), Pipeline(pipeline_config(fault("io", "raise", announce=shutdowns.path))):
        pass
    assert shutdowns.wait().startswith("io")


def test_no_shutdown_of_an_engine_that_was_never_built(announcements: Announcements) -> None:
    """Without an engine there is nothing to shut down."""
    with pytest.raises(StartupError), Pipeline(pipeline_config(fault("init", "raise", announce=announcements.path))):
        pass
    assert announcements.wait().startswith("init")
    assert announcements.nothing_left()


def test_shutdown_that_fails(events: Events) -> None:
    """A failure in the engine's shutdown does not disturb a stop that was asked for."""
    with Pipeline(pipeline_config(fault("shutdown", "raise"))) as pipeline:
        pipeline.submit("x").result(HANG_S)
    assert events.of("stage_died") == []
    assert events.of("stage_killed") == []


def report_of_a_step(action: str, report_dir: Path | None = None, **keys: Any) -> StageDeathReport:
    with (
        Pipeline(pipeline_config(fault("step", action, **keys)), report_dir=report_dir) as pipeline,
        pytest.raises(RequestFailedError) as caught,
    ):
        pipeline.submit("x", "r1").result(HANG_S)
    assert caught.value.report is not None
    return caught.value.report


def test_every_field_of_a_report(tmp_path: Path, events: Events) -> None:
    """A report says who, when, why and what it cost, as an object, as a file and in the log."""
    report = report_of_a_step("raise", tmp_path)
    (event,) = events.of("stage_died")
    assert ("faulty", 0, event["pid"], "ready") == (report.stage, report.replica, report.pid, report.phase)
    assert (report.cause, report.exit_code, report.signal) == ("fatal", 1, None)
    assert (report.error_type, report.error_message) == ("RuntimeError", "boom in step")
    assert "KeyError: 'the first cause'" in (report.traceback or "")
    assert (report.requests_lost, report.steps) == (["r1"], 1)
    assert (report.oom_killed, report.collateral_of) == (False, None)
    assert 0 < report.uptime_s < HANG_S
    assert report.log_tail[0] == "a fault engine for step raise"
    assert Path(report.log_path or "").read_text().splitlines()[0] == report.log_tail[0]
    (file,) = tmp_path.iterdir()
    assert report.to_dict() == json.loads(file.read_text())


def test_log_tail_is_the_end_of_the_log() -> None:
    """Of much output the report holds the last lines, also those printed right before SIGKILL."""
    report = report_of_a_step("sigkill", also="print_much")
    assert [f"line {number}" for number in range(80, 100)] == report.log_tail


def test_report_of_a_crash_in_native_code() -> None:
    """A crash shows the Python stack at the time, which faulthandler has written."""
    report = report_of_a_step("abort_process")
    assert report.signal == "SIGABRT"
    assert any("engines_for_tests.py" in line for line in report.log_tail)
    assert "a crash in native code" in report.render()


def test_text_of_a_report() -> None:
    """The text names the stage, pid, phase, signal and requests, and where the log is."""
    report = report_of_a_step("sigkill")
    text = report.render()
    for part in (f"stage 'faulty' replica 0 (pid {report.pid})", "READY", "SIGKILL", "1 request lost: r1"):
        assert part in text
    assert (report.log_path or "no") in text
