"""A stage that fails, dies or hangs before it is ready: one report, and its siblings are taken down."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from harness import (
    HANG_S,
    TESTS,
    Announcements,
    Events,
    data_of,
    ended,
    fault,
    in_thread,
    pipeline_config,
    stage,
    until,
)

from stage.black_box import read_black_box
from stage.sockets import receive_frames
from supervisor import Pipeline, StageDeathReport, StartupError, startup

if TYPE_CHECKING:
    from collections.abc import Callable

ENDINGS = {
    "sigkill": ("signal", -9, "SIGKILL", None),
    "exit0": ("exit", 0, None, None),
    "exit7": ("exit", 7, None, None),
    "abort_process": ("signal", -6, "SIGABRT", None),
    "sys_exit": ("fatal", 1, None, "SystemExit"),
    "raise": ("fatal", 1, None, "RuntimeError"),
    "keyboard_interrupt": ("fatal", 1, None, "KeyboardInterrupt"),
    "raise_odd": ("fatal", 1, None, "engines_for_tests.OddError"),
}


def report_of(events: Events, *stages: dict[str, Any], **limits: Any) -> StageDeathReport:
    """Start a pipeline that does not become ready; return its report, which is the first one, and the others' cause."""
    with pytest.raises(StartupError) as caught, Pipeline(pipeline_config(*stages, **limits)):
        pytest.fail("it became ready")
    report = caught.value.report
    first, *others = events.of("stage_died")
    assert (report.stage, report.pid) == (first["stage"], first["pid"])
    assert {event["collateral_of"] for event in others} <= {f"{report.stage}/{report.replica}"}
    return report


@pytest.mark.parametrize("action", ENDINGS)
@pytest.mark.parametrize("phase", ["import", "init", "io"])
def test_end_in_a_phase(events: Events, phase: str, action: str) -> None:
    """The report names the phase, the exit status and the first cause; siblings before and after are down."""
    faulty = fault(phase, action)
    if phase == "import":
        faulty = stage("faulty", "fault_on_import:FaultEngine", env={"FAULT": action})

    report = report_of(events, stage("before"), faulty, stage("after"))

    cause, exit_code, signal_name, error_type = ENDINGS[action]
    assert ("faulty", 0, phase) == (report.stage, report.replica, report.phase)
    assert (cause, exit_code, signal_name) == (report.cause, report.exit_code, report.signal)
    assert error_type == report.error_type
    assert (report.steps, report.requests_lost, report.collateral_of) == (0, [], None)
    assert len(events.of("stage_spawned")) == 3


def test_traceback_of_the_stage(events: Events) -> None:
    """The error shows the stage's own traceback, with the cause behind the exception."""
    with pytest.raises(StartupError) as caught, Pipeline(pipeline_config(fault("init", "raise"))):
        pass
    report, text = caught.value.report, str(caught.value)
    assert report.error_message == "boom in init"
    assert report.traceback is not None
    for part in ("KeyError: 'the first cause'", "engines_for_tests.py", "RuntimeError: boom in init", "in _raise"):
        assert part in report.traceback
        assert part in text
    assert "stage 'faulty' replica 0 (pid" in text
    assert "did not start, phase INIT: RuntimeError: boom in init" in text


@pytest.mark.parametrize(
    ("engine", "error_type", "message"),
    [
        ("no_such_module:Engine", "ModuleNotFoundError", "no_such_module"),
        ("engines_for_tests:Ecko", "AttributeError", "did you mean 'Echo'?"),
        ("engines_for_tests:TESTS", "AttributeError", "TESTS"),
        ("harness:HANG_S", "TypeError", "wanted a class"),
        ("harness:Events", "TypeError", "lacks the method has_work"),
    ],
)
def test_engine_that_cannot_be_built(events: Events, engine: str, error_type: str, message: str) -> None:
    """A wrong import path is a start-up failure that says what is wrong."""
    report = report_of(events, stage("only", engine))
    assert ("fatal", error_type) == (report.cause, report.error_type)
    assert message in (report.error_message or "")


