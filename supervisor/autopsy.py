"""Gathers the evidence of a death: exit status, black box, log, and the stacks of a stage that we end ourselves."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from stage.errors_text import fit_text
from stage.stacks import STACKS_SIGNAL
from supervisor.report import Evidence
from supervisor.teardown import KILL_WAIT_S, wait_all

if TYPE_CHECKING:
    from pathlib import Path

    from stage.black_box import BlackBoxRecord
    from supervisor.report import Cause
    from supervisor.stage_proc import StageProc
    from supervisor.teardown import StopRequests

LOG_LINES = 20
STACKS_S = 0.5
"""How long a stage has to write its stacks."""

_LOG_BYTES = 64 * 1024
_LOOK_S = 0.02


def examine(proc: StageProc, said: str | None, deadline: float, stops: StopRequests) -> Evidence:
    """Wait for the end of a process that is dying, kill it if it does not end, and gather what it left.

    Args:
        proc: the process.
        said: the error text of its `fatal` message, or None.
        deadline: until when, on the monotonic clock, it may end by itself.
        stops: makes it immediate.
    """
    if wait_all([proc], deadline, stops):
        proc.kill()
        wait_all([proc], time.monotonic() + KILL_WAIT_S, None)
    return _gather(proc, proc.read_box(), said)


def convict(proc: StageProc, verdict: Cause, finding: str) -> Evidence:
    """Kill a process that does not do what it should, and gather what tells why.

    Args:
        proc: the process.
        verdict: `hung` or `startup_timeout`.
        finding: what is wrong with it.
    """
    box = proc.read_box()  # as it is before we do anything to it
    stacks = None
    if proc.is_stopped():
        finding += "; it was stopped by a signal (SIGSTOP or the like), and has not been continued"
    elif box.phase != "spawned":  # it does not know the signal before it has begun
        stacks = _dump_stacks(proc)
    proc.kill()
    wait_all([proc], time.monotonic() + KILL_WAIT_S, None)
    return _gather(proc, box, finding, verdict, stacks)


def has_failed(proc: StageProc) -> bool:
    """True if a process has ended, or is about to by an error of its own."""
    return proc.wait_end(0) or proc.read_box().error is not None


def _dump_stacks(proc: StageProc) -> str | None:
    """Ask for the stacks of all threads; None if none came.

    Nothing tells the end of a dump, so this looks until the file does not grow any more.
    """
    proc.send_signal(STACKS_SIGNAL)
    deadline = time.monotonic() + STACKS_S
    text, before = "", None
    while (not text or text != before) and not proc.wait_end(_LOOK_S) and time.monotonic() < deadline:
        with suppress(OSError):
            text, before = proc.stacks.read_text("utf-8", "replace"), text
    return fit_text(text) or None


def _gather(
    proc: StageProc, box: BlackBoxRecord, said: str | None, verdict: Cause | None = None, stacks: str | None = None
) -> Evidence:
    ended_at = time.monotonic() if proc.ended_at is None else proc.ended_at
    return Evidence(
        stage=proc.stage,
        replica=proc.replica,
        pid=proc.pid,
        exit_code=proc.exit_code,
        box=box,
        said=said,
        verdict=verdict,
        stacks=stacks,
        oom_kills=proc.oom.kills(),
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
