"""A stage that fails or dies while it runs: requests fail, one report tells the first cause, the others are stopped."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from harness import (
    HANG_S,
    Announcements,
    Events,
    data_of,
    ended,
    fault,
    in_thread,
    is_asleep,
    pid_of,
    pipeline_config,
    stage,
    until,
    watching,
)

from supervisor import (
    Outcome,
    Pipeline,
    Request,
    RequestFailedError,
    Result,
    StageDeathReport,
    StageDiedError,
    UtilityError,
)

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


def wait_died(pipeline: Pipeline, events: Events) -> StageDeathReport:
    """Wait for the report; it is the only one, and every stage is gone after it."""
    events.wait("stage_died")
    report = pipeline.died
    assert report is not None
    return report


def assert_one_report(events: Events, report: StageDeathReport) -> None:
    """Called when the pipeline is closed, so that nothing can come any more."""
    assert [(report.stage, report.pid)] == [(event["stage"], event["pid"]) for event in events.of("stage_died")]


@pytest.mark.parametrize("action", ENDINGS)
@pytest.mark.parametrize("point", ["add", "step"])
def test_end_at_a_point(events: Events, point: str, action: str) -> None:
    """Requests at every stage fail, and the report has the exit status, the cause and the ids."""
    config = pipeline_config(stage("gate", "Gate"), fault(point, action), stage("after"))
    with Pipeline(config) as pipeline:
        handles = [pipeline.submit(["x"], f"r{number}") for number in range(3)]
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        for handle in handles:
            with pytest.raises(RequestFailedError, match="'faulty'") as caught:
                handle.result(HANG_S)
            assert caught.value.report is pipeline.died
        report = wait_died(pipeline, events)
        with pytest.raises(StageDiedError) as died:
            pipeline.submit("more")
        assert died.value.report is report
    cause, exit_code, signal_name, error_type = ENDINGS[action]
    assert (report.stage, report.replica, report.phase) == ("faulty", 0, "ready")
    assert (cause, exit_code, signal_name) == (report.cause, report.exit_code, report.signal)
    assert error_type == report.error_type
    assert report.requests_lost == ["r0", "r1", "r2"]
    assert (1 if point == "step" else 0) == report.steps
    assert report.collateral_of is None
    assert_one_report(events, report)


@pytest.mark.parametrize("action", ["raise", "sigkill", "exit0"])
def test_end_in_abort(events: Events, action: str) -> None:
    """A failure in the engine's abort ends the stage; the aborted request stays aborted."""
    with Pipeline(pipeline_config(fault("abort", action))) as pipeline:
        aborted = pipeline.submit(list(range(1_000_000)))
        aborted.abort()
        report = wait_died(pipeline, events)
    assert (ENDINGS[action][:2], []) == ((report.cause, report.exit_code), report.requests_lost)
    assert_one_report(events, report)


@pytest.mark.parametrize("action", ["sigkill", "exit0", "exit7"])
def test_end_in_a_utility_call(events: Events, action: str) -> None:
    """A call that is under way when the stage dies raises UtilityError, and so does one to another stage after it."""
    with Pipeline(pipeline_config(fault("utility", action), stage("other"))) as pipeline:
        with pytest.raises(UtilityError, match="'faulty'"):
            pipeline.utility("faulty", "echo", timeout_s=HANG_S)
        report = wait_died(pipeline, events)
        with pytest.raises(UtilityError):
            pipeline.utility("other", "echo", timeout_s=HANG_S)
    assert ENDINGS[action][:2] == (report.cause, report.exit_code)


@pytest.mark.parametrize("action", ["sigkill", "exit0", "exit7"])
def test_end_while_idle(events: Events, announcements: Announcements, action: str) -> None:
    """A stage that ends while there is nothing to do is a death too, status 0 included; its siblings are stopped."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    with Pipeline(pipeline_config(stage("before"), fault("idle", action, trigger=trigger))) as pipeline:
        sibling = pid_of(pipeline, "before")
        with watching(sibling) as wait_gone:
            Path(trigger).write_bytes(b"")
            report = wait_died(pipeline, events)
            wait_gone()
    Path(trigger).unlink()
    cause, exit_code, signal_name, _ = ENDINGS[action]
    assert (cause, exit_code, signal_name) == (report.cause, report.exit_code, report.signal)
    assert (report.phase, report.requests_lost, report.steps) == ("ready", [], 0)
    assert_one_report(events, report)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_signal_from_outside(events: Events, signum: signal.Signals) -> None:
    """Any signal that ends a stage unasked gives a report; one that it handled ended it with status 0."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        os.kill(pid_of(pipeline, "only"), signum)
        report = wait_died(pipeline, events)
    handled = signum in {signal.SIGTERM, signal.SIGINT}
    assert (0 if handled else -signum) == report.exit_code
    assert ("exit" if handled else "signal") == report.cause
    assert (None if handled else signum.name) == report.signal
    assert_one_report(events, report)


def test_sweep_over_steps() -> None:
    """Whichever step kills the stage, the request fails at that step; the sweep ends when the fault no longer fires."""
    total = 4
    fired = []
    for nth in range(1, total + 3):
        with Pipeline(pipeline_config(fault("step", "sigkill", nth=nth))) as pipeline:
            handle = pipeline.submit(list(range(total)))
            with suppress(RequestFailedError):
                assert list(range(total)) == data_of(handle.result(HANG_S))
        if pipeline.died is not None:
            fired.append(nth)
            assert nth == pipeline.died.steps
    assert list(range(1, total + 1)) == fired


