"""Requests from a stream of JSON lines, as they come; one whose id is alive waits until that one has ended."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from supervisor.cli.held_back import HeldBack
from supervisor.cli.jsonl import LineSplitter, read_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.run import Request

_CHUNK_BYTES = 64 * 1024
HELD_BACK_LIMIT = 1000
"""Requests that may wait for another one of their id; with so many, no more are read until one may go."""


class InputError(Exception):
    """The input cannot be read; the text names it."""


class JsonLines:
    """The requests of a file, a pipe or a terminal, as they come; one whose id is alive is held back until it is not.

    Args:
        fd: its file descriptor.
        name: what errors call it.
        owned: whether to close `fd` at the end.
    """

    def __init__(self, fd: int, name: str, *, owned: bool) -> None:
        self._fd = fd
        self._name = name
        self._owned = owned
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._held_back = HeldBack()
        self._reading = False
        self._closed = False
        self._released = False

    def __iter__(self) -> Iterator[Request]:
        with self._lock:
            if self._released:
                return
            self._reading = True
        try:
            for numbered in self._lines():
                request = None if numbered is None else read_request(*numbered)
                if request is not None and self._admit(request):
                    yield request
                if self._held_back.count:
                    yield from self._wait_for_turns(HELD_BACK_LIMIT - 1)
            yield from self._wait_for_turns(0)
        finally:
            with self._lock:
                self._reading = False
                self._release()

    def ended(self, request_id: str) -> None:
        """Let the next request of this id go, if there is one."""
        with self._lock:
            if self._held_back.ended(request_id) and self._reading:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """End the iteration."""
        with self._lock:
            self._closed = True
            if self._reading:
                os.eventfd_write(self._wake_fd, 1)
            else:
                self._release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            os.close(self._wake_fd)
            if self._owned:
                os.close(self._fd)

    def _admit(self, request: Request) -> bool:
        with self._lock:
            return self._held_back.admit(request)

    def _wait_for_turns(self, most: int) -> Iterator[Request]:
        """Yield those whose turn has come, until at most `most` are held back."""
        while not self._closed:
            with self._lock:
                request = self._held_back.take()
            if request is not None:
                yield request
            elif self._held_back.count <= most:
                return
            else:
                self._wait(for_more=False)

    def _lines(self) -> Iterator[tuple[int, bytes | None] | None]:
        """Yield numbered lines; None when there is no line, but the turn of a request may have come."""
        splitter = LineSplitter()
        while not self._closed:
            chunk = self._read()
            if chunk is None:
                yield None
            elif chunk:
                yield from splitter.feed(chunk)
            else:
                yield from splitter.finish()
                return

    def _read(self) -> bytes | None:
        """Wait for more and read it; empty at the end, None if something else has come."""
        if not self._wait(for_more=True) or self._closed:
            return None
        try:
            return os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:  # somebody who shares the pipe has read it first
            return None
        except OSError as exc:
            raise InputError(f"{self._name}: cannot be read ({exc.strerror})") from exc

    def _wait(self, *, for_more: bool) -> bool:
        """Wait until a turn has come, for `close`, or for more to read; True if there is more."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if for_more:
            poller.register(self._fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll()}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        return self._fd in ready
