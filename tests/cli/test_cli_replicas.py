"""The command with stages of several replicas, and the configs that ship."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from cli_command import ROOT, Command, lines

if TYPE_CHECKING:
    from pathlib import Path

needs_speech = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="the extra `speech` is not installed"
)


def config_of(directory: Path, *, engine: str = "Hold", **keys: Any) -> Path:
    """A config with one stage of two replicas."""
    path = directory / "pipeline.yaml"
    stage = {"name": "a", "engine": f"cli_engines:{engine}", "replicas": 2, **keys}
    path.write_text(json.dumps({"shutdown_timeout_s": 30, "stages": [stage]}))
    return path


@needs_speech
@pytest.mark.parametrize("name", ["two_stage", "replicas"])
def test_speech(name: str) -> None:
    """Real speech goes through both stages, whoever of the second one takes a segment."""
    with Command("--config", ROOT / "configs" / f"{name}.yaml", "--log-format", "json") as command:
        assert command.finish() == 0
    texts = {tuple(line["part"]): line["data"]["text"] for line in command.outputs() if "data" in line}
    assert texts == {
        (0, 0): "The lighthouse keeper counted seven ships.",
        (1, 0): "Each one carried salt and letters.",
        (2, 0): "Every letter was answered the same evening.",
    }
    assert command.outcomes() == {"lighthouse.wav": "finished"}


@pytest.mark.usefixtures("logs_may_stay")
def test_a_lost_replica_is_told_of_at_once(tmp_path: Path) -> None:
    """Its report comes with the requests that it has cost, the others go on, and the status says that some failed."""
    config = config_of(tmp_path, on_death="degrade")
    stdin = lines({"id": "r0", "data": "hold"}, {"id": "r1", "data": "hold"})
    arguments = ("--config", config, "--input", "-", "--log-format", "json", "--report-dir", tmp_path / "reports")
    with Command(*arguments, stdin=None) as command:
        command.send(stdin)
        pids = {number: command.event("stage_ready", replica=number)["pid"] for number in (0, 1)}
        command.send(lines({"id": "before", "data": 1}))
        command.output(id="before", outcome="finished")
        os.kill(pids[1], signal.SIGKILL)
        text = command.event("death_report")["text"]
        assert f"stage 'a' replica 1 (pid {pids[1]}) died" in text
        command.send(lines({"id": "after", "data": 1}))
        command.output(id="after", outcome="finished")
        os.kill(pids[0], signal.SIGKILL)
        command.event("stage_died", replica=0)
        command.close_stdin()
        assert command.finish() == 3
    assert command.outcomes() == {"r0": "failed", "r1": "failed", "before": "finished", "after": "finished"}
    assert sorted(path.name.rpartition("-")[0] for path in (tmp_path / "reports").iterdir()) == ["a-0", "a-1"]


@pytest.mark.usefixtures("logs_may_stay")
def test_status_after_a_lost_replica(tmp_path: Path) -> None:
    """Some requests have failed, and the pipeline has lived."""
    stdin = lines(*({"id": f"r{number}", "data": 1} for number in range(4)))
    arguments = ("--config", config_of(tmp_path, on_death="degrade"), "--inject", "a/1:sigkill@step=1")
    with Command(*arguments, "--input", "-", stdin=stdin) as command:
        assert command.finish() == 1
    assert set(command.outcomes().values()) == {"finished", "failed"}
    assert command.err.text().count("stage 'a' replica 1 (pid ") == 1


def test_check_of_a_lockstep_stage(tmp_path: Path) -> None:
    """Its engine needs one method more."""
    with Command("--config", config_of(tmp_path, engine="Echo", lockstep=True), "--check") as command:
        assert command.finish() == 2
    assert "the class lacks dummy_step (see stage.Engine)" in command.err.text()


def test_sessions(tmp_path: Path) -> None:
    """Requests of a session go to the same replica."""
    config = config_of(tmp_path, engine="Who", balance="sticky")
    stdin = lines(*({"id": f"r{number}", "data": 1, "session": f"s{number % 8}"} for number in range(32)))
    with Command("--config", config, "--input", "-", stdin=stdin) as command:
        assert command.finish() == 0
    replicas: dict[int, set[str]] = {}
    for line in command.outputs():
        if "data" in line:
            replicas.setdefault(int(line["id"][1:]) % 8, set()).add(line["data"])
    assert [len(found) for found in replicas.values()] == [1] * 8
    assert set().union(*replicas.values()) == {"0", "1"}
