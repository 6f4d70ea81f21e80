"""Lets a signal end a poll of the main thread, whenever it comes.

Python runs a signal's handler when the main thread comes back to Python code. A signal that meets it on its way into a
poll, which takes a while in zmq, would be heeded with the next message only, perhaps never. So while it polls, the
interpreter writes each signal into a pipe that is polled as well.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

_NONE = -1


class SignalWake:
    """A pipe that signals are written into, while a poll of the main thread lasts.

    A program that has a wakeup fd of its own, as `asyncio` does, keeps it: it sees to its signals itself.
    """

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """Readable when a signal has come."""
        self._main_thread = threading.main_thread().ident
        self._is_taken = False

    def arm(self) -> bool:
        """Begin; False, without effect, on another thread or where the program has a wakeup fd of its own."""
        if self._is_taken or threading.get_ident() != self._main_thread:
            return False
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if before not in {_NONE, self._writer}:
            self._is_taken = True
            signal.set_wakeup_fd(before)
        return not self._is_taken

    def disarm(self) -> None:
        """End."""
        signal.set_wakeup_fd(_NONE)

    def read(self) -> None:
        """Take out what there is: the handlers know."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        """Close the pipe; nobody polls any more."""
        os.close(self.fd)
        os.close(self._writer)
