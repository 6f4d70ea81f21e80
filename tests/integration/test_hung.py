"""A stage that hangs is seen, explained and killed; one that is merely slow, holds requests or idles is not."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from scripts import Script, run_directory_stays

from supervisor import Outcome, Pipeline, Request, RequestFailedError, StageDeathReport, StageDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.handle import Handle

TIMEOUT_S = 0.4
PATIENCE_S = 1.0
"""Where nothing hangs: longer than a busy machine lets a process wait for its turn."""


def hangs(point: str, action: str, **args: Any) -> dict[str, Any]:
    """A stage that hangs at a point, with a `step_timeout_s`."""
    keys = fault(point, action, **args)
    return {**keys, "engine": "engines_that_hang:FaultEngine", "step_timeout_s": TIMEOUT_S}


def slow(step_s: float, **keys: Any) -> dict[str, Any]:
    return stage("slow", "engines_that_hang:Slow", args={"step_s": step_s}, **keys)


def report_of(handle: Handle) -> StageDeathReport:
    """The death that has cost a request."""
    with pytest.raises(RequestFailedError) as caught:
        handle.result(HANG_S)
    report = caught.value.report
    assert report is not None
    return report


def assert_hung(report: StageDeathReport, *words: str) -> None:
    """It is a report of a stage that hung, and says so with these words."""
    assert (report.cause, report.exit_code, report.signal) == ("hung", -9, "SIGKILL")
    assert report.error_message is not None
    for word in ("(step_timeout_s: ", *words):
        assert word in report.error_message
    assert "was killed" in report.summary()


PLACES = {
    ("step", "block"): "_act",
    ("step", "spin_in_python"): "spin_in_python",
    ("step", "match_for_ever"): "match_for_ever",
    ("step", "sleep_with_the_lock"): "sleep_with_the_lock",
    ("add", "block"): "in add",
    ("add", "spin_in_python"): "spin_in_python",
    ("add", "match_for_ever"): "match_for_ever",
}


@pytest.mark.parametrize(("point", "action"), PLACES)
def test_a_call_that_never_returns(events: Events, point: str, action: str) -> None:
    """The stage is killed, its stacks tell where it was, its requests fail, and the other stages are stopped."""
    with (
        Pipeline(pipeline_config(hangs(point, action), stage("other"))) as pipeline,
        watching(*(info.pid for info in pipeline.stages)) as wait_gone,
    ):
        report = report_of(pipeline.submit(["x"], "r1"))
        wait_gone()
    assert_hung(report, f"{point}() has run for")
    assert report.traceback is not None
    assert (action if action != "block" else f"in {point}") in report.traceback
    assert "in run_input" in report.traceback
    assert ([report.requests_lost], [report.collateral_of]) == ([["r1"]], [None])
    assert [event["stage"] for event in events.of("stage_died")] == ["faulty"]


@pytest.mark.parametrize("action", ["block", "match_for_ever"])
def test_an_abort_that_never_returns(events: Events, action: str) -> None:
    """The aborted request stays aborted; whatever else is in the stage fails."""
    with Pipeline(pipeline_config(hangs("abort", action))) as pipeline:
        pipeline.submit(list(range(1_000_000)), "r1").abort()
        events.wait("stage_died")
        report = pipeline.died
    assert report is not None
    assert_hung(report, "abort() has run for")
    assert report.requests_lost == []


def test_a_step_that_stops_itself(announcements: Announcements) -> None:
    """A stage that is stopped in a step is killed without being continued, and the report says that it was stopped."""
    with Pipeline(pipeline_config(hangs("step", "sigstop", announce=announcements.path))) as pipeline:
        report = report_of(pipeline.submit(["x"]))
    assert_hung(report, "step() has run for", "stopped by a signal (SIGSTOP", "not been continued", "1 request in hand")
    assert report.traceback is None
    assert announcements.wait().startswith("step")
    # A stage that had been continued would have gone on to `shutdown`.
    assert announcements.nothing_left()


def test_stopped_while_idle(events: Events) -> None:
    """A stage that is stopped while it has nothing to do is left alone, until it is sent something."""
    with Pipeline(pipeline_config(stage("echo", step_timeout_s=TIMEOUT_S), slow(1.5))) as pipeline:
        pipeline.utility("echo", "echo")
        pid = pid_of(pipeline, "echo")
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(), "it is stopped")
        assert pipeline.utility("slow", "nap", (3 * TIMEOUT_S,), timeout_s=HANG_S) == "rested"
        assert (pipeline.died, events.of("stage_died")) == (None, [])
        report = report_of(pipeline.submit("x", "r1"))
    assert_hung(report, "a message has not been handled", "stopped by a signal (SIGSTOP")
    assert (report.requests_lost, report.steps) == (["r1"], 0)


def test_a_long_utility_is_no_hang(events: Events) -> None:
    """A utility call may last as long as its caller waits, with messages behind it."""
    with Pipeline(pipeline_config(slow(0, step_timeout_s=PATIENCE_S))) as pipeline:
        caller = in_thread(lambda: pipeline.utility("slow", "nap", (4 * PATIENCE_S,), timeout_s=HANG_S))
        until(lambda: is_asleep(caller), "the call waits")
        assert data_of(pipeline.submit(["x"]).result(HANG_S)) == ["x"]
        assert ended(caller)
        assert pipeline.died is None


def test_many_quick_steps_are_no_hang() -> None:
    """What counts is one step, not how long a request takes, and not how many wait."""
    with Pipeline(pipeline_config(slow(PATIENCE_S / 20, step_timeout_s=PATIENCE_S))) as pipeline:
        handles = [pipeline.submit(list(range(25))) for _ in range(3)]
        for handle in handles:
            assert data_of(handle.result(HANG_S)) == list(range(25))


def test_held_requests_are_no_hang() -> None:
    """An engine may hold requests for as long as it likes while it has no work."""
    config = pipeline_config(stage("gate", "Gate", step_timeout_s=PATIENCE_S), slow(0))
    with Pipeline(config) as pipeline:
        handle = pipeline.submit(["x"])
        pipeline.utility("slow", "nap", (3 * PATIENCE_S,), timeout_s=HANG_S)
        assert pipeline.died is None
        pipeline.utility("gate", "open", (1,))
        assert data_of(handle.result(HANG_S)) == ["x"]


def test_messages_that_fail_alone_count() -> None:
    """What could not be encoded, was refused or aborted leaves the count of handled messages right."""
    config = pipeline_config(
        stage("bad", "Unsendable", step_timeout_s=PATIENCE_S),
        slow(0),
        stage(
            "picky", "FaultEngine", args={"point": "add", "action": "raise_request_error"}, step_timeout_s=PATIENCE_S
        ),
    )
    with Pipeline(config) as pipeline:
        for data in ("bad", "fine", "fine"):
            handle = pipeline.submit(data)
            with suppress(RequestFailedError):
                handle.result(HANG_S)
            handle.abort()
        pipeline.submit(["x"]).abort()
        pipeline.utility("slow", "nap", (3 * PATIENCE_S,), timeout_s=HANG_S)
        assert pipeline.died is None
        assert data_of(pipeline.submit("fine").result(HANG_S)) == ["fine"]
        os.kill(pid_of(pipeline, "bad"), signal.SIGSTOP)
        report = report_of(pipeline.submit("x", "last"))
    assert_hung(report, "a message has not been handled")
    assert (report.stage, report.requests_lost) == ("bad", ["last"])


def test_off_by_default(announcements: Announcements) -> None:
    """Without step_timeout_s a step may last for ever, also beside a stage that is watched."""
    blocks = fault("step", "block", announce=announcements.path)
    with Pipeline(pipeline_config(slow(0, step_timeout_s=TIMEOUT_S), blocks, shutdown_timeout_s=0.1)) as pipeline:
        handle = pipeline.submit(["x"])
        assert announcements.wait().startswith("step")
        with pytest.raises(TimeoutError):
            handle.result(4 * TIMEOUT_S)
        assert pipeline.died is None


def test_nobody_waits(events: Events) -> None:
    """The hang is seen also when no caller waits for anything."""
    with Pipeline(pipeline_config(hangs("step", "block"))) as pipeline:
        pipeline.submit(["x"], "r1")
        assert events.wait("stage_died")["cause"] == "hung"
        with pytest.raises(StageDiedError):
            pipeline.submit("more")


def test_in_a_run() -> None:
    """A run yields the failed outcome, and then raises."""
    with Pipeline(pipeline_config(hangs("step", "block"))) as pipeline:
        seen: list[Any] = []
        with pytest.raises(StageDiedError) as caught:
            seen.extend(pipeline.run([Request("r1", ["x"])]))
    assert_hung(caught.value.report, "step() has run for")
    assert [(event.id, event.outcome) for event in seen if isinstance(event, Outcome)] == [("r1", "failed")]


def test_outputs_before_the_hang() -> None:
    """What the stage had sent before it hung still reaches the user."""
    with Pipeline(pipeline_config(hangs("step", "block", nth=3))) as pipeline:
        handle = pipeline.submit(["a", "b", "c"])
        seen: list[Any] = []
        with pytest.raises(RequestFailedError):
            seen.extend(result.data for result in handle)
    assert seen == ["a", "b"]


def test_rest_costs_nothing(script: Callable[[str], Script]) -> None:
    """While nothing is to be done there is no timer, neither in the supervisor nor in a watched stage."""
    running = script(
        "with Pipeline(pipeline_config(stage('echo', step_timeout_s=0.25))) as pipeline:\n"
        "    pipeline.submit('x').result(HANG_S)\n    ready(pipeline)\n    threading.Event().wait()\n"
    )
    pids = [running.process.pid, *running.pids()]

    def rest() -> bool:
        before = [_switches(pid) for pid in pids]
        threading.Event().wait(1)  # four times the timer that there would be
        return before == [_switches(pid) for pid in pids]

    with run_directory_stays(), watching(*pids) as wait_gone:
        until(rest, "nobody wakes")
        running.process.kill()
        running.process.wait(HANG_S)
        wait_gone()


def _switches(pid: int) -> int:
    """Context switches so far, over all threads."""
    lines = [line for task in Path(f"/proc/{pid}/task").glob("*/status") for line in task.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches:" in line)
