"""The queues inside a simulated stage."""

from __future__ import annotations

import queue
from collections import deque
from typing import Any

from sim_world import Pause


class PausingQueue:
    """A `SimpleQueue` that pauses who would wait, or has taken as much as it may for now."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.allowance = 0

    def put(self, item: Any) -> None:
        """Put it in."""
        self.items.append(item)

    def get(self) -> Any:
        """Take the oldest."""
        if not self.items or not self.allowance:
            raise Pause
        self.allowance -= 1
        return self.items.popleft()

    def get_nowait(self) -> Any:
        """Take the oldest, if there is one."""
        if not self.items:
            raise queue.Empty
        return self.get()

    def empty(self) -> bool:
        """True if nothing can be taken now."""
        return not self.items or not self.allowance
