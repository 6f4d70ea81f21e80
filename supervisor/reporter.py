"""Keeps the deaths, and makes each known: one `stage_died` log event, and a JSON file where the user wants one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stage.names import label_of
from supervisor.log import log
from supervisor.report import build_report

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.report import Evidence, StageDeathReport

_LOGGED = (
    "role",
    "stage",
    "replica",
    "pid",
    "phase",
    "cause",
    "exit_code",
    "signal",
    "error_type",
    "error_message",
    "collateral_of",
)


class Reporter:
    """Publish reports.

    Args:
        directory: where a file for each report goes, or None.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.deaths: list[StageDeathReport] = []
        """All reports so far, also those that are yet to be published."""

    def build(self, evidence: Evidence, requests_lost: list[str], collateral_of: str | None) -> StageDeathReport:
        """Make a report, to be published once the requests that the death has cost have ended."""
        report = build_report(evidence, requests_lost, collateral_of)
        self.deaths.append(report)
        return report

    def publish(self, report: StageDeathReport) -> None:
        """Log the report and write its file; a file that cannot be written is logged and changes nothing else."""
        fields = report.to_dict()
        told = {name: fields[name] for name in _LOGGED if fields[name] is not None}
        log.error("stage_died", **told, requests_lost=len(report.requests_lost))
        if self._directory is None:
            return
        path = self._directory / f"{label_of(report.stage, report.replica).replace('/', '-')}-{report.pid}.json"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        except OSError as exc:
            log.error("report_not_written", path=str(path), reason=str(exc))
        else:
            log.info("report_written", path=str(path))
