"""SIGINT and SIGTERM end the command cleanly, with status 128+n, at every moment of its life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_command import COUNTDOWN, HANG_S, ROOT, Command, lines, wait_until_full, write_config

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Announcements

BOTH = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])

# Stands before the real module on the import path. It waits until a signal has been handled, without a race: the
# interpreter writes to the wakeup descriptor whenever a handler of ours takes a signal.
WAITING_IMPORT = """\
import os, signal, sys
reader, writer = os.pipe()
os.set_blocking(writer, False)
before = signal.set_wakeup_fd(writer)
os.write(2, b'{"event": "importing"}\\n')
os.write(before, os.read(reader, 1))
signal.set_wakeup_fd(before)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["yaml"]
import yaml
"""


@BOTH
def test_during_imports(tmp_path: Path, signum: signal.Signals) -> None:
    """A signal while modules are imported ends the command before anything is started."""
    (tmp_path / "yaml.py").write_text(WAITING_IMPORT)
    with Command("--config", COUNTDOWN, env={"PYTHONPATH": str(tmp_path)}) as command:
        command.event("importing")
        command.process.send_signal(signum)
        assert command.finish() == 128 + signum
    assert command.err.text() == '{"event": "importing"}\n'
    assert command.outputs() == []


@BOTH
def test_while_a_stage_starts(tmp_path: Path, signum: signal.Signals) -> None:
    """A signal during the handshake ends a start that would take for ever."""
    config = write_config(tmp_path, "Echo", "SlowInit", shutdown_timeout_s=0.5)
    with Command("--config", config, "--serve", "--log-format", "json") as command:
        command.event("stage_ready", stage="a")
        command.process.send_signal(signum)
        assert command.finish() == 128 + signum


@BOTH
def test_while_requests_are_under_way(tmp_path: Path, signum: signal.Signals) -> None:
    """Requests end as aborted, each with its line."""
    config = write_config(tmp_path, "Hold", "Echo")
    with Command("--config", config, "--input", "-", stdin=None) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        command.process.send_signal(signum)
        assert command.finish() == 128 + signum
    assert command.outcomes() == {"held": "aborted", "done": "finished"}
    assert "Traceback" not in command.err.text()


@BOTH
def test_a_second_one_makes_the_stop_immediate(
    tmp_path: Path, announcements: Announcements, signum: signal.Signals
) -> None:
    """A stage that does not end in time is killed at once, not after shutdown_timeout_s."""
    config = write_config(tmp_path, "Stubborn", shutdown_timeout_s=1000)
    arguments: list[str | Path] = ["--config", config, "--input", "-", "--log-format", "json"]
    with Command(*arguments, stdin=None, env={"ANNOUNCE": announcements.path}) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        command.process.send_signal(signum)
        assert announcements.wait() == "shutdown"
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 128 + signum
    assert command.event("stage_killed")["stage"] == "a"
    assert command.outcomes() == {"held": "aborted", "done": "finished"}


@BOTH
def test_a_second_one_while_a_stage_starts(
    tmp_path: Path, announcements: Announcements, signum: signal.Signals
) -> None:
    """During the handshake, too, the second signal makes the stop immediate."""
    config = write_config(tmp_path, "Stubborn", "SlowInit", shutdown_timeout_s=1000)
    arguments: list[str | Path] = ["--config", config, "--serve", "--log-format", "json"]
    with Command(*arguments, env={"ANNOUNCE": announcements.path}) as command:
        command.event("stage_ready", stage="a")
        command.process.send_signal(signum)
        assert announcements.wait() == "shutdown"
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() == 128 + signum


def test_two_at_once_while_a_stage_starts(tmp_path: Path) -> None:
    """Two signals that come together count as two."""
    config = write_config(tmp_path, "Stubborn", "SlowInit", shutdown_timeout_s=1000)
    arguments: list[str | Path] = ["--config", config, "--serve", "--log-format", "json"]
    with Command(*arguments, env={"ANNOUNCE": os.devnull}) as command:
        command.event("stage_ready", stage="a")
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() in {130, 143}  # whichever the kernel tells first


def test_two_at_once_while_requests_are_under_way(tmp_path: Path) -> None:
    """The same at work."""
    config = write_config(tmp_path, "Stubborn", shutdown_timeout_s=1000)
    arguments: list[str | Path] = ["--config", config, "--input", "-", "--log-format", "json"]
    stdin = lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1})
    with Command(*arguments, stdin=stdin, env={"ANNOUNCE": os.devnull}) as command:
        command.output(id="done", outcome="finished")
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() in {130, 143}  # whichever the kernel tells first
    assert command.outcomes() == {"held": "aborted", "done": "finished"}


@pytest.mark.parametrize(
    ("first", "told"), [([15], 1), ([15, 15], 1), ([2, 2, 2], 1), ([2, 15], 2), ([15, 2, 15], 2), ([1, 1], 1)]
)
def test_an_echo_is_no_second_signal(first: list[int], told: int) -> None:
    """Signals of one kind that come together are one request to stop; from then on each one counts."""
    code = f"""
