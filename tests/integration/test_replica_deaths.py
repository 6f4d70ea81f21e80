"""Deaths in groups of replicas under load, while they grow, shrink and close: each request ends once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Announcements, Events, data_of, ended, fault, in_thread, pipeline_config, stage, until
from scripts import Script, assert_gone, run_directory_stays
from traffic import Traffic

from supervisor import Pipeline, RequestFailedError, StageDiedError, StartupError, UtilityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.handle import Handle


def who(count: int = 2, **keys: Any) -> dict[str, Any]:
    return stage("who", "engines_for_groups:WhoAmI", replicas=count, **keys)


def pid_of_replica(pipeline: Pipeline, number: int | None) -> int:
    return next(info.pid for info in pipeline.processes if info.name == "who" and info.replica == number)


def wait_retired(pipeline: Pipeline, number: int) -> None:
    """Wait until a replica takes no more requests."""
    seats = pipeline._core.switchboard._ledger._nodes["who"].seats
    until(lambda: number not in [seat.replica for seat in seats], "it takes no more")


@pytest.mark.parametrize("victim", [0, 1, None])
@pytest.mark.parametrize("on_death", ["stop", "degrade"])
def test_killed_under_load(events: Events, victim: int | None, on_death: str) -> None:
    """A replica costs its requests, or the pipeline; the coordinator always the pipeline."""
    with Pipeline(pipeline_config(who(on_death=on_death), max_in_flight=1000)) as pipeline:
        traffic = [Traffic(pipeline) for _ in range(3)]
        for one in traffic:
            one.wait_for_answers_of([0, 1])
        os.kill(pid_of_replica(pipeline, victim), signal.SIGKILL)
        goes_on = on_death == "degrade" and victim is not None
        if goes_on:
            events.wait("replica_left")
            other = 1 - (victim or 0)
            for one in traffic:
                one.wait_for_answers_of([other])
        else:
            until(lambda: pipeline.died, "the death is known")
        for one in traffic:
            one.end()
        (report,) = pipeline.deaths
        assert (report.replica, report.signal, report.collateral_of) == (victim, "SIGKILL", None)
        failed = [handle.id for one in traffic for handle in one.failed]
        assert sorted(failed) == sorted(report.requests_lost)
        assert (pipeline.died is None) == goes_on
        assert pipeline.in_flight == 0


def test_all_replicas_are_killed_at_once(events: Events) -> None:
    """The last one ends the pipeline, whichever that is, and each death has its report."""
    with Pipeline(pipeline_config(who(3, on_death="degrade"))) as pipeline:
        traffic = Traffic(pipeline)
        traffic.wait_for_answers_of([0, 1, 2])
        for info in pipeline.stages:
            os.kill(info.pid, signal.SIGKILL)
        until(lambda: pipeline.died, "the pipeline ends")
        traffic.end()
    assert sorted(event["replica"] for event in events.of("stage_died")) == [0, 1, 2]
    lost = [request for report in pipeline.deaths for request in report.requests_lost]
    assert sorted(lost) == sorted(handle.id for handle in traffic.failed)


@pytest.mark.parametrize("victim", [0, None])
def test_last_one_or_coordinator_dies_while_another_leaves(victim: int | None) -> None:
    """A replica that only finishes what it has is no one to go on with, nor is a group without its coordinator."""
    with Pipeline(pipeline_config(who(args={"free": False}, on_death="degrade"))) as pipeline:
        handles = [pipeline.submit(number) for number in range(4)]
        errors: list[Exception] = []

        def shrink() -> None:
            try:
                pipeline.scale("who", 1)
            except StageDiedError as exc:
                errors.append(exc)

        shrinker = in_thread(shrink)
        wait_retired(pipeline, 1)
        os.kill(pid_of_replica(pipeline, victim), signal.SIGKILL)
        for handle in handles:
            with pytest.raises(RequestFailedError):
                handle.result(HANG_S)
        assert ended(shrinker)
        assert [type(error) for error in errors] == [StageDiedError]
        with pytest.raises(StageDiedError):
            pipeline.submit(1)


def fail(pipeline: Pipeline) -> Handle:
    """Let replica 1 fail, and wait until that is known; returns a request that it has."""
    pipeline.utility("who", "fail", (), replica=1, timeout_s=HANG_S)
    handles = [pipeline.submit(number) for number in range(2)]
    assert data_of(handles[0].result(HANG_S)) == [[0, 0]]
    pipeline.utility("who", "open", (1,), replica=1, timeout_s=HANG_S)
    wait_retired(pipeline, 1)
    return handles[1]


def test_coordinator_and_replica_die_at_once(events: Events) -> None:
    """The cause of the end is the coordinator, without which nobody can go on, whoever is noticed first."""
    with Pipeline(pipeline_config(who(on_death="degrade"))) as pipeline:
        pids = [pid_of_replica(pipeline, number) for number in (1, None)]
        with pipeline._core.switchboard.lock:  # nobody handles a death meanwhile
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for pid in pids:
                until(lambda pid=pid: "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(), "it has ended")  # type: ignore[misc]
        until(lambda: pipeline.died, "the pipeline ends")
    assert pipeline.died is not None
    assert pipeline.died.role == "coordinator"
    assert sorted(event["role"] for event in events.of("stage_died")) == ["coordinator", "stage"]


def test_failed_replica_that_takes_long_to_end(events: Events, announcements: Announcements) -> None:
    """While its engine shuts down the others go on; its report comes when it has ended."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    args = {"which": 1, "trigger": trigger}
    config = pipeline_config(
        stage("who", "engines_for_groups:HangsAtTheEnd", args=args, replicas=2, on_death="degrade"),
        shutdown_timeout_s=HANG_S,
    )
    with Pipeline(config) as pipeline:
        lost = fail(pipeline)
        assert [data_of(pipeline.submit(number).result(HANG_S))[0][0] for number in range(20)] == [0] * 20
        assert (pipeline.deaths, lost.outcome) == ((), None)
        with Path(trigger).open("r+b", buffering=0) as file:
            file.write(b"1")
            events.wait("replica_left")
        with pytest.raises(RequestFailedError, match="a step too far"):
            lost.result(HANG_S)
        (report,) = pipeline.deaths
        assert (report.cause, report.exit_code, report.requests_lost) == ("fatal", 1, [lost.id])
    Path(trigger).unlink()


