"""Counts messages that are dropped because nothing of ours sends such, and tells of them once a second at most."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S = 1.0


class Strays:
    """Messages that were dropped at one place.

    Args:
        tell: called with why the last one was dropped, and how many were since the call before.
    """

    def __init__(self, tell: Callable[[str, int], object]) -> None:
        self.count = 0
        """All so far."""
        self._tell = tell
        self._told = 0
        self._told_at = float("-inf")
        self._reason = ""

    def add(self, reason: str) -> None:
        """Count one more, and tell of all that have not been told of, unless that was done just now."""
        self.count += 1
        self._reason = reason
        if (now := monotonic()) - self._told_at >= INTERVAL_S:
            self._told_at = now
            self.tell_rest()

    def tell_rest(self) -> None:
        """Tell of what has not been told of."""
        new, self._told = self.count - self._told, self.count
        if new:
            self._tell(self._reason, new)