import os, select, signal, run_pipeline
stop = run_pipeline.Stop()
stop.install()
signals = signal.set_wakeup_fd(-1)
for signums in ({first}, [15], [15, 15]):
    os.write(signals, bytes(signums))
    select.select([stop.fd], [], [])
    print(os.eventfd_read(stop.fd), stop.count, stop.signum)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=HANG_S, check=True)
    expected = [(told, told, first[0]), (1, told + 1, first[0]), (2, told + 3, first[0])]
    assert expected == [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def test_timeout_asks_for_an_orderly_stop(tmp_path: Path, announcements: Announcements) -> None:
    """`timeout` signals its child and its group, which is one request to stop: the stage may take its time."""
    release = tmp_path / "release"
    os.mkfifo(release)
    config = write_config(tmp_path, "Orderly", shutdown_timeout_s=1000)
    arguments: list[str | Path] = ["--config", config, "--serve", "--log-format", "json"]
    env = {"ANNOUNCE": announcements.path, "RELEASE": str(release)}
    # It passes a signal on as it sends its own.
    with Command(*arguments, env=env, launcher=("timeout", "1000")) as command:
        command.event("pipeline_ready")
        command.process.terminate()
        assert announcements.wait() == "shutdown"
        release.write_text("now\n")
        assert command.finish() == 143
    assert "stage_killed" not in command.err.text()


def test_a_hangup_ends_it_too() -> None:
    """SIGHUP, as from a terminal that is closed, is a clean end."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored, if the tests run under nohup
    try:
        with Command("--config", COUNTDOWN, "--serve", "--log-format", "json") as command:
            command.event("pipeline_ready")
            command.process.send_signal(signal.SIGHUP)
            assert command.finish() == 129
    finally:
        signal.signal(signal.SIGHUP, inherited)


def test_nohup_is_respected() -> None:
    """What was told to ignore SIGHUP ignores it."""
    arguments: list[str | Path] = ["--config", COUNTDOWN, "--serve", "--log-format", "json"]
    launcher = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    with Command(*arguments, launcher=launcher) as command:
        command.event("pipeline_ready")
        command.process.send_signal(signal.SIGHUP)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() == 143


def test_a_command_in_the_background_of_a_script_can_be_interrupted() -> None:
    """A shell makes what it starts with & ignore SIGINT; the command takes it all the same."""
    arguments: list[str | Path] = ["--config", COUNTDOWN, "--serve", "--log-format", "json"]
    launcher = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with Command(*arguments, launcher=launcher) as command:
        command.event("pipeline_ready")
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130


def test_the_terminals_group_signal_reaches_no_stage(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as the terminal sends it, is a clean stop, not a death."""
    config = write_config(tmp_path, "Hold")
    with Command("--config", config, "--input", "-", stdin=None) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        os.killpg(command.process.pid, signal.SIGINT)
        assert command.finish() == 130
    assert command.outcomes() == {"held": "aborted", "done": "finished"}


def test_during_a_check(tmp_path: Path, announcements: Announcements) -> None:
    """--check does not wait for an import that takes for ever."""
    (tmp_path / "slow_module.py").write_text(
        f"import threading\nopen({announcements.path!r}, 'w').write('importing\\n')\nthreading.Event().wait()\n"
    )
    config = tmp_path / "slow.yaml"
    config.write_text("stages: [{name: a, engine: 'slow_module:X'}]\n")
    with Command("--config", config, "--check") as command:
        assert announcements.wait() == "importing"
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130
    assert command.err.text() == ""


def test_a_stuck_reader_does_not_hold_it(tmp_path: Path) -> None:
    """While a write waits for a reader, the first signal stops the stages and the second one gives the reader up."""
    config = write_config(tmp_path, "Flood", max_in_flight=1)
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb"),
        os.fdopen(writer, "wb"),
        Command("--config", config, "--input", "-", "--log-format", "json", stdin=None, stdout=writer) as command,
    ):
        command.send(lines({"id": "endless", "data": 1}))
        wait_until_full(writer)
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() in {130, 143}
