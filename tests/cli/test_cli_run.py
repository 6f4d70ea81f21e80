"""The command runs requests to their ends: where they come from, where results go, and what it says of it all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from cli_command import COUNTDOWN, HANG_S, ROOT, Command, lines, write_config

from supervisor.cli.line_source import HELD_BACK_LIMIT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_config_that_names_its_input_runs() -> None:
    """Without --input, the config's own input runs; every request finishes, and the status is 0."""
    with Command("--config", COUNTDOWN) as command:
        assert command.finish() == 0
    assert command.outcomes() == {f"r{number}": "finished" for number in range(1, 6)}
    assert [line["data"] for line in command.outputs() if line["id"] == "r2" and "data" in line] == [0]
    assert "requests: 5 finished, 0 failed, 0 aborted; 20 results" in command.err.text()


def test_results_of_the_first_line_come_before_the_second_is_written() -> None:
    """Standard input is read as it comes."""
    with Command("--config", COUNTDOWN, "--input", "-", stdin=None) as command:
        command.send(lines({"id": "one", "data": 2}))
        assert command.output(id="one", stage="second") == {"id": "one", "stage": "second", "part": [0, 0], "data": 0}
        command.output(id="one", outcome="finished")
        command.send(b'{"id": "two", ')
        command.send(b'"data": 2}\n')
        assert command.output(id="two", outcome="finished")["error"] is None
        command.close_stdin()
        assert command.finish() == 0


def test_a_bad_line_fails_alone_and_says_its_number() -> None:
    """Bad lines end as failed under the id line-N, whatever is wrong with them; the others go on; the status is 1."""
    bad = {
        "line-3": b"oops",
        "line-4": b"[1, 2]",
        "line-5": b'{"id": 5, "data": 1}',
        "line-6": b'{"id": "", "data": 1}',
        "line-7": b'{"id": "seven"}',
        "line-8": b'{"id": "eight", "data": 1, "dta": 2}',
        "line-9": b'{"id": "\xff", "data": 1}',
        "line-10": b'{"data": NaN}',
    }
    stdin = b'\xef\xbb\xbf{"data": 1}\r\n \r\n' + b"\n".join(bad.values()) + b'\n{"id": "last", "data": 1}'
    with Command("--config", COUNTDOWN, "--input", "-", stdin=stdin) as command:
        assert command.finish() == 1
    assert command.outcomes() == {**dict.fromkeys(bad, "failed"), "line-1": "finished", "last": "finished"}
    for line in command.outputs():
        if line.get("outcome") == "failed":
            assert f"input line {line['id'][5:]}: " in line["error"]


def test_an_id_that_comes_again_waits_for_its_first_request() -> None:
    """Requests of one id run one after the other, also a bad line whose id was taken; others do not wait."""
    same = [{"id": "x", "data": count} for count in (3, 1, 2)]
    stdin = lines({"id": "line-5", "data": 9}, *same) + b"oops\n" + lines({"id": "y", "data": 1})
    with Command("--config", COUNTDOWN, "--input", "-", stdin=stdin) as command:
        assert command.finish() == 1
    seen: dict[str, list[Any]] = {}
    for line in command.outputs():
        seen.setdefault(line["id"], []).append(line["outcome"] if "outcome" in line else len(line["part"]))
    expected = {
        "line-5": [*([2] * 36), "finished", "failed"],
        "x": [2, 2, 2, "finished", "finished", 2, "finished"],
        "y": ["finished"],
    }
    assert seen == expected


def test_an_id_that_never_ends_holds_only_its_own(tmp_path: Path) -> None:
    """What waits behind a request without end costs nobody else, and has no outcome, since it never began."""
    config = write_config(tmp_path, "Hold", max_in_flight=2)
    with Command("--config", config, "--input", "-", "--serve", stdin=None) as command:
        held = {"id": "held", "data": "hold"}
        command.send(lines(held, held, held, {"id": "one", "data": 1}, {"id": "two", "data": 2}))
        command.output(id="one", outcome="finished")
        command.output(id="two", outcome="finished")
        command.process.terminate()
        assert command.finish() == 143
    assert command.outcomes() == {"held": "aborted", "one": "finished", "two": "finished"}


def test_more_of_one_id_than_may_wait() -> None:
    """However many requests of one id there are, every one of them runs."""
    count = 2 * HELD_BACK_LIMIT
    with Command("--config", COUNTDOWN, "--input", "-", stdin=lines({"id": "x", "data": 1}) * count) as command:
        assert command.finish() == 0
    assert [line["outcome"] for line in command.outputs()] == ["finished"] * count


def test_a_refused_request_fails_alone(tmp_path: Path) -> None:
    """A request that its engine refuses gives status 1; --output FILE takes the results instead of standard output."""
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(lines({"id": "bad", "data": -1}, {"id": "good", "data": 1}))
    results.write_text("what was there before\n" * 100)
    with Command("--config", COUNTDOWN, "--input", requests, "--output", results) as command:
        assert command.finish() == 1
    assert command.outputs() == []
    ends = {line["id"]: line["outcome"] for line in map(json.loads, results.read_text().splitlines())}
    assert ends == {"bad": "failed", "good": "finished"}


