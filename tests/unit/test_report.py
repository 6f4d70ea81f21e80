"""A death's evidence becomes a report, and a report becomes a text that a person understands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stage.black_box import BlackBoxRecord
from stage.protocol import ErrorRecord
from supervisor.report import Evidence, build_report

if TYPE_CHECKING:
    from supervisor import StageDeathReport

ERROR = ErrorRecord("fatal", "ready", "mine.OddError", "boom", "Traceback …\nmine.OddError: boom\n")
BOX = BlackBoxRecord(phase="ready", steps=3, signal=0, error=None)
EVIDENCE = Evidence(
    stage="asr",
    replica=1,
    pid=4711,
    exit_code=-9,
    box=BOX,
    said=None,
    verdict=None,
    stacks=None,
    oom_kills=None,
    uptime_s=12.3456,
    log_tail=["loading", "ready"],
    log_path="/run/asr-1.log",
)


def report_of(lost: list[str] | None = None, collateral_of: str | None = None, **changes: Any) -> StageDeathReport:
    return build_report(replace(EVIDENCE, **changes), lost or [], collateral_of)


def box(**changes: Any) -> BlackBoxRecord:
    fields = {name: getattr(BOX, name) for name in ("phase", "steps", "signal", "error")}
    return BlackBoxRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "cause", "exit_code", "signal"),
    [
        ({"exit_code": -9}, "signal", -9, "SIGKILL"),
        ({"exit_code": -11}, "signal", -11, "SIGSEGV"),
        ({"exit_code": -63}, "signal", -63, "SIG63"),
        ({"exit_code": 0}, "exit", 0, None),
        ({"exit_code": 7}, "exit", 7, None),
        ({"exit_code": None}, "exit", None, None),
        ({"exit_code": 1, "said": "RuntimeError('boom')"}, "fatal", 1, None),
        ({"exit_code": 1, "box": box(error=ERROR)}, "fatal", 1, None),
        ({"exit_code": -9, "box": box(error=ERROR)}, "fatal", -9, "SIGKILL"),
        ({"exit_code": 1, "box": box(error=ErrorRecord("io_thread", "ready", "E", "m", "t"))}, "io_thread", 1, None),
        ({"exit_code": -9, "verdict": "startup_timeout"}, "startup_timeout", -9, "SIGKILL"),
        ({"exit_code": -9, "verdict": "hung", "box": box(error=ERROR)}, "hung", -9, "SIGKILL"),
    ],
)
def test_first_cause(changes: dict[str, Any], cause: str, exit_code: int | None, signal: str | None) -> None:
    """Our own verdict comes first, then the error that the stage has recorded, then how it ended."""
    report = report_of(**changes)
    assert (report.cause, report.exit_code, report.signal) == (cause, exit_code, signal)


def test_fields() -> None:
    """Everything that is known stands in the report, which is plain data."""
    report = report_of(["r1"], "segment/0", box=box(error=ERROR))
    assert report.to_dict() == {
        "role": "stage",
        "stage": "asr",
        "replica": 1,
        "pid": 4711,
        "phase": "ready",
        "exit_code": -9,
        "signal": "SIGKILL",
        "cause": "fatal",
        "error_type": "mine.OddError",
        "error_message": "boom",
        "traceback": "Traceback …\nmine.OddError: boom\n",
        "oom_killed": None,
        "requests_lost": ["r1"],
        "steps": 3,
        "uptime_s": 12.346,
        "log_tail": ["loading", "ready"],
        "log_path": "/run/asr-1.log",
        "collateral_of": "segment/0",
    }
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_phase_is_that_of_the_error() -> None:
    """A stage that failed in `init` and was cleaning up when it ended has failed in `init`."""
    error = ErrorRecord("fatal", "init", "ValueError", "no model", "…")
    assert report_of(box=box(phase="stopping", error=error)).phase == "init"


def test_fatal_without_a_black_box() -> None:
    """What the stage said is all that is known of an error that it did not record."""
    report = report_of(exit_code=1, said="RuntimeError('boom')")
    assert (report.error_type, report.error_message, report.traceback) == (None, "RuntimeError('boom')", None)
    assert "RuntimeError('boom')" in report.render()
    assert "None" not in report.summary()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": -9}, "stage 'asr' replica 1 (pid 4711) died, phase READY: killed by SIGKILL (sender unknown)"),
        ({"exit_code": -11}, "killed by SIGSEGV (a crash in native code)"),
        ({"exit_code": 0}, "it exited with status 0, though nobody asked it to stop"),
        ({"exit_code": None}, "exit status unknown"),
        ({"box": box(error=ERROR)}, "mine.OddError: boom"),
        ({"box": box(error=ErrorRecord("io_thread", "ready", "E", "m", "t"))}, "an IO thread died: E: m"),
        ({"box": box(phase="init")}, "did not start, phase INIT"),
        (
            {"verdict": "startup_timeout", "said": "too late", "box": box(phase="import")},
            "IMPORT: too late, and was killed",
        ),
    ],
)
def test_summary(changes: dict[str, Any], words: str) -> None:
    """One sentence says who died, when, and of what."""
    summary = report_of(**changes).summary()
    assert words in summary
    assert "\n" not in summary


@pytest.mark.parametrize("oom_killed", [True, False])
def test_evidence_of_the_kernel(oom_killed: bool) -> None:
    """Who has killed a stage is only said with evidence."""
    text = replace(report_of(), oom_killed=oom_killed).render()
    assert ("by the kernel: out of memory" in text) is oom_killed
    assert ("no oom_kill recorded" in text) is not oom_killed


def test_text() -> None:
    """The whole text: what was lost, its traceback, its last output, where to look."""
    report = report_of([f"r{number}" for number in range(12)], "segment/0", box=box(error=ERROR))
    assert report.render().splitlines() == [
        "stage 'asr' replica 1 (pid 4711) died, phase READY: mine.OddError: boom",
        "  12 requests lost: r0, r1, r2, r3, r4, r5, r6, r7, r8, r9 and 2 more",
        "  after 12.3 s and 3 steps",
        "  caused by the death of segment/0",
        "  its traceback:",
        "    Traceback …",
        "    mine.OddError: boom",
        "  its last output:",
        "    loading",
        "    ready",
        "  log: /run/asr-1.log",
    ]


def test_short_text() -> None:
    """What is not known is left out."""
    report = report_of(["r1"], log_tail=[], log_path=None)
    assert report.render().splitlines()[1:] == ["  1 request lost: r1", "  after 12.3 s and 3 steps"]


def test_long_message() -> None:
    """A message of any length fits into a summary."""
    error = ErrorRecord("fatal", "ready", "ValueError", "x" * 10_000, "…")
    assert len(report_of(box=box(error=error)).summary()) < 700


def test_odd_message() -> None:
    """A summary is one line that a terminal can take, also where the message has many, or controls the terminal."""
    odd = "one\ntwo\x1b[2J"
    for changes in ({"said": odd}, {"said": odd, "verdict": "hung"}, {"box": box(error=with_message(odd))}):
        assert "one two\\x1b[2J" in report_of(**changes).summary()
    assert len(report_of(said="x" * 10_000, verdict="startup_timeout").summary()) < 800


def with_message(message: str) -> ErrorRecord:
    return ErrorRecord("fatal", "ready", "ValueError", message, "…")
