"""What the supervisor tells of a life in its log."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXPECTED = ("stage_stopped_badly",)
"""Warnings that a kill may bring."""


class Log(logging.Handler):
    """The supervisor's log events: its reports, who has joined and left, and faults of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []
        self.joined: set[int] = set()
        self.left: set[int] = set()
        self.faults: list[str] = []
        self.on_spawn: Callable[[dict[str, Any]], None] | None = None
        self._news = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] = getattr(record, "event_dict", {})
        name = event.get("event", "")
        with self._news:
            if name == "stage_died":
                self.reports.append(event)
            elif name == "replica_joined":
                self.joined.add(event["pid"])
            elif name == "replica_left":
                self.left.add(event["pid"])
            elif record.levelno >= logging.WARNING and name not in EXPECTED:
                self.faults.append(record.getMessage())
            self._news.notify_all()
        if name in {"stage_spawned", "coordinator_spawned"} and self.on_spawn is not None:
            self.on_spawn(event)

    def forget(self) -> None:
        """Begin anew; faults stay until they are told."""
        self.reports, self.joined, self.left = [], set(), set()

    def wait(self, happened: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something has happened; False if it has not within `timeout_s`."""
        with self._news:
            return self._news.wait_for(happened, timeout_s)
