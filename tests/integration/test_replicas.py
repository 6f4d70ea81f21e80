"""Stages of several replicas: the barrier at their start, who gets which request, and deaths among them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Announcements, Events, data_of, ended, in_thread, pipeline_config, stage, until

from supervisor import Outcome, Pipeline, Request, RequestAbortedError, RequestFailedError, StageDiedError, StartupError

if TYPE_CHECKING:
    from supervisor.handle import Handle


def replicas(count: int, **keys: Any) -> dict[str, Any]:
    """A stage whose replicas answer with their number."""
    args = keys.pop("args", {})
    return stage("who", "engines_for_groups:WhoAmI", args=args, replicas=count, **keys)


def who(handle: Handle) -> int:
    """The replica that answered."""
    ((replica, _),) = data_of(handle.result(HANG_S))
    return int(replica)


def pid_of_replica(pipeline: Pipeline, number: int) -> int:
    return next(info.pid for info in pipeline.stages if info.replica == number)


def pid_of_coordinator(pipeline: Pipeline) -> int:
    return next(info.pid for info in pipeline.processes if info.role == "coordinator")


def outcomes(handles: list[Handle]) -> Counter[str]:
    """How the requests ended, each once."""
    counts: Counter[str] = Counter()
    for handle in handles:
        with contextlib.suppress(RequestFailedError, RequestAbortedError):
            handle.result(HANG_S)
        assert handle.outcome is not None
        counts[handle.outcome] += 1
    return counts


def test_one_replica_has_no_coordinator(events: Events) -> None:
    """A coordinator is there for stages of several replicas only, and the processes tell their roles."""
    with Pipeline(pipeline_config(stage("one"), replicas(2))) as pipeline:
        seen = [(info.role, info.name, info.replica) for info in pipeline.processes]
        stages = [(info.name, info.replica) for info in pipeline.stages]
    assert seen == [
        ("stage", "one", 0),
        ("coordinator", "who", None),
        ("stage", "who", 0),
        ("stage", "who", 1),
    ]
    assert stages == [("one", 0), ("who", 0), ("who", 1)]
    assert [event["stage"] for event in events.of("coordinator_ready")] == ["who"]


def test_requests_are_shared_out() -> None:
    """Requests that all wait are shared out equally."""
    with Pipeline(pipeline_config(replicas(3, args={"free": False}))) as pipeline:
        handles = [pipeline.submit(number) for number in range(30)]
        for number in range(3):
            pipeline.utility("who", "open", (1,), replica=number, timeout_s=HANG_S)
        assert Counter(map(who, handles)) == {0: 10, 1: 10, 2: 10}


def test_least_loaded_goes_round_a_busy_replica() -> None:
    """A replica that does not get on is given no more than its share; the others take the rest."""
    with Pipeline(pipeline_config(replicas(2, args={"free": False}))) as pipeline:
        pipeline.utility("who", "open", (1000,), replica=1, timeout_s=HANG_S)
        stuck = pipeline.submit("first")
        numbers = [who(pipeline.submit(number)) for number in range(20)]
        assert numbers == [1] * 20
        stuck.abort()
    assert stuck.outcome == "aborted"


def test_sticky() -> None:
    """Requests of one session go to one replica, as do those of one id; sessions spread."""
    with Pipeline(pipeline_config(replicas(2, balance="sticky"))) as pipeline:
        by_session = {name: {who(pipeline.submit(1, session=name)) for _ in range(5)} for name in "abcdefgh"}
        by_id = {who(pipeline.submit(1, "the same")) for _ in range(5)}
    assert all(len(numbers) == 1 for numbers in by_session.values())
    assert len(set.union(*by_session.values())) == 2
    assert len(by_id) == 1


def test_odd_sessions() -> None:
    """Any text is a session; what is no text fails alone."""
    with Pipeline(pipeline_config(replicas(2, balance="sticky"))) as pipeline:
        for session in ("", "\ud800", "s" * 100_000, "é/\0"):
            assert who(pipeline.submit(1, session=session)) == who(pipeline.submit(2, session=session))
        number: Any = 7
        with pytest.raises(TypeError, match="session 7 must be a str, not int"):
            pipeline.submit(1, session=number)
        (outcome,) = pipeline.run([Request("r", 1, session=number)])
        assert isinstance(outcome, Outcome)
        assert "session 7 must be a str" in str(outcome.error)
        assert who(pipeline.submit(1)) in {0, 1}


def test_abort_goes_to_the_replica_that_has_the_request() -> None:
    """The other replica's requests live on, and the aborted one emits nothing more."""
    with Pipeline(pipeline_config(replicas(2, args={"free": False}))) as pipeline:
        handles = [pipeline.submit(number) for number in range(4)]
        handles[0].abort()
        for number in range(2):
            pipeline.utility("who", "open", (1,), replica=number, timeout_s=HANG_S)
        assert sorted(map(who, handles[1:])) == [0, 1, 1]
        with pytest.raises(RequestAbortedError):
            handles[0].result(HANG_S)


