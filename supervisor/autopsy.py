"""Gathers the evidence of a death: exit status, black box, log."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from supervisor.report import Evidence
from supervisor.teardown import KILL_WAIT_S, wait_all

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.report import Cause
    from supervisor.stage_proc import StageProc
    from supervisor.teardown import StopRequests

LOG_LINES = 20
_LOG_BYTES = 64 * 1024


def examine(
    proc: StageProc, *, said: str | None, verdict: Cause | None, deadline: float, stops: StopRequests
) -> Evidence:
    """Wait for the end of a process that is dying, kill it if it does not end, and gather what it left.

    Args:
        proc: the process.
        said: the error text of its `fatal` message, or None.
        verdict: why the supervisor itself ends it, or None.
        deadline: until when, on the monotonic clock, it may end by itself.
        stops: makes it immediate.
    """
    box = proc.read_box()
    if wait_all([proc], deadline, stops):
        proc.kill()
        wait_all([proc], time.monotonic() + KILL_WAIT_S, None)
    # Read again: the error may have been recorded meanwhile. The phase of a stage that we killed is that before it.
    if verdict is None:
        box = proc.read_box()
    ended_at = time.monotonic() if proc.ended_at is None else proc.ended_at
    return Evidence(
        stage=proc.stage,
        replica=proc.replica,
        pid=proc.pid,
        exit_code=proc.exit_code,
        box=box,
        said=said,
        verdict=verdict,
        uptime_s=ended_at - proc.started_at,
        log_tail=read_tail(proc.log),
        log_path=str(proc.log),
    )


def read_tail(path: Path) -> list[str]:
    """The last lines of a log that may be of any size, or missing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-LOG_LINES:]
