"""Whatever is wrong with arguments, config or input gives status 2 and says what to do, never a traceback."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from cli_command import COUNTDOWN, Command, lines, write_config

if TYPE_CHECKING:
    from pathlib import Path

ACTIONS = ("sigkill", "sigterm", "sigstop", "segv", "exit0", "raise")


def fails(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Run a command that must be refused before any stage is started; return what it says."""
    with Command(*arguments, stdin=stdin) as command:
        assert command.finish() == 2
    text = command.err.text()
    assert command.outputs() == []
    assert "Traceback" not in text
    assert "stage_spawned" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--config"),
        (["--confg", "x"], "--confg"),
        (["--log-level", "loud"], "loud"),
        (["--log-format", "xml"], "xml"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str) -> None:
    """The argument that is wrong is named."""
    config = ["--config", str(COUNTDOWN)] if arguments else []
    assert said in fails(*config, *arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "first:sigkill",
        "nobody:sigkill@1s",
        "first/1:sigkill@1s",
        "first:boom@1s",
        "first:sigkill@1",
        "first:sigkill@-1s",
        "first:sigkill@nans",
        "first:sigkill@step=0",
        "first:sigkill@step=x",
        "first:raise@1s@2s",
    ],
)
def test_bad_injections(text: str) -> None:
    """A fault that cannot be parsed is refused with what it should look like."""
    said = fails("--config", COUNTDOWN, "--inject", text)
    assert repr(text) in said
    assert any(hint in said for hint in (*ACTIONS, "step=N", "replicas 0 to 0"))


def test_two_faults_for_one_stage() -> None:
    """A stage acts out one fault only."""
    twice = ["--inject", "first:raise@1s", "--inject", "first/0:exit0@2s"]
    assert "first/0 has another fault" in fails("--config", COUNTDOWN, *twice)


def test_a_bad_config_tells_all_its_problems(tmp_path: Path) -> None:
    """Every problem is a line, and the file is named."""
    config = tmp_path / "bad.yaml"
    config.write_text("startup_timeout_s: -1\nstages:\n  - nme: a\n    engine: nowhere\n")
    said = fails("--config", config)
    assert str(config) in said
    for problem in ("startup_timeout_s", "stages[0].nme", "did you mean 'name'", "stages[0].engine"):
        assert problem in said


@pytest.mark.parametrize("flags", [[], ["--check"]])
def test_a_config_that_is_not_there(tmp_path: Path, flags: list[str]) -> None:
    """Its path is named."""
    assert "nothing.yaml: cannot be read (No such file or directory)" in fails(
        "--config", tmp_path / "nothing.yaml", *flags
    )


def test_check_accepts_a_good_config() -> None:
    """--check says ok, starts nothing, and reads no input."""
    with Command("--config", COUNTDOWN, "--check") as command:
        assert command.finish() == 0
    assert (command.out.seen, command.err.text()[:3]) == ([], "ok:")
    assert "stage_spawned" not in command.err.text()


def test_check_imports_every_engine(tmp_path: Path) -> None:
    """--check finds an engine that cannot be imported, in JSON as well."""
    config = write_config(tmp_path, "Echo", "Nobody")
    assert "stages[1].engine: 'cli_engines:Nobody'" in fails("--config", config, "--check")
    (event,) = map(json.loads, fails("--config", config, "--check", "--log-format", "json").splitlines())
    assert (event["level"], len(event["problems"])) == ("error", 1)


def test_check_tells_every_problem_at_once(tmp_path: Path) -> None:
    """--check names an engine that lacks methods and an input that is not there in one list, and builds no engine."""
    config = write_config(tmp_path, "BadInit", "Unfinished", input={"jsonl": "missing.jsonl"})
    (event,) = map(json.loads, fails("--config", config, "--check", "--log-format", "json").splitlines())
    assert event["problems"] == [
        "stages[1].engine: 'cli_engines:Unfinished': the class lacks add, abort, step, utility (see stage.Engine)",
        f"input.jsonl: '{tmp_path}/missing.jsonl': cannot be opened (No such file or directory)",
    ]


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_check_looks_for_the_input(tmp_path: Path, name: str) -> None:
    """--check refuses the input that --input names as a run would, in the same words."""
    arguments: list[str | Path] = ["--config", COUNTDOWN, "--input", tmp_path / name]
    assert fails(*arguments).removeprefix("error: ").strip() in fails(*arguments, "--check")


def test_check_looks_for_files(tmp_path: Path) -> None:
    """--check names a glob without a match; the input of the command line takes its place, and a FIFO stays shut."""
    config = write_config(tmp_path, "Echo", input={"glob": "*.wav"})
    os.mkfifo(tmp_path / "fifo")
    assert f"input.glob: '{tmp_path}/*.wav' matches no file" in fails("--config", config, "--check")
    for argument in ("-", tmp_path / "fifo"):
        with Command("--config", config, "--input", argument, "--check") as command:
            assert command.finish() == 0


def test_nothing_to_run(tmp_path: Path) -> None:
    """Without an input anywhere, the ways to name one are told."""
    said = fails("--config", write_config(tmp_path, "Echo"))
    assert "--input FILE.jsonl" in said
    assert "--serve" in said


def test_a_glob_without_a_match(tmp_path: Path) -> None:
    """The pattern is named."""
    said = fails("--config", write_config(tmp_path, "Echo", input={"glob": "*.wav"}))
    assert f"{tmp_path}/*.wav" in said


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_an_input_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """A file that is not there, or is a directory, is named."""
    path = tmp_path / name
    assert str(path) in fails("--config", COUNTDOWN, "--input", path)


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A directory that is not there is told before anything is started."""
    assert "No such file" in fails("--config", COUNTDOWN, "--output", tmp_path / "no" / "out.jsonl")


def test_a_report_dir_that_cannot_be_made() -> None:
    """It is tried at once, not at a death."""
    assert "--report-dir" in fails("--config", COUNTDOWN, "--report-dir", COUNTDOWN / "below")


def test_an_output_that_is_the_input(tmp_path: Path) -> None:
    """The input is not emptied before it is read."""
    path = tmp_path / "both.jsonl"
    path.write_bytes(lines({"id": "r", "data": 1}))
    assert "is the same file" in fails("--config", COUNTDOWN, "--input", path, "--output", path)
    assert path.read_bytes() == lines({"id": "r", "data": 1})


def test_help_tells_the_exit_status() -> None:
    """--help goes to standard output, with status 0."""
    with Command("--help") as command:
        assert command.finish() == 0
    assert "exit status:" in command.out.text()
    assert command.err.text() == ""
