"""The monitor: one Poller over every output socket, and a sentinel and a pidfd for each stage process.

Whoever polls reads messages and nothing else; what a death, a `fatal` or a stop means is decided by others. Only one
thread at a time may be in here (see `turns`).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from stage.sockets import milliseconds, readable, receive_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.sockets import Socket
    from supervisor.stage_proc import StageProc

DRAIN_S = 0.05
"""How long after a death an output that has left the stage may take to become readable, at most."""


class Monitor:
    """Poll the stages.

    Args:
        procs: the processes, all alive.
        pulls: the output sockets by `stage/replica`.
        on_message: gets each message, as `(proc, frames)`; it returns True if the message was a `fatal`.
        on_lost: called when a message was cut off, with what cut it off.
        stop_fd: an eventfd that becomes readable when the user asks to stop, or None.
        on_stop: called when it has, with its counter.
    """

    def __init__(
        self,
        procs: list[StageProc],
        pulls: dict[str, Socket],
        on_message: Callable[[StageProc, list[zmq.Frame]], bool],
        on_lost: Callable[[BaseException], None],
        stop_fd: int | None,
        on_stop: Callable[[int], None],
    ) -> None:
        self._on_lost = on_lost
        self._on_message = on_message
        self._stop_fd = stop_fd
        self._on_stop = on_stop
        self._pulls: dict[Socket, StageProc] = {pulls[proc.label]: proc for proc in procs}
        self._ends: dict[int, StageProc] = {proc.pidfd: proc for proc in procs}
        self._ends |= {proc.process.sentinel: proc for proc in procs}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.dying: list[StageProc] = []
        """Processes that have ended or said `fatal`, in the order in which that was seen."""
        # What tells when the last message of a connection has been read.
        self._connections = {pull: pull.get_monitor_socket(zmq.EVENT_DISCONNECTED) for pull in self._pulls}
        self._poller = zmq.Poller()
        for item in (*self._pulls, *self._ends, self._wake_fd):
            self._poller.register(item, zmq.POLLIN)
        if stop_fd is not None:
            self._poller.register(stop_fd, zmq.POLLIN)

    def wake(self) -> None:
        """Make the thread that polls return from `poll`; safe to call from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait for something, read it, and return; True if a process is dying."""
        for item, _ in self._poller.poll(None if timeout_s is None else milliseconds(timeout_s)):
            # Messages come first in the Poller: what a stage said before its death is read before its death.
            proc = self._pulls.get(item)
            if proc is not None:
                self._read(item, proc)
            else:
                self._sense(item)
        return bool(self.dying)

    def _sense(self, fd: int) -> None:
        if fd in self._ends:
            # POLLERR, not POLLIN, for a sentinel: membership counts.
            self._notice(self._ends[fd])
        elif fd == self._wake_fd:
            os.eventfd_read(self._wake_fd)
        elif self._stop_fd is not None:
            with suppress(BlockingIOError):  # another pipeline with the same stop_fd has been quicker
                self._on_stop(os.eventfd_read(self._stop_fd))

    def drain(self, proc: StageProc) -> None:
        """Read what a dead process has sent, until its connection has ended, or for `DRAIN_S`."""
        pull = next(pull for pull, owner in self._pulls.items() if owner is proc)
        until = time.monotonic() + DRAIN_S
        poller = zmq.Poller()
        poller.register(pull, zmq.POLLIN)
        poller.register(self._connections[pull], zmq.POLLIN)
        while (left := until - time.monotonic()) > 0:
            ready = dict(poller.poll(milliseconds(left)))
            while readable(pull):
                self._read(pull, proc)
            if self._connections[pull] in ready:
                return

    def close(self) -> None:
        """Close what belongs to the monitor; the processes' descriptors stay."""
        for pull in self._pulls:
            pull.disable_monitor()
        os.close(self._wake_fd)

    def _read(self, pull: Socket, proc: StageProc) -> None:
        try:
            fatal = self._on_message(proc, receive_frames(pull, zmq.NOBLOCK))
        except BaseException as exc:
            self._on_lost(exc)
            raise
        if fatal:
            self._notice(proc)

    def _notice(self, proc: StageProc) -> None:
        if proc not in self.dying:
            self.dying.append(proc)