@pytest.mark.parametrize("ending", ["deadline", "close", "death"])
def test_failed_replica_that_never_ends(events: Events, ending: str) -> None:
    """It is killed after `shutdown_timeout_s`, and reported as what it is, also if the pipeline ends meanwhile."""
    args = {"which": 1}
    config = pipeline_config(
        stage("who", "engines_for_groups:HangsAtTheEnd", args=args, replicas=2, on_death="degrade"),
        shutdown_timeout_s=0.5,
    )
    with Pipeline(config) as pipeline:
        lost = fail(pipeline)
        if ending == "deadline":
            events.wait("replica_left")
            assert data_of(pipeline.submit(1).result(HANG_S)) == [[0, 1]]
        if ending == "death":
            os.kill(pid_of_replica(pipeline, 0), signal.SIGKILL)
            until(lambda: pipeline.died, "the last one's death ends it")
    assert lost.outcome == ("aborted" if ending == "close" else "failed")
    reports = {report.replica: report for report in pipeline.deaths}
    assert (reports[1].cause, reports[1].exit_code) == ("fatal", -9)
    assert reports[1].requests_lost == ([] if ending == "close" else [lost.id])
    assert {report.collateral_of for report in pipeline.deaths} == {None}
    assert set(reports) == ({0, 1} if ending == "death" else {1})


def test_newcomer_is_watched(events: Events) -> None:
    """A `step_timeout_s` holds for replicas that join later, too."""
    keys = {"name": "who", "replicas": 2, "step_timeout_s": 0.4, "on_death": "degrade"}
    config = pipeline_config({**fault("step", "block"), **keys})
    with Pipeline(config) as pipeline:
        pipeline.scale("who", 3)
        for count in range(3):
            until(lambda count=count: len(events.of("replica_left")) == count, "the one before is gone")  # type: ignore[misc]
            with pytest.raises(RequestFailedError, match="step_timeout_s"):
                pipeline.submit(["x"]).result(HANG_S)
    assert sorted(report.replica or 0 for report in pipeline.deaths) == [0, 1, 2]
    assert [report.cause for report in pipeline.deaths] == ["hung"] * 3


def test_newcomer_that_cannot_be_built(events: Events) -> None:
    """Its own error ends the call to `scale`, and nothing else."""
    config = pipeline_config(stage("who", "engines_for_groups:FailsFrom", args={"which": 2}, replicas=2))
    with Pipeline(config) as pipeline:
        with pytest.raises(StartupError, match="no room for replica 2") as caught:
            pipeline.scale("who", 4)
        assert (caught.value.report.cause, caught.value.report.phase) == ("fatal", "init")
        assert [info.replica for info in pipeline.stages] == [0, 1]
        assert data_of(pipeline.submit("x").result(HANG_S))[0][1] == "x"
    assert sorted(event["replica"] for event in events.of("stage_died")) == [2, 3]


