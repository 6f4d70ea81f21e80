"""`Pipeline.scale`: replicas join and leave while requests run, and every request ends once."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from harness import HANG_S, Announcements, Events, data_of, ended, in_thread, pipeline_config, stage, until
from traffic import Traffic

from supervisor import Pipeline, RequestFailedError, SpawnError, StageDiedError, StartupError, UtilityError
from supervisor.scaling import DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.stage_proc import StageProc


def who(**keys: Any) -> dict[str, Any]:
    return stage("who", "engines_for_groups:WhoAmI", **{"replicas": 2, **keys})


def numbers(pipeline: Pipeline) -> list[int | None]:
    return [info.replica for info in pipeline.stages]


def test_up_and_down_under_load(events: Events) -> None:
    """Nothing is lost, newcomers take their share, and those that leave end in order."""
    with Pipeline(pipeline_config(who())) as pipeline:
        traffic = Traffic(pipeline)
        for count, expected in ((4, [0, 1, 2, 3]), (1, [0]), (3, [0, 4, 5]), (3, [0, 4, 5]), (2, [0, 4])):
            pipeline.scale("who", count)
            assert numbers(pipeline) == expected
            traffic.wait_for_answers_of(expected)
        traffic.end()
        assert traffic.failed == []
    assert sorted(event["replica"] for event in events.of("replica_joined")) == [2, 3, 4, 5]
    assert sorted(event["replica"] for event in events.of("replica_left")) == [1, 2, 3, 5]
    assert events.of("stage_died") == []
    assert events.of("stage_killed") == []


def test_nothing_gathers() -> None:
    """A stage that grows and shrinks again and again leaves no descriptors, neither here nor in the guardian."""
    with Pipeline(pipeline_config(who())) as pipeline:
        (guardian,) = pipeline._core.manager._guardians
        assert guardian._process is not None
        pids = (os.getpid(), guardian._process.pid)
        counts = []
        for _ in range(4):
            pipeline.scale("who", 4)
            pipeline.scale("who", 2)
            counts.append([len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids])
        files = {path.name for path in pipeline._core.manager.run_dir.path.iterdir()}
    assert counts[0] == counts[-1]
    assert not [name for name in files if name.startswith(("who-2", "who-9", "output-0-2", "output-0-9"))]


def test_what_waits_goes_to_a_newcomer() -> None:
    """Requests that wait for room are given to a replica that joins."""
    config = pipeline_config(who(args={"free": False}, max_in_flight=1))
    with Pipeline(config) as pipeline:
        handles = [pipeline.submit(number) for number in range(3)]
        pipeline.scale("who", 3)
        pipeline.utility("who", "open", (9,), replica=2, timeout_s=HANG_S)
        assert data_of(handles[2].result(HANG_S)) == [[2, 2]]


def test_leaving_replica_finishes_what_it_has(events: Events) -> None:
    """It takes no new request, and is not ended before it has answered the old ones."""
    with Pipeline(pipeline_config(who(args={"free": False}))) as pipeline:
        old = [pipeline.submit(number) for number in range(4)]
        shrinker = in_thread(lambda: pipeline.scale("who", 1))
        pipeline.utility("who", "open", (1000,), replica=0, timeout_s=HANG_S)
        assert [data_of(handle.result(HANG_S))[0][0] for handle in old[::2]] == [0, 0]
        until(lambda: data_of(pipeline.submit("new").result(HANG_S))[0][0] == 0, "new ones go to the other")
        assert events.of("replica_left") == []
        pipeline.utility("who", "open", (1000,), replica=1, timeout_s=HANG_S)
        assert [data_of(handle.result(HANG_S))[0][0] for handle in old[1::2]] == [1, 1]
        assert ended(shrinker)
        assert numbers(pipeline) == [0]


def test_last_words_of_one_that_leaves() -> None:
    """What a newcomer has said is read before it is polled no more, also if both come up at once."""
    with Pipeline(pipeline_config(who())) as pipeline:
        pipeline.scale("who", 3)
        monitor = pipeline._core._monitor
        inlet = monitor._inlets[next(proc for proc in monitor._inlets if proc.replica == 2)]
        poll, has_turned, is_held = monitor._wait, threading.Event(), threading.Event()

        def poll_both(timeout_s: float | None) -> list[tuple[Any, int]]:
            has_turned.set()
            events = poll(timeout_s)
            while is_held.is_set() and not {monitor._wake_fd, inlet.socket} <= {item for item, _ in events}:
                with pipeline._core.switchboard.lock:
                    pipeline._core.switchboard.outbox.flush()  # as whoever polls does, be the call part of a burst
                events = poll(0.01)
            is_held.clear()
            return events

        monitor._wait = poll_both  # type: ignore[method-assign]
        monitor.wake()
        assert has_turned.wait(HANG_S)
        is_held.set()
        answers: list[Any] = []
        caller = in_thread(lambda: answers.append(pipeline.utility("who", "open", (1,), replica=2, timeout_s=HANG_S)))
        pipeline.scale("who", 2)
        assert ended(caller)
        assert len(answers) == 1
        assert numbers(pipeline) == [0, 1]
        assert data_of(pipeline.submit("x").result(HANG_S))[0][1] == "x"


def test_drain_timeout() -> None:
    """What a leaving replica has not finished in time fails, and the message names the limit."""
    with Pipeline(pipeline_config(who(args={"free": False}, drain_timeout_s=0.2))) as pipeline:
        handles = [pipeline.submit(number) for number in range(2)]
        pipeline.scale("who", 1)
        with pytest.raises(RequestFailedError, match=r"drain_timeout_s"):
            handles[1].result(HANG_S)
        pipeline.utility("who", "open", (1,), replica=0, timeout_s=HANG_S)
        assert data_of(handles[0].result(HANG_S)) == [[0, 0]]


def slow(announcements: Announcements, trigger: str, **keys: Any) -> dict[str, Any]:
    args = {"which": 2, "announce_to": announcements.path, "trigger": trigger}
    return stage("who", "engines_for_groups:SlowReplica", args=args, replicas=2, **keys)


@pytest.mark.usefixtures("logs_may_stay")
def test_newcomer_is_killed(events: Events, announcements: Announcements) -> None:
    """A replica that dies before it has joined fails the call, and nothing else."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    with Pipeline(pipeline_config(slow(announcements, trigger))) as pipeline:
        traffic = Traffic(pipeline)
        killer = in_thread(lambda: os.kill(int(announcements.wait().removeprefix("building ")), signal.SIGKILL))
        with pytest.raises(StartupError, match="replica 2") as caught:
            pipeline.scale("who", 3)
        assert ended(killer)
        assert caught.value.report.signal == "SIGKILL"
        assert numbers(pipeline) == [0, 1]
        traffic.end()
        assert traffic.failed == []
        assert pipeline.died is None
    Path(trigger).unlink()
    assert [event["replica"] for event in events.of("stage_died")] == [2]


