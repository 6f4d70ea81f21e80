"""Whatever an engine raises, the report has its text: exceptions as odd as they come, from real stage processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness import HANG_S, data_of, pipeline_config, stage

from stage.errors_text import TEXT_LIMIT
from supervisor import Pipeline, RequestFailedError, StageDeathReport, StartupError, UtilityError

if TYPE_CHECKING:
    from pathlib import Path


class Told(NamedTuple):
    """What the report tells of an error: its type, and a text at the head and at the tail of its traceback."""

    error_type: str
    message: str
    head: str
    tail: str


HERE = "Traceback (most recent call last):"
TOLD = {
    "hostile": Told("troublesome_engines.HostileError", "<HostileError: its str raised KeyboardInterrupt>", HERE, ""),
    "unpicklable": Told("troublesome_engines.UnpicklableError", "cannot travel", HERE, "cannot travel"),
    "frozen": Told("troublesome_engines.FrozenError", "3", HERE, "FrozenError: 3"),
    "opaque": Told("troublesome_engines.OpaqueError", "", "OpaqueError()", "its traceback raised RuntimeError"),
    "nameless": Told("troublesome_engines.NamelessError", "", "NamelessError()", "its traceback raised RuntimeError"),
    "chain": Told("ValueError", "number 1999", "KeyError: 'the very first'", "ValueError: number 1999"),
    "ring": Told("ValueError", "first of the ring", "ValueError: second of the ring", "ValueError: first of the ring"),
    "hostile cause": Told("ValueError", "visible", "HostileError: <exception str() failed>", "ValueError: visible"),
    "long": Told("ValueError", "the head", "ValueError: the head", "the tail"),
    "surrogate": Told("ValueError", "a\\ud800b", HERE, "ValueError: a\\ud800b"),
    "group": Told("ExceptionGroup", "several", "ValueError: one", "KeyError: 'two'"),
}


def report_of(error: str, point: str, report_dir: Path) -> StageDeathReport:
    """The report of a stage that raises this at that point."""
    raiser = stage("raiser", "troublesome_engines:Raiser", args={"error": error, "point": point})
    pipeline = Pipeline(pipeline_config(raiser), report_dir=report_dir)
    report: StageDeathReport | None = None
    try:
        with pipeline:
            pipeline.submit("x").result(HANG_S)
    except (RequestFailedError, StartupError) as exc:
        report = exc.report
    assert report is not None
    return report


@pytest.mark.parametrize("point", ["init", "step"])
@pytest.mark.parametrize("error", TOLD)
def test_error_is_reported(tmp_path: Path, error: str, point: str) -> None:
    """Type, text and traceback are in the report, in bounds, head and tail of them, and the report is plain JSON."""
    told = TOLD[error]
    report = report_of(error, point, tmp_path)
    text, message = report.traceback or "", report.error_message or ""
    assert (report.cause, report.exit_code, report.error_type) == ("fatal", 1, told.error_type)
    assert message.startswith(told.message)
    assert told.head in text[:1000]
    assert told.tail in text[-1000:]
    assert max(len(text.encode()), len(message.encode())) <= TEXT_LIMIT
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == report.to_dict()


def test_long_refusal_and_long_utility_error() -> None:
    """A refusal and a utility's exception of ten megabytes are cut, and the stage goes on."""
    raiser = stage("raiser", "troublesome_engines:Raiser", args={"error": "long", "point": "refuse"})
    with Pipeline(pipeline_config(raiser)) as pipeline:
        with pytest.raises(RequestFailedError, match="the head") as refused:
            pipeline.submit("x").result(HANG_S)
        with pytest.raises(UtilityError, match="the head") as failed:
            pipeline.utility("raiser", "raise", timeout_s=HANG_S)
        assert pipeline.died is None
    for error in (refused.value, failed.value):
        assert "the tail" in str(error)
        assert len(str(error)) < TEXT_LIMIT + 1000


def test_hostile_utility_error() -> None:
    """A utility's exception that cannot be shown fails that call alone."""
    raiser = stage("raiser", "troublesome_engines:Raiser", args={"error": "hostile", "point": "never"})
    with Pipeline(pipeline_config(raiser)) as pipeline:
        with pytest.raises(UtilityError, match="HostileError"):
            pipeline.utility("raiser", "raise", timeout_s=HANG_S)
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