def test_wrong_arguments(events: Events) -> None:
    """Arguments that the engine does not take are a start-up failure, too."""
    report = report_of(events, stage("only", args={"threshold": 1}))
    assert (report.phase, report.error_type) == ("init", "TypeError")
    assert "threshold" in (report.error_message or "")


def test_sigkill_as_soon_as_it_is_spawned(events: Events) -> None:
    """A process that is killed before its first instruction is reported as spawned."""
    events.react("stage_spawned", lambda event: os.kill(event["pid"], signal.SIGKILL))
    report = report_of(events, stage("only"))
    assert (report.phase, report.cause, report.exit_code, report.signal) == ("spawned", "signal", -9, "SIGKILL")


@pytest.mark.parametrize("exit_code", [0, 7])
def test_exit_as_soon_as_it_is_spawned(events: Events, monkeypatch: pytest.MonkeyPatch, exit_code: int) -> None:
    """A process that exits while its interpreter starts is reported as spawned."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "boot_fault"))
    monkeypatch.setenv("BOOT_FAULT", f"now exit{exit_code}")
    report = report_of(events, stage("only"))
    assert Path(report.log_path or "none").exists()
    assert ("spawned", "exit", exit_code, None) == (report.phase, report.cause, report.exit_code, report.signal)


def when_in_hello(events: Events, act: Callable[[int], None]) -> None:
    """Call `act(pid)` when the first stage waits for the answer to its HELLO, which the supervisor is kept from."""

    def wait(event: dict[str, Any]) -> None:
        if event["stage"] == "only":
            (box,) = Path(os.environ["TMPDIR"]).glob("stages-*/only-0.box")
            until(lambda: read_black_box(box).phase == "hello", "the stage says HELLO")
            act(event["pid"])

    events.react("stage_spawned", wait)


def test_sigkill_in_hello(events: Events) -> None:
    """A stage that is killed while it waits for its settings is reported as in hello."""
    when_in_hello(events, lambda pid: os.kill(pid, signal.SIGKILL))
    report = report_of(events, stage("only"), stage("other"))
    assert (report.phase, report.cause, report.exit_code, report.signal) == ("hello", "signal", -9, "SIGKILL")


@pytest.mark.parametrize("exit_code", [0, 7])
def test_exit_in_hello(
    events: Events, monkeypatch: pytest.MonkeyPatch, announcements: Announcements, exit_code: int
) -> None:
    """A stage that exits while it waits for its settings is reported as in hello."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "boot_fault"))
    monkeypatch.setenv("BOOT_FAULT", f"later exit{exit_code}")
    monkeypatch.setenv("BOOT_TRIGGER", trigger)

    def end(pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        Path(trigger).write_bytes(b"")
        until(lambda: os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT), "the end")
        os.close(pidfd)

    when_in_hello(events, end)
    report = report_of(events, stage("only"))
    Path(trigger).unlink()
    assert ("hello", "exit", exit_code, None) == (report.phase, report.cause, report.exit_code, report.signal)


@pytest.mark.parametrize("phase", ["spawned", "hello"])
def test_stage_that_never_answers(events: Events, phase: str) -> None:
    """A stage that is stopped before it has said READY is killed at the deadline, which the text names."""
    if phase == "spawned":
        events.react("stage_spawned", lambda event: os.kill(event["pid"], signal.SIGSTOP))
    else:
        when_in_hello(events, lambda pid: os.kill(pid, signal.SIGSTOP))
    began = time.monotonic()
    report = report_of(events, stage("only"), startup_timeout_s=0.5)
    assert time.monotonic() - began < HANG_S
    assert (phase, "startup_timeout", "SIGKILL") == (report.phase, report.cause, report.signal)
    assert "startup_timeout_s" in report.render()


@pytest.mark.parametrize("phase", ["init", "io"])
def test_engine_that_is_never_ready(events: Events, phase: str) -> None:
    """An engine that blocks is killed at the deadline, and its siblings, which were ready, go with it."""
    report = report_of(events, stage("before"), fault(phase, "block"), stage("after"), startup_timeout_s=3)
    assert ("faulty", phase, "startup_timeout", -9) == (report.stage, report.phase, report.cause, report.exit_code)
    assert "startup_timeout_s" in report.render()
    assert {"before", "after"} == {event["stage"] for event in events.of("stage_ready")}


