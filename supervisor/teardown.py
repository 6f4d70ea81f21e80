"""The end of all stage processes: terminate → join → kill, with one deadline for all of them.

Module functions over plain data: a finalizer that held its manager would keep it alive for ever.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from supervisor.guard import kill_marked
from supervisor.log import log
from supervisor.stage_proc import wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from supervisor.guardian import Guardian
    from supervisor.run_dir import RunDir
    from supervisor.stage_proc import StageProc

KILL_WAIT_S = 2.0
"""How long the kernel may take to end a killed process before it is named and left."""
SETTLE_S = 0.05
"""How much later than its sentinel the pidfd of a killed process may tell its end."""
ECHO_S = 0.25
"""How much later than a stage we may be told to stop by whoever signals all processes of a service."""
LEFTOVERS_S = 0.2
"""How long what the stages have left may take to end, where a stage has used `KILL_WAIT_S` up already."""


class StopRequests:
    """What makes a stop immediate: the user has asked for it twice, or somebody has said `hurry`.

    The stop itself looks here: a signal may come when nobody else polls any more.

    Args:
        fd: an eventfd that counts how often the user has asked to stop, or None.
    """

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._hurry_fd: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Reentrant: a signal handler that hurries may interrupt the thread that closes.
        self._closing = threading.RLock()
        self._count = 0
        self.hurried = False
        self.deadline: float | None = None
        """Until when the processes may take, on the monotonic clock, if that is known before the stop begins."""

    def fds(self) -> list[int]:
        """What becomes readable when there is something to `read`."""
        return [fd for fd in (self._hurry_fd, self.fd) if fd is not None]

    def asked_within(self, time_s: float) -> bool:
        """True if the user has asked to stop, or does so in this time; the request stays to be read."""
        return self._count > 0 or (self.fd is not None and bool(wait_readable([self.fd], time_s)))

    def add(self, times: int) -> None:
        """Count what somebody else has read."""
        self._count += times
        self.hurried = self.hurried or self._count > 1

    def read(self) -> None:
        """Read what there is."""
        if self.fd is not None and wait_readable([self.fd], 0):
            with suppress(BlockingIOError):  # another pipeline with the same fd has been quicker
                self.add(os.eventfd_read(self.fd))

    def hurry(self) -> None:
        """Make the stop immediate; for any thread, and for signal handlers."""
        self.hurried = True
        with self._closing:
            if self._hurry_fd is not None:
                os.eventfd_write(self._hurry_fd, 1)

    def close(self) -> None:
        """Close what belongs to it; `hurry` does nothing any more."""
        with self._closing:
            fd, self._hurry_fd = self._hurry_fd, None
            if fd is not None:
                os.close(fd)


def shut_down(
    procs: list[StageProc],
    run_dir: RunDir,
    guardians: list[Guardian],
    timeout_s: float,
    stops: StopRequests,
    owner_pid: int,
) -> None:
    """Stop all `procs`, remove the run directory; what a `weakref.finalize` calls, at exit too.

    Args:
        procs: all that were started; their records outlive them.
        run_dir: removed, but for the logs if a stage died before it was asked to stop.
        guardians: dismissed at last; one, if there was a start.
        timeout_s: the time between terminate and kill.
        stops: makes it immediate; closed here.
        owner_pid: the process that started them. In a forked copy of it this function does nothing.
    """
    if os.getpid() != owner_pid:
        return
    # Also a death that nobody has looked at.
    keep_logs = any(proc.wait_end(0) and not (proc.asked_to_stop or is_excused(proc, stops)) for proc in procs)
    with signals_hurry(stops.hurry):
        _stop_all([proc for proc in procs if not proc.has_ended], timeout_s, stops)
        _kill_leftovers(run_dir, LEFTOVERS_S if any(not proc.has_ended for proc in procs) else KILL_WAIT_S)
        for proc in procs:
            if proc.has_ended:
                proc.release()
        run_dir.remove(keep_logs=keep_logs)
        for guardian in guardians:
            guardian.dismiss()
        stops.close()


def _stop_all(procs: list[StageProc], timeout_s: float, stops: StopRequests) -> None:
    for proc in procs:
        proc.terminate()
    deadline = time.monotonic() + timeout_s if stops.deadline is None else stops.deadline
    alive = wait_all(procs, deadline, stops)
    for proc in alive:
        why = {"reason": "a second request to stop"} if stops.hurried else {"shutdown_timeout_s": timeout_s}
        proc.kill()
        log.warning("stage_killed", stage=proc.stage, replica=proc.replica, pid=proc.pid, **why)
    for proc in wait_all(alive, time.monotonic() + KILL_WAIT_S, None):
        log.error("stage_unkillable", stage=proc.stage, replica=proc.replica, pid=proc.pid)
    for proc in procs:
        if proc not in alive and proc.exit_code:
            warn_of_bad_end(proc)


def _kill_leftovers(run_dir: RunDir, timeout_s: float) -> None:
    """Kill what the stages have started and what has left their process groups."""
    for pid in kill_marked(run_dir.mark, timeout_s):
        log.error("process_unkillable", pid=pid)


def warn_of_bad_end(proc: StageProc) -> None:
    """Tell of a stage that failed while it stopped: no death, since its end was asked for, but no secret either."""
    error = proc.read_box().error
    why = {} if error is None else {"error_type": error.error_type, "error_message": error.message}
    log.warning(
        "stage_stopped_badly", stage=proc.stage, replica=proc.replica, pid=proc.pid, exit_code=proc.exit_code, **why
    )


def is_excused(proc: StageProc, stops: StopRequests, until: float = 0.0) -> bool:
    """True if a process ended in order by a signal, and we are asked to stop as well: that is no death.

    Who stops a service signals all its processes, and we may be the last to be told.

    Args:
        proc: the process.
        stops: tells whether we are asked.
        until: how long that may take, on the monotonic clock; what has come is seen in any case.
    """
    in_order = proc.read_box().signal != 0 and proc.wait_end(SETTLE_S) and proc.exit_code == 0
    return in_order and stops.asked_within(max(0.0, until - time.monotonic()))


def wait_all(procs: list[StageProc], deadline: float, stops: StopRequests | None) -> list[StageProc]:
    """Wait for the end of all; return those that are alive at the deadline or when hurry is asked for."""
    alive = list(procs)
    over = False
    while alive and not over:
        fds = [proc.pidfd for proc in alive]
        if stops is not None:
            stops.read()
            fds += [] if stops.hurried else stops.fds()
        hurried = stops is not None and stops.hurried
        readable = wait_readable(fds, 0 if hurried else deadline - time.monotonic())
        alive = [proc for proc in alive if not (proc.pidfd in readable and proc.wait_end(0))]
        over = hurried or not readable
    return alive


@contextmanager
def signals_hurry(hurry: Callable[[], None]) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM do not cut the clean-up off but call `hurry`; they are delivered afterwards.

    On another thread than the main one it does nothing: no signal handler runs there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        hurry()

    previous = {}
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) not in {None, signal.SIG_IGN}:
            previous[signum] = signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        if received:
            signal.raise_signal(received[0])
