"""Bugs that were mended once, seen from the engine: what it returns, raises and starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engines_for_tests import Echo
from harness import HANG_S, Announcements, Events, data_of, fault, pid_of, pipeline_config, stage, watching

from stage import Output
from supervisor import Pipeline, RequestFailedError, StageDeathReport, StartupError

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event


class Loose(Echo):
    """Take from a request's data what to return: None, or `[request id or None for its own, data, finished]` each."""

    def step(self) -> Any:
        requests, self.todo = self.todo, {}
        if None in requests.values():
            return None
        outputs = [(named or own, data, end) for own, all_ in requests.items() for named, data, end in all_]
        return [Output(*fields) for fields in outputs]


class Parent(Echo):
    """Start a process for each utility call: terminate it and tell its exit code, or let it live and tell its pid."""

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        start: Any = {"os.fork": _fork, "multiprocessing": _fork_by_multiprocessing, "session": _start_session}[name]
        return start(*args)


def _fork(wait: bool) -> int:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, b"x")
        signal.pause()
        os._exit(0)
    if wait:
        os.read(read_end, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork_by_multiprocessing(wait: bool) -> int | None:
    context = multiprocessing.get_context("fork")
    runs = context.Event()
    child = context.Process(target=_say_and_pause, args=(runs,))
    child.start()
    if wait:
        runs.wait(HANG_S)
    child.terminate()
    child.join()
    return child.exitcode


def _say_and_pause(runs: Event) -> None:
    runs.set()
    signal.pause()


def _start_session() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid  # noqa: S607


LOOSE = stage("loose", f"{__name__}:Loose")
PARENT = stage("parent", f"{__name__}:Parent")


def report_of(config_stage: dict[str, Any], data: Any) -> StageDeathReport:
    """The report of the death that this request causes."""
    with Pipeline(pipeline_config(config_stage)) as pipeline, pytest.raises(RequestFailedError) as caught:
        pipeline.submit(data).result(HANG_S)
    assert caught.value.report is not None
    return caught.value.report


def test_finished_that_is_no_bool() -> None:
    """An `Output` may be finished by anything that is true."""
    with Pipeline(pipeline_config(LOOSE)) as pipeline:
        assert data_of(pipeline.submit([[None, "x", 0], [None, "y", 1]]).result(HANG_S)) == ["x", "y"]


def test_output_whose_id_is_no_str() -> None:
    """An `Output` with an id that is no text ends the stage, and the report shows it."""
    report = report_of(LOOSE, [[7, "x", True]])
    assert "Output(request_id=7, data='x', finished=True)" in report.render()


def test_step_that_returns_none() -> None:
    """A step without a return ends the stage, and the report says what it must return."""
    report = report_of(LOOSE, None)
    assert (report.error_type, report.steps) == ("TypeError", 1)
    assert "step() returned None: it must return its Outputs" in (report.error_message or "")


def test_output_for_an_id_that_was_never_given(events: Events) -> None:
    """An output for an id that no stage was given is dropped with one warning, which names the id."""
    with Pipeline(pipeline_config(LOOSE)) as pipeline:
        handle = pipeline.submit([["stranger", "x", True], [None, "y", True]])
        assert data_of(handle.result(HANG_S)) == ["y"]
    (event,) = events.of("output_dropped")
    assert "'stranger'" in event["reason"]


def test_output_for_an_id_that_was_aborted(events: Events) -> None:
    """An output that an engine still gives for an aborted request is dropped without a word."""
    with Pipeline(pipeline_config(LOOSE)) as pipeline:
        pipeline.submit([]).abort()
        (aborted,) = pipeline.utility("loose", "added", timeout_s=HANG_S)
        handle = pipeline.submit([[aborted, "late", True], [None, "y", True]])
        assert data_of(handle.result(HANG_S)) == ["y"]
    assert events.of("output_dropped") == []


@pytest.mark.parametrize("when", ["at once", "when it runs"])
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_engine_that_terminates_its_forked_child(how: str, when: str) -> None:
    """SIGTERM ends a process that the engine has forked, however early it comes, and leaves the stage alone."""
    with Pipeline(pipeline_config(PARENT, shutdown_timeout_s=1)) as pipeline:
        for _ in range(5):
            assert pipeline.utility("parent", how, (when == "when it runs",), timeout_s=HANG_S) == -signal.SIGTERM
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
    assert pipeline.died is None


def test_grandchild_in_a_session_of_its_own() -> None:
    """What an engine has started in another session is gone after the close, too."""
    with Pipeline(pipeline_config(PARENT)) as pipeline:
        pid = pipeline.utility("parent", "session", timeout_s=HANG_S)
        with watching(pid) as wait_gone:
            pipeline.close()
            wait_gone()


def test_traceback_begins_in_the_engine() -> None:
    """The traceback of an exception in `step` begins with the engine's own frame."""
    report = report_of(fault("step", "raise_request_error"), "x")
    head, first, *_ = (report.traceback or "").splitlines()
    assert head == "Traceback (most recent call last):"
    assert "engines_for_tests.py" in first
    assert first.endswith("in step")


def import_traceback(engine: str) -> list[str]:
    """The traceback, line by line, of an import that finds no module."""
    with pytest.raises(StartupError) as caught, Pipeline(pipeline_config(stage("odd", engine))):
        pass
    report = caught.value.report
    assert (report.phase, report.error_type) == ("import", "ModuleNotFoundError")
    return (report.traceback or "").splitlines()


def test_traceback_of_an_engine_that_is_not_there() -> None:
    """The traceback of an engine whose module is not found shows nothing of the import system."""
    lines = import_traceback("no_such_module:Engine")
    assert lines[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert not [line for line in lines if "importlib" in line]


def test_traceback_of_an_engine_that_lacks_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The traceback of an engine whose module imports what is not there begins with that module."""
    monkeypatch.chdir(tmp_path)
    Path("lacking.py").write_text("import no_such_module\n")
    lines = import_traceback("lacking:Engine")
    assert (lines[1], len(lines)) == (f'  File "{tmp_path}/lacking.py", line 1, in <module>', 4)


def test_stage_that_ends_badly_while_it_stops(events: Events) -> None:
    """A failure in the engine's shutdown is told by a warning, and is no death."""
    with Pipeline(pipeline_config(fault("shutdown", "raise"))) as pipeline:
        pass
    (event,) = events.of("stage_stopped_badly")
    assert (event["stage"], event["exit_code"], event["error_type"]) == ("faulty", 1, "RuntimeError")
    assert event["error_message"] == "boom in shutdown"
    assert (pipeline.died, events.of("stage_died")) == (None, [])


def test_mute_and_alive(announcements: Announcements) -> None:
    """A stage that a foreign SIGTERM has ended, and whose shutdown never returns, ends all the same."""
    faulty = fault("shutdown", "block", announce=announcements.path)
    with Pipeline(pipeline_config(faulty, shutdown_timeout_s=0.5)) as pipeline:
        os.kill(pid_of(pipeline, "faulty"), signal.SIGTERM)
        assert announcements.wait().startswith("shutdown")
        with pytest.raises(RequestFailedError) as caught:
            pipeline.submit("x").result(HANG_S)
    report = caught.value.report
    assert report is not None
    assert (report.cause, report.exit_code) == ("exit", 1)
    assert "SIGTERM that the supervisor did not send" in str(report.error_message)
    assert any("in shutdown" in line for line in report.log_tail)
