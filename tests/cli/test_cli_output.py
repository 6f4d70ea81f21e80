"""Standard output may be a pipe whose reader leaves, a full disk, or a terminal with a live line."""

from __future__ import annotations

import fcntl
import json
import os
import re
import termios
from typing import TYPE_CHECKING

import pytest
from cli_command import COUNTDOWN, Command, Lines, lines, write_config

if TYPE_CHECKING:
    from pathlib import Path

ERASE = "\r\x1b[2K"


def test_a_reader_who_leaves_while_results_come(tmp_path: Path) -> None:
    """`| head -1` ends the command quietly, with status 141."""
    reader, writer = os.pipe()
    config = write_config(tmp_path, "Flood")
    with Command("--config", config, "--input", "-", "--log-level", "error", stdin=None, stdout=writer) as command:
        os.close(writer)
        command.send(lines({"id": "endless", "data": 1}))
        with os.fdopen(reader, "rb") as stream:
            assert json.loads(stream.readline())["id"] == "endless"
        assert command.finish() == 141
    assert command.err.text() == ""


def test_a_reader_who_leaves_while_nothing_comes(tmp_path: Path) -> None:
    """It is noticed although nothing is written."""
    reader, writer = os.pipe()
    config = write_config(tmp_path, "Hold")
    with Command("--config", config, "--serve", "--log-format", "json", stdout=writer) as command:
        os.close(writer)
        command.event("pipeline_ready")
        os.close(reader)
        assert command.finish() == 141


def test_a_reader_who_was_never_there(tmp_path: Path) -> None:
    """A start that would take for ever ends as well."""
    reader, writer = os.pipe()
    os.close(reader)
    config = write_config(tmp_path, "SlowInit", shutdown_timeout_s=0.5)
    with Command("--config", config, "--serve", stdout=writer) as command:
        os.close(writer)
        assert command.finish() == 141


@pytest.mark.usefixtures("logs_may_stay")
def test_the_last_results_outlive_a_stage_that_does_not_start(tmp_path: Path) -> None:
    """--output FILE loses what it holds only when every stage is ready."""
    results = tmp_path / "out.jsonl"
    results.write_text("dear\n")
    with Command("--config", write_config(tmp_path, "Echo", "BadInit"), "--serve", "--output", results) as command:
        assert command.finish() == 3
    assert results.read_text() == "dear\n"


def test_the_last_results_outlive_a_start_that_is_interrupted(tmp_path: Path) -> None:
    """The same when a signal comes before every stage is ready."""
    results = tmp_path / "out.jsonl"
    results.write_text("dear\n")
    config = write_config(tmp_path, "Echo", "SlowInit", shutdown_timeout_s=0.5)
    arguments: list[str | Path] = ["--config", config, "--serve", "--log-format", "json", "--output", results]
    with Command(*arguments) as command:
        command.event("stage_ready", stage="a")
        command.process.terminate()
        assert command.finish() == 143
    assert results.read_text() == "dear\n"


def test_standard_output_is_not_emptied(tmp_path: Path) -> None:
    """`>> FILE` adds to what the file holds."""
    results = tmp_path / "out.jsonl"
    results.write_text("dear\n")
    with results.open("ab") as file, Command("--config", COUNTDOWN, stdout=file.fileno()) as command:
        assert command.finish() == 0
    assert results.read_text().startswith("dear\n{")


def test_a_file_that_cannot_be_emptied_is_told(tmp_path: Path) -> None:
    """A file that no longer may be emptied once the stages are ready is an error, with status 1."""
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.write(fd, b"dear\n")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with os.fdopen(fd, "rb"), Command("--config", COUNTDOWN, "--output", f"/proc/{os.getpid()}/fd/{fd}") as command:
        assert command.finish() == 1
        assert "error: cannot empty --output" in command.err.text()


def test_a_full_disk() -> None:
    """What cannot be written is told, with status 1."""
    with Command("--config", COUNTDOWN, "--output", "/dev/full") as command:
        assert command.finish() == 1
    assert "error: cannot write results to --output '/dev/full': No space left on device" in command.err.text()


