"""The hang watch: sees from the black boxes that a stage is stuck, without a message and without a timer in the stage.

It says how long the poll may sleep at most, and only while a watched stage has work: an idle one costs nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from stage.black_box import CALL_SINCE, CALLS, HANDLED, IN_HAND, STEPS, call_of, view_cells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.stage_proc import StageProc

LATE_S = 1.0
"""A look that comes so much later than planned tells that we ourselves were stopped, and perhaps the stages with us."""

_UTILITY = CALLS.index("utility")
_TRIES = 10


class _Cells(NamedTuple):
    handled: int
    steps: int
    in_hand: int
    call: int
    since_s: float


class StageWatch:
    """The watch on one stage.

    Args:
        proc: its process.
        timeout_s: its `step_timeout_s`.
    """

    def __init__(self, proc: StageProc, timeout_s: float) -> None:
        self.proc = proc
        self.timeout_s = timeout_s
        self.sent = 0
        """Messages sent to it; counted by whoever sends."""
        self.at_rest = True
        """Nothing is being waited for: who sends something must wake the thread that polls."""
        self.finding: str | None = None
        """What is wrong, once something is."""
        self._cells = view_cells(proc.box)
        self._waiting: tuple[int, int, bool] | None = None
        self._waiting_since = 0.0
        self._was_stopped = False

    def look(self, now: float, floor: float) -> float | None:
        """Seconds until the stage will have been stuck for too long, 0 or less if it has; None if it has no work.

        Args:
            now: the monotonic clock.
            floor: no wait counts from before this time.
        """
        self.at_rest = False
        cells = self._read()
        if cells.call and cells.call != _UTILITY:
            return self._left(now, max(cells.since_s, floor), f"{CALLS[cells.call]}() has run")
        unhandled = self.sent - cells.handled
        if unhandled <= 0 and not cells.in_hand:
            self._waiting = None
            return self._rest()
        if cells.call == _UTILITY:
            self._waiting = None  # what waits behind it begins to count when it has ended
            return self.timeout_s
        # A message that comes while requests are held begins a wait of its own.
        if self._waiting != (waiting := (cells.handled, cells.steps, unhandled > 0)):
            self._waiting, self._waiting_since, self._was_stopped = waiting, now, False
        since = max(self._waiting_since, floor)
        if unhandled > 0:
            what = "a message has" if unhandled == 1 else f"{unhandled} messages have"
            return self._left(now, since, f"{what} not been handled")
        if now - since >= self.timeout_s:
            # Its engine may wait for good reasons; one that is stopped all the time does not.
            was_stopped, self._was_stopped = self._was_stopped, self.proc.is_stopped()
            if not (was_stopped and self._was_stopped):
                self._waiting_since = since = now
        return self._left(now, since, "nothing has moved")

    def close(self) -> None:
        """Let go of the black box."""
        self._cells.release()

    def _rest(self) -> float | None:
        # In this order: what is sent from now on wakes us; what was sent before is seen here.
        self.at_rest = True
        return None if self.sent <= self._read().handled else self.timeout_s

    def _left(self, now: float, since: float, what: str) -> float:
        left_s = since + self.timeout_s - now
        if left_s <= 0:
            in_hand = self._read().in_hand
            held = f", with {in_hand} request{'s' if in_hand > 1 else ''} in hand" if in_hand else ""
            self.finding = f"{what} for {now - since:.1f} s{held} (step_timeout_s: {self.timeout_s:g})"
        return left_s

    def _read(self) -> _Cells:
        """Read all cells as they stood at one moment."""
        cells = self._read_once()
        for _ in range(_TRIES):
            if (again := self._read_once()) == cells:
                break
            cells = again
        return cells

    def _read_once(self) -> _Cells:
        cells = self._cells
        return _Cells(cells[HANDLED], cells[STEPS], cells[IN_HAND], call_of(cells), cells[CALL_SINCE] / 1e9)


class HangWatch:
    """The watch on every stage that has a `step_timeout_s`.

    Args:
        watches: one for each of them.
    """

    def __init__(self, watches: Iterable[StageWatch]) -> None:
        self.watches = list(watches)
        self._planned_at = float("inf")
        self._floor = 0.0

    def limit(self, timeout_s: float | None) -> float | None:
        """How long a poll of `timeout_s` may take: until the first stage may have been stuck for too long."""
        now = time.monotonic()
        if now > self._planned_at + LATE_S:
            self._floor = now
        waits = [left_s for watch in self.watches if (left_s := watch.look(now, self._floor)) is not None]
        self._planned_at = now + min(waits) if waits else float("inf")
        return min([*waits, *([] if timeout_s is None else [timeout_s])], default=None)

    def stuck(self) -> list[StageProc]:
        """The stages that have been stuck for too long, as the last `limit` found."""
        return [watch.proc for watch in self.watches if watch.finding is not None]

    def finding(self, proc: StageProc) -> str | None:
        """What is wrong with a process, or None."""
        return next((watch.finding for watch in self.watches if watch.proc is proc), None)

    def add(self, watch: StageWatch) -> None:
        """Watch one more stage process."""
        self.watches.append(watch)

    def forget(self, proc: StageProc) -> None:
        """Watch a process no more."""
        for watch in [watch for watch in self.watches if watch.proc is proc]:
            self.watches.remove(watch)
            watch.close()

    def close(self) -> None:
        """Let go of every black box."""
        for watch in self.watches:
            watch.close()
