"""Requests that wait until another one of their id has ended (pure), so that each outcome tells of one request only."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.run import Request


class HeldBack:
    """Let one request of each id go at a time, in the order in which they came.

    Attributes:
        count: requests that are held back, or may go but have not been taken yet.
    """

    def __init__(self) -> None:
        self.count = 0
        # For each id that is alive what waits behind it, mostly nothing.
        self._behind: dict[str | None, deque[Request] | None] = {}
        self._released: deque[Request] = deque()

    def admit(self, request: Request) -> bool:
        """True if a request may go at once; else it is kept."""
        if request.id not in self._behind:
            self._behind[request.id] = None
            return True
        behind = self._behind[request.id]
        if behind is None:
            behind = self._behind[request.id] = deque()
        behind.append(request)
        self.count += 1
        return False

    def ended(self, request_id: str) -> bool:
        """Take the end of a request; True if another one may go now."""
        behind = self._behind.get(request_id)
        if not behind:
            self._behind.pop(request_id, None)
            return False
        self._released.append(behind.popleft())
        return True

    def take(self) -> Request | None:
        """The next one that may go now, or None."""
        if not self._released:
            return None
        self.count -= 1
        return self._released.popleft()
