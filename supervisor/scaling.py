"""Scaling: a thread for each call lets a stage grow or shrink, and waits in `Turns` like everybody else.

The caller waits for that thread. No signal handler runs there, so a caller that is interrupted leaves nothing half
done: newcomers and those that leave keep their time limits.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import zmq

from supervisor.errors import SpawnError, StartupError
from supervisor.hang_watch import StageWatch
from supervisor.log import log
from supervisor.report import spawn_failure
from supervisor.teardown import KILL_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.config import StageConfig
    from supervisor.handshakes import Handshakes
    from supervisor.manager import StageProcManager
    from supervisor.membership import Membership
    from supervisor.monitor import Monitor
    from supervisor.report import StageDeathReport
    from supervisor.stage_proc import StageProc
    from supervisor.switchboard import Switchboard
    from supervisor.transport import Transport
    from supervisor.turns import Turns

DESCRIPTORS = 16
"""What must be free for a newcomer; it takes some 10 of them, a few more while it is spawned."""


class Scaling:
    """Let stages grow and shrink.

    Args:
        manager: starts the processes.
        transport: opens the sockets of those that join.
        handshakes: answers them.
        monitor: polls them.
        switchboard: has their requests.
        membership: lets them join and leave.
        turns: in which the callers wait.
    """

    def __init__(
        self,
        manager: StageProcManager,
        transport: Transport,
        handshakes: Handshakes,
        monitor: Monitor,
        switchboard: Switchboard,
        membership: Membership,
        turns: Turns,
    ) -> None:
        self._manager = manager
        self._transport = transport
        self._handshakes = handshakes
        self._monitor = monitor
        self._switchboard = switchboard
        self._membership = membership
        self._turns = turns
        self._one_at_a_time = threading.Lock()

    def scale(self, stage: StageConfig, replicas: int) -> None:
        """Let a stage have so many replicas, and return when it has, or when nothing is accepted any more.

        Args:
            stage: one that has a coordinator, and no lockstep.
            replicas: at least 1.

        Raises:
            StartupError: a new one did not become ready, the others go on; `SpawnError`, one of it, if its process
                could not be started.
            RuntimeError: the pipeline is closed.
        """
        future: Future[None] = Future()
        work = partial(self._scale, stage, replicas)
        args = (self._one_at_a_time, work, future)
        threading.Thread(target=_run, args=args, name="pipeline-scale", daemon=True).start()
        try:
            future.result()
        finally:
            future.cancel()  # an interrupted call that is still in line does nothing any more

    def _scale(self, stage: StageConfig, replicas: int) -> None:
        living = self._membership.living(stage.name)
        if replicas > len(living):
            self._grow(stage, replicas - len(living))
        elif replicas < len(living):
            self._shrink(stage, living[replicas:])

    def _grow(self, stage: StageConfig, count: int) -> None:
        deadline = time.monotonic() + self._manager.config.startup_timeout_s
        try:
            _see_room(count * DESCRIPTORS)
        except OSError as exc:
            raise SpawnError(spawn_failure(stage.name, self._manager.next_replica(stage.name), exc)) from exc
        newcomers = [self._begin(stage) for _ in range(count)]
        failures = [report for proc in newcomers if (report := self._admit(proc, deadline)) is not None]
        if failures:
            raise StartupError(failures[0])

    def _begin(self, stage: StageConfig) -> StageProc:
        """Start a replica; whoever polls takes it over before its first word is read."""
        with self._handshakes.lock:
            number = self._manager.next_replica(stage.name)
            try:
                inlet = self._transport.add(stage.name, number)
            except zmq.ZMQError as exc:
                if (refusal := self._switchboard.refusal()) is not None:  # and the run directory may be gone
                    raise RuntimeError(refusal) from exc
                raise SpawnError(spawn_failure(stage.name, number, OSError(exc.errno, exc.strerror))) from exc
            try:
                proc = self._manager.add(stage.name, number)
            except BaseException:
                self._transport.drop(inlet)
                raise
            self._membership.expect(proc)

            def begin() -> None:
                self._monitor.add(proc, inlet)
                if stage.step_timeout_s is not None:
                    watch = StageWatch(proc, stage.step_timeout_s)
                    self._monitor.watch(watch)
                    self._switchboard.watch(watch)

            self._monitor.soon(begin)
        return proc

    def _admit(self, proc: StageProc, deadline: float) -> StageDeathReport | None:
        """Wait until a newcomer has joined; the report if it did not."""
        membership = self._membership

        def settled() -> bool:
            return not membership.is_joining(proc) or self._is_over()

        if not self._turns.wait(membership.news, settled, deadline):
            limit = self._manager.config.startup_timeout_s
            self._monitor.soon(lambda: self._accuse(proc, f"it was not ready within {limit:g} s (startup_timeout_s)"))
            self._turns.wait(membership.news, settled)
        return membership.failures.pop(proc, None)

    def _accuse(self, proc: StageProc, finding: str) -> None:
        if self._membership.is_joining(proc):  # it has not joined in the very last moment
            self._monitor.accuse(proc, finding)

    def _shrink(self, stage: StageConfig, procs: list[StageProc]) -> None:
        leaving: list[StageProc] = []
        # All at once: none of them is given what another one has to leave.
        self._do(lambda: leaving.extend(self._membership.retire(procs)))
        if not self._wait_gone(leaving, stage.drain_timeout_s, lambda proc: proc.asked_to_stop):
            for proc in leaving:
                late = f"stage {proc.label!r} had not finished it within {stage.drain_timeout_s:g} s (drain_timeout_s)"
                self._switchboard.fail_at(proc, late)
        timeout_s = self._manager.config.shutdown_timeout_s
        if not self._wait_gone(leaving, timeout_s):
            self._do(lambda: self._kill(leaving, timeout_s))
            self._wait_gone(leaving, KILL_WAIT_S)

    def _wait_gone(
        self, procs: list[StageProc], timeout_s: float, is_done: Callable[[StageProc], bool] = lambda _: False
    ) -> bool:
        """Wait until each has gone, or need not be waited for, as `is_done` says; False if it has taken too long."""

        def gone() -> bool:
            return all(proc.has_left or is_done(proc) for proc in procs) or self._is_over()

        return self._turns.wait(self._membership.news, gone, time.monotonic() + timeout_s)

    def _kill(self, procs: list[StageProc], timeout_s: float) -> None:
        for proc in procs:
            if not proc.has_ended:
                proc.kill()
                log.warning(
                    "stage_killed",
                    stage=proc.stage,
                    replica=proc.replica,
                    pid=proc.pid,
                    shutdown_timeout_s=timeout_s,
                )

    def _do(self, change: Callable[[], None]) -> None:
        """Have the thread that polls make a change, and wait for it."""
        done = threading.Event()

        def do() -> None:
            try:
                change()
            finally:
                done.set()
                self._membership.tell_news()

        self._monitor.soon(do)
        self._turns.wait(self._membership.news, lambda: done.is_set() or self._is_over())

    def _is_over(self) -> bool:
        return self._switchboard.refusal() is not None


def _see_room(count: int) -> None:
    """See that so many file descriptors are free: zmq ends this whole process if one lacks as a peer connects.

    Raises:
        OSError: they are not.
    """
    with ExitStack() as opened:
        for _ in range(count):
            opened.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))


def _run(one_at_a_time: threading.Lock, work: Callable[[], None], future: Future[None]) -> None:
    with one_at_a_time:
        if not future.set_running_or_notify_cancel():
            return
        try:
            work()
        except BaseException as exc:
            future.set_exception(exc)
            del future  # a ring otherwise: the error knows this frame
        else:
            future.set_result(None)