def test_import_that_never_ends(events: Events) -> None:
    """An engine's module that blocks is reported as in import."""
    blocking = stage("only", "fault_on_import:FaultEngine", env={"FAULT": "block"})
    report = report_of(events, blocking, startup_timeout_s=3)
    assert (report.phase, report.cause) == ("import", "startup_timeout")


def test_stubborn_stage_that_is_never_ready(events: Events) -> None:
    """A sibling that ignores SIGTERM does not keep a failed start from ending."""
    stubborn = fault("never", "raise", name="stubborn", also="ignore_sigterm")
    report = report_of(events, stubborn, fault("init", "raise"), shutdown_timeout_s=0.5)
    assert report.stage == "faulty"


def test_io_thread_that_cannot_start(events: Events) -> None:
    """A stage that has no descriptor left for its input socket fails instead of waiting for ever."""
    report = report_of(events, fault("io", "few_files"))
    assert (report.phase, report.cause, report.exit_code) == ("io", "io_thread", 1)
    assert "Too many open files" in (report.error_message or "")


def test_first_failure_is_the_report(events: Events) -> None:
    """Of two stages that fail, the first one is the cause, and the start fails once."""
    report = report_of(events, fault("init", "raise", name="a"), fault("init", "exit7", name="b"))
    assert report.stage in {"a", "b"}


def test_start_that_failed_can_be_closed() -> None:
    """A pipeline that did not start may be closed, and another one of the same config started."""
    config = pipeline_config(fault("init", "raise"))
    for _ in range(2):
        pipeline = Pipeline(config)
        with pytest.raises(StartupError):
            pipeline.start()
        pipeline.close()


def test_helper_that_fails_before_ready(events: Events) -> None:
    """A failure that an engine's helper tells while the stage starts ends the stage, at the latest once it runs."""
    try:
        with Pipeline(pipeline_config(fault("io", "fail_from_thread"))) as pipeline:
            events.wait("stage_died")
            until(lambda: pipeline.died, "the death is known")
            report = pipeline.died
    except StartupError as exc:
        report = exc.report
    assert report is not None
    assert (report.cause, report.error_message) == ("fatal", "Executor failed: a helper is gone")


def test_ready_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start whose last READY is read only after the deadline, since we ourselves were stopped, has succeeded."""
    received: list[Any] = []

    def receive(*arguments: Any) -> Any:
        received.append(receive_frames(*arguments))
        return received[-1]

    # HELLO, READY, and the input thread's first word: who reads the last of them has been stopped for an hour.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * (len(received) == 3))
    monkeypatch.setattr(startup, "time", clock)
    monkeypatch.setattr(startup, "receive_frames", receive)
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        assert data_of(pipeline.submit(["x"]).result(HANG_S)) == [["x"]]


def test_stages_that_fail_and_do_not_end(events: Events, announcements: Announcements) -> None:
    """One deadline is enough for all stages that have failed to start and do not end."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    args = {"how": "thread", "announce_to": announcements.path, "trigger": trigger}
    config = pipeline_config(
        *(stage(f"s{number}", "troublesome_engines:BrokenLingerer", args=args) for number in range(4)),
        shutdown_timeout_s=2,
    )
    reported_at: list[float] = []
    events.react("stage_died", lambda _event: reported_at.append(time.monotonic()))

    def release() -> None:
        assert [announcements.wait() for _ in range(4)] == ["building"] * 4
        with Path(trigger).open("r+b", buffering=0) as file:
            file.write(b"1234")
            events.wait("stage_died")

    releaser = in_thread(release)
    with pytest.raises(StartupError, match="cannot be built"), Pipeline(config):
        pytest.fail("it became ready")
    assert ended(releaser)
    Path(trigger).unlink()
    # The first one had all the time there was; whoever had failed as well was killed with it.
    assert max(reported_at) - min(reported_at) < 2