def test_leaving_replica_that_does_not_end(events: Events) -> None:
    """One whose `shutdown` hangs is killed after `shutdown_timeout_s`; that is no death."""
    config = pipeline_config(
        stage("who", "engines_for_groups:HangsAtTheEnd", args={"which": 1}, replicas=2), shutdown_timeout_s=0.3
    )
    with Pipeline(config) as pipeline:
        pipeline.scale("who", 1)
        assert [event["replica"] for event in events.of("stage_killed")] == [1]
        assert [event["replica"] for event in events.of("replica_left")] == [1]
        assert pipeline.deaths == ()
        assert data_of(pipeline.submit("x").result(HANG_S)) == [[0, "x"]]


def test_utility_calls_and_replicas_that_leave() -> None:
    """A call to one that has left is refused; one that waits when it leaves fails."""
    with Pipeline(pipeline_config(who(args={"free": False}), shutdown_timeout_s=0.3)) as pipeline:
        handles = [pipeline.submit(number) for number in range(2)]
        failures: list[Exception] = []

        def call() -> None:
            try:
                pipeline.utility("who", "block", (), replica=1, timeout_s=HANG_S)
            except UtilityError as exc:
                failures.append(exc)

        caller = in_thread(call)
        until(lambda: pipeline._core.switchboard._calls._waiting, "the call is under way")
        handles[1].abort()
        pipeline.scale("who", 1)
        assert ended(caller)
        assert "stage 'who/1' has left" in str(failures[0])
        with pytest.raises(ValueError, match=r"no stage process 'who/1': there are who/0$"):
            pipeline.utility("who", "open", (1,), replica=1)
        pipeline.utility("who", "open", (1,), timeout_s=HANG_S)
        assert data_of(handles[0].result(HANG_S)) == [[0, 0]]


def test_newcomers_know_how_many_there_are() -> None:
    """`STAGE_REPLICAS` is their number as the replica starts."""
    with Pipeline(pipeline_config(stage("echo", replicas=2))) as pipeline:
        pipeline.scale("echo", 3)
        pipeline.scale("echo", 2)
        pipeline.scale("echo", 3)
        seen = {
            info.replica: pipeline.utility("echo", "environ", ("STAGE_REPLICAS",), replica=info.replica or 0)
            for info in pipeline.stages
        }
    assert seen == {number: {"STAGE_REPLICAS": count} for number, count in ((0, "2"), (1, "2"), (3, "3"))}


@pytest.mark.parametrize("count", [1, 4])
def test_close_while_it_scales(count: int) -> None:
    """The call ends with the pipeline, whatever it waits for."""
    pipeline = Pipeline(pipeline_config(who(args={"free": False})))
    pipeline.start()
    handles = [pipeline.submit(number) for number in range(4)]
    begun = threading.Event()
    errors: list[BaseException] = []

    def scale() -> None:
        begun.set()
        try:
            pipeline.scale("who", count)
        except RuntimeError as exc:
            errors.append(exc)

    scaler = in_thread(scale)
    assert begun.wait(HANG_S)
    if count == 1:
        wait_retired(pipeline, 1)
    pipeline.close()
    assert ended(scaler)
    assert [str(error) for error in errors] == ["the pipeline is closed"]
    assert {handle.outcome for handle in handles} == {"aborted"}
    assert {info.state for info in pipeline.processes} == {"dead"}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("closed", ["half", "whole"])
def test_scale_behind_a_close(count: int, closed: str) -> None:
    """A call that was let in before the pipeline closed, and runs on after that, says so and harms nobody."""
    config = pipeline_config(who())
    pipeline = Pipeline(config)
    pipeline.start()
    core = pipeline._core
    if closed == "half":  # the run directory is gone, the sockets are not
        core.switchboard.close("the pipeline is closed")
        core.manager.close()
    else:
        pipeline.close()
    if count == 1:
        core.scaling.scale(config.stages[0], count)  # `Pipeline.scale` raises behind it
    else:
        with pytest.raises(RuntimeError, match="the pipeline is closed"):
            core.scaling.scale(config.stages[0], count)
    pipeline.close()


def test_supervisor_is_killed(script: Callable[[str], Script]) -> None:
    """Replicas and coordinator end with their supervisor."""
    running = script(
        "config = pipeline_config(stage('who', 'engines_for_groups:WhoAmI', replicas=2))\n"
        "with Pipeline(config) as pipeline:\n"
        "    pipeline.scale('who', 3)\n"
        "    announce(FIFO, ' '.join(str(info.pid) for info in pipeline.processes))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pids = running.pids()
    assert len(pids) == 4
    with run_directory_stays():
        assert running.end()[0] == -signal.SIGKILL
        assert_gone(pids)
