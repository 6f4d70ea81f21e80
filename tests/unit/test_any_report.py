"""Reports of any death: whatever the evidence, there is a report, and text and plain data of it."""

from __future__ import annotations

import json
import signal
from dataclasses import fields, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stage.black_box import PHASES, BlackBoxRecord
from stage.protocol import ErrorRecord
from supervisor.report import Evidence, StageDeathReport, build_report, spawn_failure

# Lone surrogates, control characters and line ends included.
odd_text = st.text(st.characters(codec=None), max_size=40)
long_text = st.builds(lambda text, times: text * times, odd_text, st.sampled_from([1, 1, 500]))
signal_numbers = st.integers(-5, 70) | st.sampled_from([*signal.Signals]) | st.integers(-(2**63), 2**63 - 1)
exit_codes = st.none() | st.integers(-70, 260) | st.integers()
CAUSES = ["fatal", "exit", "signal", "startup_timeout", "hung", "io_thread"]
VERDICTS = ["startup_timeout", "hung"]

errors = st.builds(
    ErrorRecord,
    st.sampled_from(["fatal", "io_thread"]),
    st.sampled_from(PHASES),
    odd_text,
    long_text,
    long_text,
)
boxes = st.builds(
    BlackBoxRecord,
    phase=st.sampled_from(PHASES),
    steps=st.integers(0, 2**63 - 1),
    signal=signal_numbers,
    error=st.none() | errors,
)
evidences = st.builds(
    Evidence,
    stage=odd_text,
    replica=st.integers(0, 99),
    pid=st.integers(1, 2**22),
    exit_code=exit_codes,
    box=boxes,
    said=st.none() | long_text,
    verdict=st.none() | st.sampled_from(VERDICTS),
    stacks=st.none() | long_text,
    oom_kills=st.none() | st.integers(0, 9),
    uptime_s=st.floats(0, 1e9),
    log_tail=st.lists(odd_text, max_size=20),
    log_path=odd_text,
)
PLAIN = Evidence(
    stage="asr",
    replica=0,
    pid=7,
    exit_code=0,
    box=BlackBoxRecord("ready", 0, 0, None),
    said=None,
    verdict=None,
    stacks=None,
    oom_kills=None,
    uptime_s=1.0,
    log_tail=[],
    log_path="/log",
)
ids = st.lists(odd_text, max_size=25)


@settings(max_examples=150)
@given(evidence=evidences, lost=ids, collateral_of=st.none() | odd_text)
def test_any_death_has_a_report(evidence: Evidence, lost: list[str], collateral_of: str | None) -> None:
    """Nothing raises; the data survives JSON, and the text says which stage, which process, and where its log is."""
    report = build_report(evidence, lost, collateral_of)

    data = report.to_dict()
    assert {field.name for field in fields(StageDeathReport)} == set(data)
    assert data == json.loads(json.dumps(data))
    assert report.cause in CAUSES
    text = report.render()
    assert text.startswith(report.summary())
    assert all(part in text for part in (repr(evidence.stage), f"(pid {evidence.pid})", report.phase.upper()))
    assert all(word in text for word in [evidence.log_path, collateral_of or "", *lost[:10]])


@settings(max_examples=100)
@given(evidence=evidences)
def test_first_cause(evidence: Evidence) -> None:
    """Our own verdict comes before the error that the stage recorded, that before what it said, and its end last."""
    error = evidence.box.error
    expected: str
    if evidence.verdict is not None:
        expected = evidence.verdict
    elif error is not None:
        expected = error.cause
    elif evidence.said is not None:
        expected = "fatal"
    else:
        expected = "signal" if (evidence.exit_code or 0) < 0 else "exit"

    report = build_report(evidence, [], None)

    assert expected == report.cause
    if evidence.verdict is not None:
        assert evidence.stacks == report.traceback
    elif error is not None:
        assert (error.error_type, error.message, error.traceback) == (
            report.error_type,
            report.error_message,
            report.traceback,
        )


@settings(max_examples=60)
@given(evidence=evidences, changes=st.fixed_dictionaries({"log_tail": st.just([]), "uptime_s": st.floats(0, 1e9)}))
def test_what_does_not_matter_changes_no_cause(evidence: Evidence, changes: dict[str, Any]) -> None:
    """Neither the log nor the time say why a stage has ended."""
    one, other = build_report(evidence, [], None), build_report(replace(evidence, **changes), [], None)
    assert one.summary() == other.summary()


@given(exit_code=exit_codes)
def test_signal_has_a_name_exactly_if_one_killed_it(exit_code: int | None) -> None:
    """The name is that of the system where it has one, and says the number where it has none."""
    report = build_report(replace(PLAIN, exit_code=exit_code), [], None)

    killed_by = None if exit_code is None or exit_code >= 0 else -exit_code
    names = {one.value: one.name for one in signal.Signals}
    assert (None if killed_by is None else names.get(killed_by, f"SIG{killed_by}")) == report.signal
    assert report.signal is None or report.signal in report.summary()


@settings(max_examples=100)
@given(evidence=evidences)
def test_memory_is_blamed_only_with_evidence(evidence: Evidence) -> None:
    """True needs a SIGKILL that is not ours and a count by the kernel; without an exit status nothing is known."""
    report = build_report(evidence, [], None)

    killed = evidence.exit_code == -signal.SIGKILL and evidence.verdict is None
    if report.oom_killed:
        assert killed
        assert evidence.oom_kills
    elif report.oom_killed is None:
        assert evidence.exit_code is None or (killed and evidence.oom_kills is None)


@given(stage=odd_text, number=st.integers(0, 200), text=odd_text)
def test_process_that_never_was(stage: str, number: int, text: str) -> None:
    """A stage that could not be spawned has a report of the same kind."""
    report = spawn_failure(stage, 0, OSError(number, text))

    assert report.to_dict() == json.loads(json.dumps(report.to_dict()))
    assert repr(stage) in report.render()
