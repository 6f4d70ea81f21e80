"""The monitor: one Poller over handshake and output sockets, and a sentinel and a pidfd for each stage process.

Whoever polls reads messages and nothing else; what a death, a `fatal` or a stop means is decided by others. Only one
thread at a time may be in here (see `turns`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import zmq

from stage.sockets import milliseconds, readable, receive_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.sockets import Socket
    from supervisor.hang_watch import HangWatch, StageWatch
    from supervisor.signal_wake import SignalWake
    from supervisor.stage_proc import StageProc
    from supervisor.transport import Inlet

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
        hang_watch: sees which stage is stuck, or None if no stage has a `step_timeout_s`.
        signal_wake: lets a signal end a poll of the main thread, or None if no signal matters.
    """

    def __init__(
        self,
        procs: list[StageProc],
        pulls: dict[str, Inlet],
        on_message: Callable[[StageProc, list[zmq.Frame]], bool],
        on_lost: Callable[[BaseException], None],
        stop_fd: int | None,
        on_stop: Callable[[int], None],
        hang_watch: HangWatch | None = None,
        signal_wake: SignalWake | None = None,
    ) -> None:
        self._on_lost = on_lost
        self._on_message = on_message
        self._stop_fd = stop_fd
        self._on_stop = on_stop
        self._hang_watch = hang_watch
        self._signal_wake = signal_wake
        self._inlets = {proc: pulls[proc.label] for proc in procs}
        self._pulls: dict[Socket, StageProc] = {inlet.socket: proc for proc, inlet in self._inlets.items()}
        self._hear: dict[Socket, Callable[[bytes, bytes], None]] = {}
        self._changes: deque[Callable[[], None]] = deque()
        self._accused: dict[StageProc, str] = {}
        self._leaving: dict[int, Callable[[], None]] = {}
        self._deadlines: dict[StageProc, float] = {}
        self._ends: dict[int, StageProc] = {proc.pidfd: proc for proc in procs}
        self._ends |= {proc.process.sentinel: proc for proc in procs}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Reentrant: a signal handler that closes the pipeline may interrupt the thread that wakes.
        self._closing = threading.RLock()
        self._is_closed = False
        self.dying: list[StageProc] = []
        """Processes that have ended or said `fatal`, in the order in which that was seen."""
        self._poller = zmq.Poller()
        for item in (*self._pulls, *self._ends, self._wake_fd):
            self._poller.register(item, zmq.POLLIN)
        if stop_fd is not None:
            self._poller.register(stop_fd, zmq.POLLIN)
        if signal_wake is not None:
            self._poller.register(signal_wake.fd, zmq.POLLIN)

    def listen(self, socket: Socket, hear: Callable[[bytes, bytes], None]) -> None:
        """Pass what comes on a ROUTER to `hear`, as `(identity, content)`."""
        self._hear[socket] = hear
        self._poller.register(socket, zmq.POLLIN)

    def soon(self, change: Callable[[], None]) -> None:
        """Have the thread that polls call `change` before it polls again; for any thread, and after the end in vain."""
        self._changes.append(change)
        self.wake()

    def add(self, proc: StageProc, inlet: Inlet) -> None:
        """Poll one more process; for the thread that polls."""
        self._inlets[proc] = inlet
        self._pulls[inlet.socket] = proc
        self._ends[proc.pidfd] = self._ends[proc.process.sentinel] = proc
        for item in (inlet.socket, proc.pidfd, proc.process.sentinel):
            self._poller.register(item, zmq.POLLIN)

    def watch(self, watch: StageWatch) -> None:
        """Watch one more process for hangs, where others of its stage are; for the thread that polls."""
        assert self._hang_watch is not None  # noqa: S101 (so it is)
        self._hang_watch.add(watch)

    def accuse(self, proc: StageProc, finding: str) -> None:
        """Take a process for one that does not do what it should; for the thread that polls."""
        self._accused[proc] = finding
        self.notice(proc)

    def let_end(self, proc: StageProc, deadline: float) -> None:
        """Take a process for dying no more until it has ended, or the deadline has come; for the thread that polls."""
        self.dying = [other for other in self.dying if other is not proc]
        self._deadlines[proc] = deadline
        if self._hang_watch is not None:
            self._hang_watch.forget(proc)

    def wake(self) -> None:
        """Make the thread that polls return from `poll`; safe to call from any thread, and after `close`."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait for something, read it, and return; True if a process is dying."""
        if self._hang_watch is not None:
            timeout_s = self._hang_watch.limit(timeout_s)
        if self._deadlines:
            left_s = max(0.0, min(self._deadlines.values()) - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
        others = []
        # Messages come first: what a process said is read before its death is seen, and before it is forgotten.
        for item, _ in self._wait(timeout_s):
            proc = self._pulls.get(item)
            if proc is not None:
                self._read(item, proc)
            else:
                others.append(item)
        for item in others:
            self._sense(item)
        if self._hang_watch is not None:
            for proc in self._hang_watch.stuck():
                self.notice(proc)
        for proc, deadline in list(self._deadlines.items()):
            if time.monotonic() >= deadline:
                self.notice(proc)
        return bool(self.dying)

    def _wait(self, timeout_s: float | None) -> list[tuple[Any, int]]:
        timeout_ms = None if timeout_s is None else milliseconds(timeout_s)
        signal_wake = self._signal_wake
        if timeout_ms == 0 or signal_wake is None or not signal_wake.arm():
            return self._poller.poll(timeout_ms)
        try:
            return self._poller.poll(timeout_ms)
        finally:
            signal_wake.disarm()

    def _sense(self, fd: int | Socket) -> None:
        if isinstance(fd, zmq.Socket):
            # Otherwise it is the inlet of a process that was forgotten since we polled, and is closed.
            if fd in self._hear:
                identity, *rest = receive_frames(fd, zmq.NOBLOCK)
                self._hear[fd](identity.bytes, rest[-1].bytes if rest else b"")
        elif fd in self._ends:
            # POLLERR, not POLLIN, for a sentinel: membership counts.
            self.notice(self._ends[fd])
        elif fd in self._leaving:
            self._poller.unregister(fd)
            self._leaving.pop(fd)()
        elif fd == self._wake_fd:
            os.eventfd_read(self._wake_fd)
            while self._changes:
                self._changes.popleft()()
        elif self._signal_wake is not None and fd == self._signal_wake.fd:
            self._signal_wake.read()
        elif fd == self._stop_fd:
            with suppress(BlockingIOError):  # another pipeline with the same stop_fd has been quicker
                self._on_stop(os.eventfd_read(fd))

    def finding(self, proc: StageProc) -> str | None:
        """Why a process was taken for stuck, or None if it was not."""
        if proc in self._accused:
            return self._accused[proc]
        return None if self._hang_watch is None else self._hang_watch.finding(proc)

    def drain(self, proc: StageProc) -> None:
        """Read what a dead process has sent, until its connection has ended, or for `DRAIN_S`."""
        inlet = self._inlets[proc]
        until = time.monotonic() + DRAIN_S
        poller = zmq.Poller()
        poller.register(inlet.socket, zmq.POLLIN)
        poller.register(inlet.events, zmq.POLLIN)
        while (left := until - time.monotonic()) > 0:
            ready = dict(poller.poll(milliseconds(left)))
            while readable(inlet.socket):
                self._read(inlet.socket, proc)
            if inlet.events in ready and inlet.count_peers() == 0:
                return  # zmq tells the end of a connection after its last message

    def forget(self, proc: StageProc, on_end: Callable[[], None] | None = None) -> None:
        """Poll a process no more, or only for its end, which is no death then; for the thread that polls.

        Args:
            proc: the process.
            on_end: called once it has ended.
        """
        inlet = self._inlets.pop(proc)
        del self._pulls[inlet.socket]
        self._poller.unregister(inlet.socket)
        for fd in (proc.pidfd, proc.process.sentinel):
            del self._ends[fd]
            self._poller.unregister(fd)
        self.dying = [other for other in self.dying if other is not proc]
        self._accused.pop(proc, None)
        self._deadlines.pop(proc, None)
        if self._hang_watch is not None:
            self._hang_watch.forget(proc)
        inlet.close()
        if on_end is not None:
            self._poller.register(proc.pidfd, zmq.POLLIN)
            self._leaving[proc.pidfd] = on_end

    def close(self) -> None:
        """Close what belongs to the monitor; the processes' descriptors stay."""
        with self._closing:
            self._is_closed = True
            os.close(self._wake_fd)

    def _read(self, pull: Socket, proc: StageProc) -> None:
        try:
            fatal = self._on_message(proc, receive_frames(pull, zmq.NOBLOCK))
        except BaseException as exc:
            self._on_lost(exc)
            raise
        if fatal:
            self.notice(proc)

    def notice(self, proc: StageProc) -> None:
        """Take a process for dying; for the thread that polls."""
        self._deadlines.pop(proc, None)
        if proc not in self.dying:
            self.dying.append(proc)