def test_a_closed_standard_output() -> None:
    """Results that cannot be written are an error, and no socket of ours takes the place of standard output."""
    launcher = ("sh", "-c", 'exec "$@" >&-', "sh")
    with Command("--config", COUNTDOWN, launcher=launcher) as command:
        assert command.finish() == 1
    assert command.out.text() == ""
    assert "cannot write results to standard output" in command.err.text()


def test_nobody_reads_the_logs(tmp_path: Path) -> None:
    """A closed pipe for standard error changes nothing about the results."""
    reader, writer = os.pipe()
    os.close(reader)
    with Command("--config", COUNTDOWN, stderr=writer) as command:
        os.close(writer)
        assert command.finish() == 0
    assert set(command.outcomes().values()) == {"finished"}


def test_a_non_blocking_pipe(tmp_path: Path) -> None:
    """A pipe that somebody has made non-blocking gets every line, whole."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = "x" * 300_000
    stdin = lines(*({"id": str(number), "data": data} for number in range(3)))
    config = write_config(tmp_path, "Echo")
    with Command("--config", config, "--input", "-", stdin=stdin, stdout=writer) as command:
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            results = [json.loads(line) for line in stream]
        assert command.finish() == 0
    assert [result["data"] for result in results if "data" in result] == [data] * 3


@pytest.mark.parametrize("results_too", [False, True])
def test_a_live_line_on_a_terminal(results_too: bool) -> None:
    """The live line tells states, requests done and rate; logs and results stand on lines of their own."""
    master, slave = os.openpty()
    with Command("--config", COUNTDOWN, "--serve", stdout=slave if results_too else None, stderr=slave) as command:
        os.close(slave)
        screen = Lines(master)
        screen.wait(lambda line: b"pipeline_ready" in line)
        screen.wait_text("first ready second ready | 5 done, 20 results | ")
        command.process.terminate()
        assert command.finish() == 143
        screen.join()
    shown = [line.rpartition(ERASE)[2].rstrip("\r\n") for line in screen.text().split("\n")]
    results = [line for line in shown if "{" in line] if results_too else command.out.text().splitlines()
    assert len([json.loads(line) for line in results]) == 25
    logs = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown if "stage_" in line]
    assert len(logs) == 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[info     \] stage_\w+ ", line) for line in logs)
    assert shown[-2].startswith("requests: 5 finished, 0 failed, 0 aborted; 20 results in ")
    assert shown[-1] == ""


def test_a_live_line_on_a_narrow_terminal() -> None:
    """On 20 columns it still tells what was done, and never wraps."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (10, 20))
    with Command("--config", COUNTDOWN, "--serve", "--log-level", "error", stderr=slave) as command:
        os.close(slave)
        screen = Lines(master)
        screen.wait_text("2 ready | 5 done")
        command.process.terminate()
        assert command.finish() == 143
        screen.join()
    frames = screen.text().split(ERASE)
    assert [frame for frame in frames if len(frame) > 19] == []
    assert frames[-1] == ""


def test_no_live_line_among_what_is_typed() -> None:
    """Where requests are typed on the terminal nothing is drawn between the keys."""
    master, slave = os.openpty()
    launcher = ("sh", "-c", 'exec "$@" <&2', "sh")
    with Command("--config", COUNTDOWN, "--input", "-", stderr=slave, launcher=launcher) as command:
        os.close(slave)
        screen = Lines(os.dup(master))
        screen.wait(lambda line: b"pipeline_ready" in line)
        with os.fdopen(master, "wb", buffering=0) as keys:
            keys.write(lines({"id": "typed", "data": 1}))
            command.output(id="typed", outcome="finished")
            keys.write(b"\x04")
            assert command.finish() == 0
        screen.join()
    assert "\x1b[2K" not in screen.text()


def test_a_terminal_that_knows_no_escape_sequences() -> None:
    """With TERM=dumb there are neither colours nor a live line."""
    master, slave = os.openpty()
    with Command("--config", COUNTDOWN, stderr=slave, env={"TERM": "dumb"}) as command:
        os.close(slave)
        screen = Lines(master)
        assert command.finish() == 0
        screen.join()
    assert "\x1b" not in screen.text()
    assert "pipeline_ready" in screen.text()
