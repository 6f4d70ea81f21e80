"""SIGINT and SIGTERM end the command cleanly, with status 128+n, at every moment of its life."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from cli_command import COUNTDOWN, Command, lines, write_config

if TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])

# Stands before the real module on the import path. It waits until a signal has been handled, without a race: the
# interpreter writes to the wakeup descriptor whenever a handler of ours takes a signal.
WAITING_IMPORT = """\
import os, signal, sys
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
os.write(2, b'{"event": "importing"}\\n')
os.read(reader, 1)
signal.set_wakeup_fd(-1)
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
def test_a_second_one_makes_the_stop_immediate(tmp_path: Path, signum: signal.Signals) -> None:
    """A stage that does not end in time is killed at once, not after shutdown_timeout_s."""
    config = write_config(tmp_path, "Stubborn", shutdown_timeout_s=1000)
    stdin = lines({"id": "held", "data": "hold"})
    with Command("--config", config, "--input", "-", "--log-format", "json", stdin=None) as command:
        command.send(stdin)
        command.event("pipeline_ready")
        command.process.send_signal(signum)
        command.event("pipeline_ready")
        command.output_or_end(id="held")
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 128 + signum
    assert command.event("stage_killed")["stage"] == "a"


@BOTH
def test_two_while_a_stage_starts(tmp_path: Path, signum: signal.Signals) -> None:
    """During the handshake, too, the second signal makes the stop immediate."""
    config = write_config(tmp_path, "Stubborn", "SlowInit", shutdown_timeout_s=1000)
    with Command("--config", config, "--serve", "--log-format", "json") as command:
        command.event("stage_ready", stage="a")
        command.process.send_signal(signum)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() in {130, 143}


def test_a_hangup_ends_it_too() -> None:
    """SIGHUP, as from a terminal that is closed, is a clean end."""
    with Command("--config", COUNTDOWN, "--serve", "--log-format", "json") as command:
        command.event("pipeline_ready")
        command.process.send_signal(signal.SIGHUP)
        assert command.finish() == 129


def test_nohup_is_respected() -> None:
    """What was told to ignore SIGHUP ignores it."""
    arguments = ["--config", COUNTDOWN, "--serve", "--log-format", "json"]
    launcher = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    with Command(*arguments, launcher=launcher) as command:
        command.event("pipeline_ready")
        command.process.send_signal(signal.SIGHUP)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish() == 143


def test_a_command_in_the_background_of_a_script_can_be_interrupted() -> None:
    """A shell makes what it starts with & ignore SIGINT; the command takes it all the same."""
    arguments = ["--config", COUNTDOWN, "--serve", "--log-format", "json"]
    launcher = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with Command(*arguments, launcher=launcher) as command:
        command.event("pipeline_ready")
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130


def test_the_terminals_group_signal_reaches_no_stage(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as the terminal sends it, is a clean stop, not a death."""
    config = write_config(tmp_path, "Hold")
    launcher = ("setsid", "-w")
    arguments = ["--config", config, "--input", "-", "--log-format", "json"]
    with Command(*arguments, stdin=None, launcher=launcher) as command:
        command.send(lines({"id": "held", "data": "hold"}, {"id": "done", "data": 1}))
        command.output(id="done", outcome="finished")
        os.killpg(os.getpgid(command.leader()), signal.SIGINT)
        assert command.finish() == 130
    assert command.outcomes() == {"held": "aborted", "done": "finished"}


def test_during_a_check(tmp_path: Path) -> None:
    """--check does not wait for an import that takes for ever."""
    (tmp_path / "slow_module.py").write_text("import os, threading\nos.mkfifo('here')\nthreading.Event().wait()\n")
    config = tmp_path / "slow.yaml"
    config.write_text("stages: [{name: a, engine: 'slow_module:X'}]\n")
    fifo = tmp_path / "said"
    os.mkfifo(fifo)
    (tmp_path / "slow_module.py").write_text(
        f"import threading\nopen({str(fifo)!r}, 'w').close()\nthreading.Event().wait()\n"
    )
    with Command("--config", config, "--check") as command:
        fifo.read_bytes()
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130


def test_while_the_output_waits_for_a_reader(tmp_path: Path) -> None:
    """An --output that is a FIFO without a reader can be interrupted."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "yaml.py").write_text(WAITING_IMPORT)
    with Command("--config", COUNTDOWN, "--output", fifo, env={"PYTHONPATH": str(tmp_path)}) as command:
        command.event("importing")
        command.process.send_signal(signal.SIGINT)
        assert command.finish() == 130