def test_full_replicas_make_requests_wait() -> None:
    """What finds every replica full waits; an abort makes room, and what had its place cannot come back to life."""
    with Pipeline(pipeline_config(replicas(2, args={"free": False}, max_in_flight=1))) as pipeline:
        first, second, third = (pipeline.submit(number) for number in range(3))
        assert pipeline.in_flight == 3
        first.abort()  # its ABORT goes ahead of the ADD of the third, on the same way
        for number in range(2):
            pipeline.utility("who", "open", (9,), replica=number, timeout_s=HANG_S)
        assert [who(second), who(third)] == [1, 0]
        with pytest.raises(RequestAbortedError):
            first.result(HANG_S)
        # The id is free at once, and the new request gets its own results only.
        assert data_of(pipeline.submit("new", first.id).result(HANG_S))[0][1] == "new"


def test_replica_that_subscribes_last(events: Events, announcements: Announcements) -> None:
    """No replica is READY before every one listens."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    args = {"which": 1, "announce_to": announcements.path, "trigger": trigger}
    config = pipeline_config(stage("slow", "engines_for_groups:SlowReplica", args=args, replicas=2))
    pipeline = Pipeline(config)
    starter = in_thread(pipeline.start)
    announcements.wait()
    until(lambda: events.of("coordinator_ready"), "the coordinator is ready")
    assert events.of("stage_ready") == []
    with Path(trigger).open("r+b", buffering=0) as file:
        file.write(b"1")
        assert ended(starter)
    Path(trigger).unlink()
    assert sorted(event["replica"] for event in events.of("stage_ready")) == [0, 1]
    pipeline.close()


@pytest.mark.usefixtures("logs_may_stay")
@pytest.mark.parametrize(
    ("engine", "victim"),
    [("SlowReplica", "replica"), ("SlowReplica", "coordinator"), ("DeafReplica", "coordinator")],
)
def test_death_before_the_barrier_is_full(
    events: Events, announcements: Announcements, engine: str, victim: str
) -> None:
    """Who dies before every replica listens ends the start with its report, and the others end in order."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    args = {"which": 1, "announce_to": announcements.path, "trigger": trigger}
    config = pipeline_config(stage("slow", f"engines_for_groups:{engine}", args=args, replicas=2))

    def strike() -> None:
        pid = int(announcements.wait().removeprefix("building "))
        if victim == "coordinator":
            pid = events.wait("coordinator_ready")["pid"]
        os.kill(pid, signal.SIGKILL)

    striker = in_thread(strike)
    with pytest.raises(StartupError) as caught, Pipeline(config):
        pytest.fail("it became ready")
    assert ended(striker)
    Path(trigger).unlink()
    report = caught.value.report
    assert events.of("stage_killed") == []  # who waits for the others ends when it is asked to
    role = "coordinator" if victim == "coordinator" else "stage"
    assert (report.role, report.stage, report.signal) == (role, "slow", "SIGKILL")
    assert report.replica == (None if victim == "coordinator" else 1)


