"""Who gets a signal, which one, when and how often: the command ends cleanly, or says which stage was killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_command import Command, lines, write_config
from harness import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Announcements

JSON: tuple[str, ...] = ("--log-format", "json")


def to_parent(command: Command, signum: signal.Signals) -> None:
    command.process.send_signal(signum)


def to_group(command: Command, signum: signal.Signals) -> None:
    os.killpg(command.process.pid, signum)


def to_all(command: Command, signum: signal.Signals) -> None:
    """Signal the stages and then the command, as who stops a service may do it."""
    for stage in ("a", "b"):
        with suppress(ProcessLookupError):
            os.kill(command.event("stage_spawned", stage=stage)["pid"], signum)
    command.process.send_signal(signum)


def to_stage(command: Command, signum: signal.Signals) -> None:
    pid = command.event("stage_spawned", stage="a")["pid"]
    # From then on it heeds SIGINT; before, it takes it for one of the terminal's.
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "stage:a/0\n", "the stage names itself")
    os.kill(pid, signum)


SIGNUMS = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
TIMES = pytest.mark.parametrize("times", [1, 2])
SENDS = pytest.mark.parametrize("send", [to_parent, to_group, to_all])
SENDS_TO_US = pytest.mark.parametrize("send", [to_parent, to_group])


@SIGNUMS
@TIMES
@SENDS
def test_while_a_stage_starts(
    tmp_path: Path, send: Callable[[Command, signal.Signals], None], times: int, signum: signal.Signals
) -> None:
    """A signal to the command ends a start cleanly, be it sent twice."""
    config = write_config(tmp_path, "Echo", "SlowInit", shutdown_timeout_s=5)
    with Command("--config", config, "--serve", *JSON) as command:
        command.event("stage_ready", stage="a")
        for _ in range(times):
            send(command, signum)
        assert command.finish() == 128 + signum
    assert "stage_died" not in command.err.text()


@SIGNUMS
@TIMES
@SENDS
def test_at_work(
    tmp_path: Path, send: Callable[[Command, signal.Signals], None], times: int, signum: signal.Signals
) -> None:
    """A signal to the command ends requests as aborted and stages in order, be it sent twice."""
    config = write_config(tmp_path, "Hold", "Echo")
    with Command("--config", config, "--input", "-", *JSON, stdin=None) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        for _ in range(times):
            send(command, signum)
        assert command.finish() == 128 + signum
    assert command.outcomes() == {"held": "aborted", "done": "finished"}
    assert "stage_died" not in command.err.text()


@SIGNUMS
@SENDS_TO_US
def test_while_it_stops(
    tmp_path: Path,
    announcements: Announcements,
    send: Callable[[Command, signal.Signals], None],
    signum: signal.Signals,
) -> None:
    """The second signal to the command makes the stop immediate, a third one changes nothing."""
    config = write_config(tmp_path, "Stubborn", shutdown_timeout_s=1000)
    with Command("--config", config, "--serve", *JSON, env={"ANNOUNCE": announcements.path}) as command:
        command.event("pipeline_ready")
        send(command, signum)
        assert announcements.wait() == "shutdown"
        send(command, signum)
        send(command, signum)
        assert command.finish() == 128 + signum
    assert command.event("stage_killed")["reason"] == "a second request to stop"
    assert "stage_died" not in command.err.text()


@pytest.mark.usefixtures("logs_may_stay")
@SIGNUMS
@TIMES
def test_to_a_stage_that_starts(tmp_path: Path, times: int, signum: signal.Signals) -> None:
    """A signal to a stage that is starting is a failure to start, and the report names the signal."""
    config = write_config(tmp_path, "SlowInit", "Echo")
    with Command("--config", config, "--serve", *JSON) as command:
        command.event("stage_ready", stage="b")
        for _ in range(times):
            to_stage(command, signum)
        assert command.finish() == 3
    died = command.event("stage_died")
    assert (died["stage"], died["exit_code"]) == ("a", 0)
    assert signum.name in died["error_message"]


@pytest.mark.usefixtures("logs_may_stay")
@SIGNUMS
@TIMES
def test_to_a_stage_at_work(tmp_path: Path, times: int, signum: signal.Signals) -> None:
    """A signal to a stage at work ends it in order, which nobody asked for: a death, whose report names the signal."""
    config = write_config(tmp_path, "Hold", "Echo")
    with Command("--config", config, "--input", "-", *JSON, stdin=None) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        for _ in range(times):
            to_stage(command, signum)
        assert command.finish() == 3
    died = command.event("stage_died")
    assert (died["stage"], died["exit_code"], died["cause"]) == ("a", 0, "exit")
    assert signum.name in died["error_message"]
    assert command.outcomes() == {"held": "failed", "done": "finished"}


@SIGNUMS
@TIMES
def test_to_a_stage_that_stops(
    tmp_path: Path, announcements: Announcements, times: int, signum: signal.Signals
) -> None:
    """A signal to a stage that is stopping already does not cut its clean-up off, and is no death."""
    config = write_config(tmp_path, "Stubborn", shutdown_timeout_s=1)
    with Command("--config", config, "--serve", *JSON, env={"ANNOUNCE": announcements.path}) as command:
        command.event("pipeline_ready")
        to_parent(command, signal.SIGTERM)
        assert announcements.wait() == "shutdown"
        for _ in range(times):
            to_stage(command, signum)
        assert command.finish() == 143
    # It was still shutting down when its time was over.
    assert command.event("stage_killed")["shutdown_timeout_s"] == 1
    assert "stage_died" not in command.err.text()