def test_utility_call_to_a_newcomer(announcements: Announcements) -> None:
    """One that has not joined yet cannot be called: what is sent to it would be lost, and nobody would tell."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    with Pipeline(pipeline_config(slow(announcements, trigger))) as pipeline:
        scaler = in_thread(lambda: pipeline.scale("who", 3))
        announcements.wait()
        with pytest.raises(UtilityError, match="has not joined"):
            pipeline.utility("who", "open", (1,), replica=2, timeout_s=HANG_S)
        Path(trigger).write_text("go on\n")
        assert ended(scaler)
        pipeline.utility("who", "open", (1,), replica=2, timeout_s=HANG_S)
    Path(trigger).unlink()


@pytest.mark.usefixtures("logs_may_stay")
def test_newcomer_is_never_ready(events: Events, announcements: Announcements) -> None:
    """A replica that is not ready within `startup_timeout_s` is killed, and the others go on."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    with Pipeline(pipeline_config(slow(announcements, trigger), startup_timeout_s=3)) as pipeline:
        with pytest.raises(StartupError, match="startup_timeout_s") as caught:
            pipeline.scale("who", 3)
        assert (caught.value.report.cause, caught.value.report.phase) == ("startup_timeout", "init")
        assert data_of(pipeline.submit(1).result(HANG_S))[0][1] == 1
    Path(trigger).unlink()


@pytest.mark.usefixtures("logs_may_stay")
@pytest.mark.parametrize("victim", ["replica", "coordinator"])
def test_somebody_dies_while_another_joins(announcements: Announcements, victim: str) -> None:
    """A death that ends the pipeline ends the call as well."""
    trigger = f"{announcements.path}.trigger"
    os.mkfifo(trigger)
    with Pipeline(pipeline_config(slow(announcements, trigger))) as pipeline:
        traffic = Traffic(pipeline)
        pid = next(info.pid for info in pipeline.processes if info.replica == (0 if victim == "replica" else None))

        def strike() -> None:
            announcements.wait()
            os.kill(pid, signal.SIGKILL)

        striker = in_thread(strike)
        with pytest.raises(StageDiedError):
            pipeline.scale("who", 3)
        assert ended(striker)
        traffic.end()
    Path(trigger).unlink()
    assert pipeline.died is not None
    assert pipeline.died.pid == pid


def test_answer_of_a_newcomer_that_leaves_at_once(events: Events) -> None:
    """What it has sent, and its leave, may come in one poll: the leave is heeded first, and closes its socket."""
    with Pipeline(pipeline_config(who())) as pipeline:
        scaling = pipeline._core.scaling

        def retire(proc: StageProc) -> None:
            scaling._membership.retire([proc])

        def leave(_event: dict[str, Any]) -> None:  # on the thread that polls
            handles = [pipeline.submit(number) for number in range(3)]
            with pipeline._core.switchboard.lock:
                pipeline._core.switchboard.outbox.flush()
            (newcomer,) = (proc for proc in pipeline._core.manager.procs if proc.replica == 2)
            assert scaling._transport.pulls["who/2"].socket.poll(int(HANG_S * 1000))
            for handle in handles:
                handle.abort()
            scaling._monitor.soon(partial(retire, newcomer))

        events.react("replica_joined", leave)
        pipeline.scale("who", 3)
        events.wait("replica_left")
        assert data_of(pipeline.submit("x").result(HANG_S))[0][1] == "x"