@pytest.mark.usefixtures("logs_may_stay")
def test_late_replica(events: Events, announcements: Announcements) -> None:
    """When the start takes too long, who is blamed is the replica that the others wait for; those end in order."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    args = {"which": 1, "announce_to": announcements.path, "trigger": trigger}
    config = pipeline_config(
        stage("slow", "engines_for_groups:SlowReplica", args=args, replicas=3), startup_timeout_s=2
    )
    with pytest.raises(StartupError) as caught, Pipeline(config):
        pytest.fail("it became ready")
    Path(trigger).unlink()
    report = caught.value.report
    assert (report.replica, report.cause, report.phase) == (1, "startup_timeout", "init")
    assert events.of("stage_killed") == []


@pytest.mark.parametrize("work", [0, 20])
def test_coordinator_dies(events: Events, work: int) -> None:
    """The death of a coordinator is one of its pipeline, with a report of its own."""
    with Pipeline(pipeline_config(replicas(2, args={"free": False}, on_death="degrade"))) as pipeline:
        handles = [pipeline.submit(number) for number in range(work)]
        os.kill(pid_of_coordinator(pipeline), signal.SIGKILL)
        events.wait("stage_died")
        assert outcomes(handles) == Counter({"failed": work} if work else {})
        until(lambda: pipeline.died, "the death is known")
        with pytest.raises(StageDiedError):
            pipeline.submit(1)
    report = pipeline.died
    assert report is not None
    assert (report.role, report.stage, report.replica, report.signal) == ("coordinator", "who", None, "SIGKILL")
    assert "the coordinator of stage 'who'" in report.render()
    assert len(events.of("stage_died")) == 1


def test_replica_dies_and_all_ends(events: Events) -> None:
    """By default the death of a replica ends everything."""
    with Pipeline(pipeline_config(replicas(2, args={"free": False}))) as pipeline:
        handles = [pipeline.submit(number) for number in range(10)]
        os.kill(pid_of_replica(pipeline, 1), signal.SIGKILL)
        assert outcomes(handles) == {"failed": 10}
        assert pipeline.died is not None
        assert (pipeline.died.stage, pipeline.died.replica) == ("who", 1)
    assert len(events.of("stage_died")) == 1


def test_replica_dies_and_the_others_go_on(events: Events) -> None:
    """With `degrade` a death costs what the replica had, and nothing else; the last one's death stops the pipeline."""
    with Pipeline(pipeline_config(replicas(3, args={"free": False}, on_death="degrade"))) as pipeline:
        handles = [pipeline.submit(number) for number in range(30)]
        os.kill(pid_of_replica(pipeline, 1), signal.SIGKILL)
        left = events.wait("replica_left")
        assert (left["stage"], left["replica"]) == ("who", 1)
        for number in (0, 2):
            pipeline.utility("who", "open", (1000,), replica=number, timeout_s=HANG_S)
        assert outcomes(handles) == {"finished": 20, "failed": 10}
        failed = next(handle for handle in handles if handle.outcome == "failed")
        assert failed.report is not None
        assert (failed.report.replica, len(failed.report.requests_lost)) == (1, 10)
        assert {who(pipeline.submit(number)) for number in range(8)} == {0, 2}
        assert [info.replica for info in pipeline.stages] == [0, 2]
        os.kill(pid_of_replica(pipeline, 0), signal.SIGKILL)
        until(lambda: len(events.of("replica_left")) == 2, "the others go on")
        assert who(pipeline.submit("x")) == 2
        os.kill(pid_of_replica(pipeline, 2), signal.SIGKILL)
        until(lambda: pipeline.died, "the last death ends it")
    assert pipeline.died is not None
    assert pipeline.died.replica == 2
    assert [event["replica"] for event in events.of("stage_died")] == [1, 0, 2]


def test_utility_call_of_a_replica_that_dies() -> None:
    """A call that waits for a replica fails when that one dies, though the others go on."""
    config = pipeline_config(replicas(2, on_death="degrade"))
    with Pipeline(config) as pipeline:
        pid = pid_of_replica(pipeline, 0)
        os.kill(pid, signal.SIGSTOP)
        failures: list[Exception] = []

        def call() -> None:
            try:
                pipeline.utility("who", "open", (1,), replica=0, timeout_s=HANG_S)
            except Exception as exc:
                failures.append(exc)

        caller = in_thread(call)
        until(lambda: pipeline._core.switchboard._calls._waiting, "the call is under way")
        os.kill(pid, signal.SIGKILL)
        assert ended(caller)
        assert [type(exc).__name__ for exc in failures] == ["UtilityError"]
        assert who(pipeline.submit(1)) == 1


def test_idle_group_uses_no_cpu() -> None:
    """Replicas and coordinator of a group without work do not run at all."""
    with Pipeline(pipeline_config(replicas(2))) as pipeline:
        assert {who(pipeline.submit(number)) for number in range(4)} == {0, 1}
        pids = [info.pid for info in pipeline.processes]
        until(lambda: all(_switches(pid) == _switches(pid, 0.3) for pid in pids), "all are at rest")


def _switches(pid: int, after_s: float = 0.0) -> int:
    """Context switches of all threads of a process, `after_s` from now."""
    threading.Event().wait(after_s)
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    )
