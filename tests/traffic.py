"""Requests without end from a thread of its own, each with its one outcome."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from harness import HANG_S, data_of, ended, in_thread, until

from supervisor import RequestAbortedError, RequestFailedError, StageDiedError

if TYPE_CHECKING:
    from supervisor import Pipeline
    from supervisor.handle import Handle

BATCH = 20


class Traffic:
    """Send requests to a pipeline whose results begin with the number of the replica, until `end` or its own end.

    Args:
        pipeline: takes them.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._over = threading.Event()
        self.answered: Counter[int] = Counter()
        self.failed: list[Handle] = []
        self.aborted = 0
        self.sent = 0
        self._thread = in_thread(self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            handles = []
            try:
                for number in range(BATCH):
                    handles.append(self._pipeline.submit(number))
                    self.sent += 1
            except (StageDiedError, RuntimeError):
                self._over.set()
            for handle in handles:
                self._settle(handle)

    def _settle(self, handle: Handle) -> None:
        try:
            ((replica, _),) = data_of(handle.result(HANG_S))
            self.answered[replica] += 1
        except RequestFailedError:
            self.failed.append(handle)
        except RequestAbortedError:
            self.aborted += 1

    def wait_for_answers_of(self, replicas: list[int]) -> None:
        """Wait until all of these have answered from now on."""
        before = self.answered.copy()
        until(lambda: set(self.answered - before) >= set(replicas), "all answer")

    def end(self) -> None:
        """Send no more, and see that each request has ended once."""
        self._over.set()
        assert ended(self._thread)
        assert sum(self.answered.values()) + len(self.failed) + self.aborted == self.sent
