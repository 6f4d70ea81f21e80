"""Every fault at every point, each time that the point is reached: the promises hold."""

from __future__ import annotations

import pytest
from checker import check
from scenario import STALL_S, Cell, Seen, act_out
from table import ACTIONS, BOOT_POINTS, POINTS, TIMES, Expected, expected

MOST = 10
"""A sweep that is longer has not ended."""

CELLS = [(point, action) for point in POINTS for action in ACTIONS if expected(point, action)]


@pytest.mark.parametrize(("point", "action"), CELLS)
def test_sweep(point: str, action: str) -> None:
    """Whenever the fault comes, every promise holds; the sweep ends when the point is not reached so often."""
    wanted = expected(point, action)
    assert wanted is not None
    fired = 0
    for nth in range(1, MOST + 1):
        seen = run(Cell(point, action, nth, wanted))
        check(seen)
        if seen.fired_in is None:
            break
        fired = nth
    assert TIMES.get(point, 1) <= fired < MOST


def run(cell: Cell) -> Seen:
    """Act a cell out; with more time where the start's deadline has come before the fault."""
    timeout_s = STALL_S
    seen = act_out(cell, timeout_s, step_timeout(cell.point, cell.wanted))
    while _was_too_slow(seen):
        timeout_s *= 3
        seen = act_out(cell, timeout_s, step_timeout(cell.point, cell.wanted))
    return seen


def step_timeout(point: str, wanted: Expected) -> float | None:
    """Only a stage that stalls in a step needs to be watched."""
    return STALL_S if wanted.death is not None and wanted.death.cause == "hung" else None


def _was_too_slow(seen: Seen) -> bool:
    ready = {event["stage"] for event in seen.events.of("stage_ready")}
    early = seen.fired_in is None or "other" not in ready
    report = seen.startup_error
    return report is not None and report.cause == "startup_timeout" and early and seen.cell.point in BOOT_POINTS
