"""`StageProcManager`: owns the stage processes, from spawn to the last wait.

The finalizer stands before the first process is started, and holds the list of processes, never the manager: so it
covers a start that is interrupted half-way, and a manager that is dropped without `close`.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType
from typing import TYPE_CHECKING, Self

from stage.black_box import create_black_box
from stage.boot import Boot
from stage.coordinator import run_coordinator
from stage.process import run_stage
from supervisor.autopsy import has_failed
from supervisor.errors import SpawnError
from supervisor.guardian import Guardian
from supervisor.leftovers import sweep
from supervisor.log import log
from supervisor.report import spawn_failure
from supervisor.run_dir import RunDir, place
from supervisor.stage_proc import StageProc, wait_readable
from supervisor.teardown import StopRequests, shut_down

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from supervisor.config import PipelineConfig

_REAP_S = 1.0
_spawn_lock = threading.Lock()


class StageProcManager:
    """Start the stage processes of a config and end them, whatever happens.

    It works without a `Pipeline`: the processes then wait for their handshake. A context manager starts on entry and
    closes on exit.

    Args:
        config: whose stages to start.
        stop_fd: an eventfd that counts how often the user has asked to stop, or None.
    """

    def __init__(self, config: PipelineConfig, stop_fd: int | None = None) -> None:
        self.config = config
        self.procs: list[StageProc] = []
        _open_missing_streams()
        sweep(place())
        self.run_dir = RunDir()
        try:
            self.stops = StopRequests(stop_fd)
        except BaseException:
            self.run_dir.remove(keep_logs=False)
            raise
        self._guardians: list[Guardian] = []
        self._closing = threading.Lock()
        self._finalizer = weakref.finalize(
            self,
            shut_down,
            self.procs,
            self.run_dir,
            self._guardians,
            config.shutdown_timeout_s,
            self.stops,
            os.getpid(),
        )

    def start(self) -> None:
        """Spawn every replica of every stage, and a coordinator for each stage that has several.

        Raises:
            SpawnError: one could not be started; those before it have been taken down.
        """
        # Ahead of the mask: its start unblocks SIGINT and SIGTERM, and the first stage would inherit that.
        resource_tracker.ensure_running()
        self._guardians.append(Guardian(self.run_dir))
        for stage in self.config.stages:
            # The coordinator first: the replicas wait for it.
            coordinators = [None] if stage.replicas > 1 else []
            for replica in (*coordinators, *range(stage.replicas)):
                try:
                    self._spawn(stage.name, replica)
                except BaseException as exc:
                    self.close()
                    if isinstance(exc, OSError):
                        raise SpawnError(spawn_failure(stage.name, replica, exc)) from exc
                    raise

    def next_replica(self, stage: str) -> int:
        """The number of the next replica of a stage: one that none has had before."""
        return 1 + max(proc.replica for proc in self.procs if proc.stage == stage and proc.replica is not None)

    def add(self, stage: str, replica: int) -> StageProc:
        """Spawn one more replica of a stage.

        Raises:
            SpawnError: it could not be started; the others go on.
            RuntimeError: the manager is closed.
        """
        with self._closing:  # nobody is started behind the back of a `close`
            if not self._finalizer.alive:
                raise RuntimeError("the pipeline is closed")
            try:
                return self._spawn(stage, replica)
            except BaseException as exc:
                if self.next_replica(stage) == replica:  # still: nothing may lie in the way of the next one
                    for path in self._files(stage, replica):
                        path.unlink(missing_ok=True)
                if isinstance(exc, OSError):
                    raise SpawnError(spawn_failure(stage, replica, exc)) from exc
                raise

    def part_with(self, proc: StageProc) -> None:
        """Let go of a replica that has ended, while the others go on; its log stays if it died."""
        for path in (proc.box, proc.stacks, *([proc.log] if proc.asked_to_stop else [])):
            path.unlink(missing_ok=True)
        proc.has_left = True
        proc.release()

    def sentinels(self) -> list[int]:
        """A file descriptor for each process that has not been closed: readable, or POLLERR, once it has ended.

        Unregister them wherever they are polled before you call `close`.
        """
        living = [proc for proc in self.procs if not proc.is_released]
        return [proc.process.sentinel for proc in living] if self._finalizer.alive else []

    def finished_procs(self) -> dict[str, int | None]:
        """The exit code of every process that has ended, by its name; None where the status is unknown."""
        if self._finalizer.alive:
            for proc in [proc for proc in self.procs if not proc.is_released]:
                # A sentinel tells an end shortly before the process can be reaped.
                proc.wait_end(_REAP_S if wait_readable([proc.process.sentinel], 0) else 0)
        return {proc.process_name: proc.exit_code for proc in self.procs if proc.ended_at is not None}

    def hurry(self) -> None:
        """Make a `close` that is under way, or yet to come, kill at once."""
        self.stops.hurry()

    def ask_to_end(self, spared: Collection[StageProc], deadline: float) -> None:
        """Ask all to end but `spared`, which are failing; a `close` that follows waits until `deadline`, no longer.

        A failing one may take all the time there is to end: the others end meanwhile, so that one deadline is enough.
        """
        self.stops.deadline = deadline
        for proc in self.procs:
            if proc not in spared and not has_failed(proc):
                proc.terminate()

    def close(self) -> None:
        """End every process: terminate, wait `shutdown_timeout_s` for all of them together, kill. Do it once."""
        with self._closing:
            self._finalizer()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _files(self, stage: str, replica: int | None) -> tuple[Path, Path, Path]:
        run_dir = self.run_dir
        return run_dir.black_box(stage, replica), run_dir.log(stage, replica), run_dir.stacks(stage, replica)

    def _spawn(self, stage: str, replica: int | None) -> StageProc:
        box, log_path, stacks = self._files(stage, replica)
        create_black_box(box)
        log_path.touch(mode=0o600)  # there also if the stage dies before it has opened it
        boot = Boot(
            stage=stage,
            replica=replica,
            parent_pid=os.getpid(),
            handshake_address=self.run_dir.address("handshake"),
            lifeline=str(self.run_dir.lifeline),
            black_box=str(box),
            log=str(log_path),
            stacks=str(stacks),
        )
        process = multiprocessing.get_context("spawn").Process(
            target=run_coordinator if replica is None else run_stage, args=(boot,), name=boot.process_name
        )
        with _spawn_lock, _signals_blocked(), _main_hidden():
            process.start()
            # Ours alone: multiprocessing would join it at exit, which a forked copy of us cannot, and any other thread
            # that starts a process of its own could reap it before us.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # noqa: SLF001
            pid = process.pid
            assert pid is not None  # noqa: S101 (set by start)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                process.kill()
                process.join()
                process.close()
                raise
            proc = StageProc(stage, replica, process, pid, pidfd, box, log_path, stacks, time.monotonic())
            self.procs.append(proc)
        for guardian in self._guardians:
            guardian.tell(pid)
        log.info(f"{proc.role}_spawned", stage=stage, replica=replica, pid=pid)
        return proc


def _open_missing_streams() -> None:
    """Let no pipe to a stage have the number of a standard stream that is closed: the stage redirects those."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is this one


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let the child inherit a mask, so that no signal meets it before its handlers stand; it unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the user's main module: the child must not import it, so a script needs no `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