def test_results_before_the_death_are_delivered() -> None:
    """Everything that a stage had given before it failed reaches the user, then the failure does."""
    seen: list[Result] = []
    with Pipeline(pipeline_config(fault("step", "raise", nth=4))) as pipeline:
        handle = pipeline.submit(list(range(10)))
        with pytest.raises(RequestFailedError):
            seen.extend(handle)
    assert data_of(seen) == [0, 1, 2]


def test_two_deaths_at_once(events: Events) -> None:
    """Of two stages that are killed together one is the cause; the other, if reported, is its collateral."""
    with Pipeline(pipeline_config(stage("a"), stage("b"), stage("c"))) as pipeline:
        for name in ("a", "b"):
            os.kill(pid_of(pipeline, name), signal.SIGKILL)
        report = wait_died(pipeline, events)
    died = events.of("stage_died")
    assert report.stage in {"a", "b"}
    assert report.collateral_of is None
    assert len({event["pid"] for event in died}) == len(died)
    assert [report.stage + "/0"] * (len(died) - 1) == [event["collateral_of"] for event in died[1:]]
    assert "c" not in {event["stage"] for event in died}


def test_died_is_set_before_requests_fail(events: Events) -> None:
    """Who sees a request fail finds the report, in `died` and in the error."""
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit("x")
        seen = []

        def wait() -> None:
            with pytest.raises(RequestFailedError) as caught:
                handle.result(HANG_S)
            seen.append((pipeline.died, caught.value.report))

        waiters = [in_thread(wait) for _ in range(4)]
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        assert all(ended(waiter) for waiter in waiters)
    assert len(seen) == 4
    assert all(died is not None and died is report for died, report in seen)


def test_submit_that_waits_for_a_slot_hears_of_the_death() -> None:
    """A thread that waits in `submit` gets StageDiedError."""
    errors = []
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=1)) as pipeline:
        pipeline.submit("x")

        def submit() -> None:
            with pytest.raises(StageDiedError) as caught:
                pipeline.submit("y")
            errors.append(caught.value.report)

        thread = in_thread(submit)
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        assert ended(thread)
        assert [pipeline.died] == errors


def test_helper_of_the_engine_fails(events: Events) -> None:
    """An engine whose helper fails ends the stage, also while it is idle."""
    with Pipeline(pipeline_config(fault("utility", "fail_from_thread"))) as pipeline:
        pipeline.utility("faulty", "echo", timeout_s=HANG_S)
        report = wait_died(pipeline, events)
    assert (report.cause, report.error_type) == ("fatal", "RuntimeError")
    assert report.error_message == "Executor failed: a helper is gone"


@pytest.mark.parametrize("kind", ["input", "output"])
def test_io_thread_that_dies(events: Events, kind: str) -> None:
    """A stage whose IO thread has died does not stay alive and mute."""
    with Pipeline(pipeline_config(fault("utility", f"break_{kind}"))) as pipeline:
        try:
            # The answer wakes the output thread; what comes next wakes the input thread.
            pipeline.utility("faulty", "echo", timeout_s=HANG_S)
            pipeline.submit("x", "r1")
        except (UtilityError, StageDiedError):
            assert kind == "output"
        report = wait_died(pipeline, events)
    assert (report.cause, report.error_type, report.exit_code) == ("io_thread", "AttributeError", 1)
    assert "thread died" in report.render()
    assert_one_report(events, report)


@pytest.mark.parametrize("action", ["sleeper", "sleeper_holding_all", "fork"])
@pytest.mark.parametrize("end", ["sigkill", "stop"])
def test_grandchildren_are_gone(events: Events, announcements: Announcements, action: str, end: str) -> None:
    """What an engine has started ends with its stage, and does not hide the death, whatever it inherited."""
    config = pipeline_config(fault("init", action, announce=announcements.path))
    with Pipeline(config) as pipeline:
        _, sleeper = announcements.wait(), announcements.wait()
        with watching(int(sleeper.removeprefix("sleeper "))) as wait_gone:
            if end == "sigkill":
                os.kill(pid_of(pipeline, "faulty"), signal.SIGKILL)
                assert wait_died(pipeline, events).signal == "SIGKILL"
            else:
                pipeline.close()
            wait_gone()


def test_stolen_exit_status(events: Events) -> None:
    """A stage that another part of the program has reaped is a death whose status is unknown."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        pid = pid_of(pipeline, "only")
        pidfd = os.pidfd_open(pid)

        def steal() -> None:
            with suppress(ChildProcessError):  # the supervisor was faster
                os.waitpid(pid, 0)

        thief = in_thread(steal)
        until(lambda: is_asleep(thief), "the thief waits")
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        report = wait_died(pipeline, events)
        assert ended(thief)
    assert report.exit_code in {None, -9}
    assert_one_report(events, report)


def test_death_in_run() -> None:
    """`run` gives every outcome, then the one report."""
    seen: list[Result | Outcome] = []
    with Pipeline(pipeline_config(fault("step", "exit7", nth=3))) as pipeline:
        events = pipeline.run([Request("r1", ["a", "b", "c"])])
        with pytest.raises(StageDiedError) as caught:
            seen.extend(events)
    # What stood in the output queue at the exit is lost, what has left it is not.
    delivered = [event.data for event in seen[:-1] if isinstance(event, Result)]
    assert ["a", "b"][: len(delivered)] == delivered
    assert Outcome("r1", "failed", caught.value.report.summary()) == seen[-1]
    assert (caught.value.report.exit_code, caught.value.report.requests_lost) == (7, ["r1"])