def descriptors() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


def leave_descriptors(count: int) -> None:
    """Let so many more be opened, and the one that this takes to look."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(limits[0])) - descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], limits[1]))


@pytest.mark.parametrize("step_timeout_s", [None, HANG_S])
def test_no_descriptors_left(step_timeout_s: float | None) -> None:
    """However few there are, a newcomer comes or does not, and nothing else happens; one that does not takes none."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Pipeline(pipeline_config(who(step_timeout_s=step_timeout_s))) as pipeline:
        before = len(descriptors())
        errors = []
        for count in range(DESCRIPTORS - 1):
            leave_descriptors(count)
            try:
                pipeline.scale("who", 3)
            except SpawnError as exc:
                errors.append(str(exc))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert len(descriptors()) <= before
        assert len([error for error in errors if "Too many open files" in error]) == DESCRIPTORS - 1
        leave_descriptors(DESCRIPTORS + 1)
        try:
            pipeline.scale("who", 3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert numbers(pipeline) == [0, 1, 2]


def interrupt_us() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_while_it_grows(events: Events) -> None:
    """The caller is free at once, and what it has begun goes on: the next call counts it."""
    with Pipeline(pipeline_config(who())) as pipeline:
        events.react("stage_spawned", lambda event: interrupt_us() if event["replica"] == 2 else None)
        with pytest.raises(KeyboardInterrupt):
            pipeline.scale("who", 4)
        pipeline.scale("who", 4)
        assert numbers(pipeline) == [0, 1, 2, 3]
        assert [info.state for info in pipeline.stages] == ["ready"] * 4


def test_interrupted_while_it_shrinks() -> None:
    """What a leaving replica has not finished in time fails also when nobody waits any more."""
    with Pipeline(pipeline_config(who(args={"free": False}, drain_timeout_s=0.2))) as pipeline:
        handles = [pipeline.submit(number) for number in range(2)]

        def interrupt() -> None:
            until(lambda: _is_retired(pipeline, 1), "it takes no more")
            interrupt_us()

        interrupter = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipeline.scale("who", 1)
        with pytest.raises(RequestFailedError, match=r"drain_timeout_s"):
            handles[1].result(HANG_S)
        assert ended(interrupter)


def test_newcomer_cannot_be_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails, and the next one, when there is room again, does not."""
    with Pipeline(pipeline_config(who())) as pipeline:
        with monkeypatch.context() as patch:
            error = BlockingIOError(errno.EAGAIN, "no more processes")
            patch.setattr("multiprocessing.process.BaseProcess.start", Mock(side_effect=error))
            with pytest.raises(SpawnError, match="no more processes"):
                pipeline.scale("who", 3)
        pipeline.scale("who", 3)
        assert numbers(pipeline) == [0, 1, 2]


@pytest.mark.parametrize("on_death", ["stop", "degrade"])
def test_leaving_replica_is_killed(events: Events, on_death: str) -> None:
    """Its requests fail; whether the others go on is for `on_death` to say."""
    with Pipeline(pipeline_config(who(args={"free": False}, on_death=on_death))) as pipeline:
        handles = [pipeline.submit(number) for number in range(2)]
        pid = pipeline.stages[1].pid
        errors: list[Exception] = []

        def shrink() -> None:
            try:
                pipeline.scale("who", 1)
            except StageDiedError as exc:
                errors.append(exc)

        shrinker = in_thread(shrink)
        until(lambda: _is_retired(pipeline, 1), "it takes no more")
        os.kill(pid, signal.SIGKILL)
        assert ended(shrinker)
        with pytest.raises(RequestFailedError, match="SIGKILL"):
            handles[1].result(HANG_S)
        assert [type(error) for error in errors] == ([StageDiedError] if on_death == "stop" else [])
        if on_death == "degrade":
            assert numbers(pipeline) == [0]
            pipeline.utility("who", "open", (1,), replica=0, timeout_s=HANG_S)
            assert data_of(handles[0].result(HANG_S)) == [[0, 0]]
    assert [event["replica"] for event in events.of("stage_died")] == [1]


def _is_retired(pipeline: Pipeline, replica: int) -> bool:
    seats = pipeline._core.switchboard._ledger._nodes["who"].seats
    return replica not in [seat.replica for seat in seats]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda pipeline: pipeline.scale("nobody", 2), "there is no stage 'nobody'"),
        (lambda pipeline: pipeline.scale("who", 0), "at least 1"),
        (lambda pipeline: pipeline.scale("who", True), "at least 1"),
        (lambda pipeline: pipeline.scale("one", 2), "began with one replica"),
    ],
)
def test_wrong_calls(call: Callable[[Pipeline], None], error: str) -> None:
    """What cannot be done is refused, with what is wrong."""
    with Pipeline(pipeline_config(who(), stage("one"))) as pipeline, pytest.raises(ValueError, match=error):
        call(pipeline)
