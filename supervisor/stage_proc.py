"""One stage process, or coordinator: the supervisor's record of it, and how its end is told and confirmed.

The pidfd is the truth: it wakes when the process is gone, also while a grandchild holds the sentinel's pipe open, and
a signal sent through it never meets a foreign process.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import psutil

from stage.black_box import BlackBoxRecord, read_black_box
from stage.names import label_of
from stage.sockets import milliseconds
from supervisor.lifecycle import Event, State, advance
from supervisor.oom import OomCounter
from supervisor.report import role_of

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from supervisor.report import Role

_UNKNOWN_STATUS = 255


@dataclass(eq=False)
class StageProc:
    """A process of a stage that was started.

    Args:
        stage: the stage's name.
        replica: its number, from 0; None for the coordinator of the stage's replicas.
        process: the process; `sentinel` is readable after its end.
        pid: its process id.
        pidfd: readable after its end.
        box: path of its black box.
        log: path of its log.
        stacks: path of its stack dumps.
        started_at: monotonic clock at its start.
        state: where it is in its life.
        exit_code: after its end, None where it is unknown.
        was_ready: True once it has said READY.
        asked_to_stop: True once we have asked it to end: its end is no death then.
        has_left: True for a replica that has ended while the others of its stage go on.
        is_released: True once its file descriptors are given back.
        ended_at: monotonic clock when its end was confirmed.
    """

    stage: str
    replica: int | None
    process: BaseProcess
    pid: int
    pidfd: int
    box: Path
    log: Path
    stacks: Path
    started_at: float
    state: State = State.SPAWNED
    exit_code: int | None = None
    was_ready: bool = False
    asked_to_stop: bool = False
    has_left: bool = False
    is_released: bool = False
    ended_at: float | None = field(default=None, repr=False)
    _ending: threading.Lock = field(default_factory=threading.Lock, repr=False)
    oom: OomCounter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.oom = OomCounter(self.pid)

    @property
    def label(self) -> str:
        """`stage/replica`, or `stage/coordinator`."""
        return label_of(self.stage, self.replica)

    @property
    def role(self) -> Role:
        """`stage` or `coordinator`."""
        return role_of(self.replica)

    @property
    def has_ended(self) -> bool:
        """True once its end has been confirmed."""
        return self.state is State.DEAD

    @property
    def process_name(self) -> str:
        """The name of its process, which a person sees."""
        return self.process.name

    def move(self, event: Event) -> None:
        """Record what happened to it."""
        self.state = advance(self.state, event)
        self.was_ready = self.was_ready or event is Event.READY

    def wait_end(self, timeout_s: float) -> bool:
        """Wait until it has ended, and confirm that; True if it has."""
        if not self.has_ended and wait_readable([self.pidfd], timeout_s):
            with self._ending:
                if not self.has_ended:
                    self._confirm_end()
        return self.has_ended

    def is_stopped(self) -> bool:
        """True if a signal has stopped it, SIGSTOP or the like."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def terminate(self) -> None:
        """Ask it to end, once: a second signal would meet an interpreter that has put its handlers away already."""
        if self.state not in {State.STOPPING, State.DEAD}:
            self.asked_to_stop = True
            self.move(Event.STOP)
            self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and its group."""
        if not self.has_ended:  # its pid may be another's by now
            self.send_signal(signal.SIGKILL)
            self._kill_group()

    def read_box(self) -> BlackBoxRecord:
        """What its black box tells, or as much as is known without it."""
        try:
            return read_black_box(self.box)
        except (OSError, ValueError, IndexError, TypeError, msgspec.MsgspecError):
            # Somebody has removed or overwritten the file: that must not hide the death.
            phase = "ready" if self.was_ready else "spawned"
            return BlackBoxRecord(phase=phase, steps=0, signal=0, error=None)

    def release(self) -> None:
        """Give its file descriptors back, once; it must have ended, and nothing may poll them any more."""
        if self.is_released:
            return
        self.is_released = True
        os.close(self.pidfd)
        try:
            self.process.close()
        except ValueError:
            # Reaped by somebody else: multiprocessing takes it for alive for ever, unless it is told.
            self.process._popen.returncode = _UNKNOWN_STATUS  # type: ignore[attr-defined]  # noqa: SLF001
            self.process.close()

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signum)

    def _kill_group(self) -> None:
        # Its own pid, never getpgid(pid): before it has a group of its own that is ours.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _confirm_end(self) -> None:
        """Kill what is left of its group while the zombie still reserves the pid, then read its exit status."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
            self._kill_group()
        # Not join(): that waits for the sentinel, which a grandchild may hold open.
        self.exit_code = self.process.exitcode
        self.ended_at = time.monotonic()
        self.move(Event.EXIT)


def wait_readable(fds: list[int], timeout_s: float) -> set[int]:
    """Wait until one of `fds` is readable; the empty set when the time is over."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(milliseconds(timeout_s))}