def test_a_glob_makes_a_request_of_each_file(tmp_path: Path) -> None:
    """The config's glob: ids are file names; directories are passed over."""
    (tmp_path / "sub.wav").mkdir()
    for name in ("b.wav", "a.wav", "c.txt"):
        (tmp_path / name).touch()
    with Command("--config", write_config(tmp_path, "Echo", input={"glob": "*.wav"})) as command:
        assert command.finish() == 0
    results = [(line["id"], line["data"]) for line in command.outputs() if "data" in line]
    assert results == [(name, {"path": str(tmp_path / name)}) for name in ("a.wav", "b.wav")]


def test_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    """Two files of the same name in two directories are two requests; a name that is not UTF-8 fails alone."""
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.wav").touch()
    (tmp_path / "x" / os.fsdecode(b"\xff.wav")).touch()
    with Command("--config", write_config(tmp_path, "Echo", input={"glob": "**/*.wav"})) as command:
        assert command.finish() == 1
    assert command.outcomes() == {"x/same.wav": "finished", "y/same.wav": "finished", "x/\\udcff.wav": "failed"}


def test_a_fifo_is_an_input_and_its_end_is_the_end(tmp_path: Path) -> None:
    """A FIFO without a writer is waited for; when its writer closes it, that is the end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with Command("--config", COUNTDOWN, "--input", fifo, "--log-format", "json") as command:
        command.event("pipeline_ready")
        fifo.write_bytes(lines({"id": "one", "data": 1}))
        assert command.finish() == 0
    assert command.outcomes() == {"one": "finished"}


def test_a_closed_standard_input_is_empty() -> None:
    """With standard input closed there is nothing to run, and that finishes."""
    launcher = ("sh", "-c", 'exec "$@" <&-', "sh")
    with Command("--config", COUNTDOWN, "--input", "-", launcher=launcher) as command:
        assert command.finish() == 0
    assert command.outputs() == []


def test_what_json_cannot_say_still_is_json(tmp_path: Path) -> None:
    """Arrays become lists, bytes base64, NaN null."""
    stdin = lines({"id": "r", "data": 0})
    with Command("--config", write_config(tmp_path, "Odd"), "--input", "-", stdin=stdin) as command:
        assert command.finish() == 0
    assert command.output(id="r", stage="a")["data"] == {
        "bytes": "AP8=",
        "floats": [[1.5, None], [2.0, 3.0]],
        "scalar": 0.5,
        "complex": [[1.0, 2.0]],
        "infinity": None,
        "numbers": {"1": "one"},
    }


def test_json_logs_are_json_lines_only() -> None:
    """With --log-format json every line of standard error is a JSON object, the summary included."""
    with Command("--config", COUNTDOWN, "--log-format", "json") as command:
        assert command.finish() == 0
    events = [json.loads(line) for line in command.err.seen]
    assert all({"timestamp", "level", "event"} <= event.keys() for event in events)
    ready = {event["stage"]: (event["replica"], event["pid"]) for event in events if event["event"] == "stage_ready"}
    spawned = {event["stage"]: (0, event["pid"]) for event in events if event["event"] == "stage_spawned"}
    assert ready == spawned
    assert ready.keys() == {"first", "second"}
    summary = next(event for event in events if event["event"] == "summary")
    assert (summary["finished"], summary["failed"], summary["results"]) == (5, 0, 20)


def test_the_log_level_says_what_is_shown() -> None:
    """At level warning a good run is silent."""
    with Command("--config", COUNTDOWN, "--log-level", "WARNING") as command:
        assert command.finish() == 0
    assert command.err.text() == ""


def test_serving_outlives_its_input_at_no_cost() -> None:
    """--serve stays up after the input is done, uses no CPU, and ends on SIGTERM with 128+15."""
    with Command("--config", COUNTDOWN, "--serve", "--log-format", "json") as command:
        for number in range(1, 6):
            command.output(id=f"r{number}", outcome="finished")
        process = psutil.Process(command.process.pid)
        # Not to synchronise: nothing may happen while this time goes by.
        with pytest.raises(subprocess.TimeoutExpired):
            command.process.wait(0.2)
        before = sum(process.num_ctx_switches())
        with pytest.raises(subprocess.TimeoutExpired):
            command.process.wait(1)
        assert sum(process.num_ctx_switches()) - before <= 5
        command.process.terminate()
        assert command.finish() == 143


def test_serving_needs_no_input(tmp_path: Path) -> None:
    """--serve runs a config that names no input."""
    config = write_config(tmp_path, "Echo")
    with Command("--config", config, "--serve", "--log-format", "json") as command:
        command.event("pipeline_ready")
        command.process.terminate()
        assert command.finish() == 143


def test_main_returns_the_status() -> None:
    """The console script's entry point takes arguments and returns the status."""
    code = f"import sys, run_pipeline; sys.exit(run_pipeline.main(['--config', {str(COUNTDOWN)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=HANG_S, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 25)


def test_importing_the_command_changes_nothing() -> None:
    """Handlers stand only once `main` is called."""
    code = "import signal, run_pipeline; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=HANG_S, check=True)
    assert done.stdout == b"True\n"
