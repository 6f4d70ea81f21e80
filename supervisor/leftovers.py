"""What others left behind: processes that escaped from a stage's process group, and dead supervisors' directories.

A stage puts a mark into its environment, the path of the run directory. All that it starts inherits that, also what
makes a session of its own, and the kernel shows it. The mark is the stage's own doing: set around the spawn, it would
be inherited by what other threads of the supervisor start meanwhile.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from stage.names import MARK
from supervisor.log import log
from supervisor.run_dir import LIFELINE, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator


def kill_marked(run_dir: Path, timeout_s: float) -> list[int]:
    """Kill every process that bears the mark of a run directory, and what those have started meanwhile.

    Args:
        run_dir: whose mark.
        timeout_s: how long to go on finding new ones, and to wait for their ends.

    Returns:
        The pids that are still there.
    """
    deadline = time.monotonic() + timeout_s
    while found := list(_marked(run_dir)):
        for process in found:
            with suppress(psutil.Error):
                process.kill()  # looks at the start time first: never a foreign process
        left_s = deadline - time.monotonic()
        _, alive = psutil.wait_procs(found, max(0.0, left_s))
        if left_s <= 0:
            return [process.pid for process in alive]
    return []


def _marked(run_dir: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(OSError):
            if process.pid != os.getpid() and _bears_mark(Path(f"/proc/{process.pid}"), os.fsencode(run_dir)):
                yield process


def _bears_mark(proc: Path, run_dir: bytes) -> bool:
    if MARK.encode() + b"=" + run_dir in (proc / "environ").read_bytes().split(b"\0"):
        return True
    # What was forked, and runs no other program, shows the environment that the stage began with, as the kernel has
    # it. But it has the stage's black box in its memory.
    forked = b"--multiprocessing-fork" in (proc / "cmdline").read_bytes()
    return forked and run_dir + b"/" in (proc / "maps").read_bytes()


def sweep(base: Path) -> None:
    """Remove the run directories of this user's supervisors that are no more, and kill what bears their mark.

    Directories in which logs were kept after a death have no lifeline any more, and stay.
    """
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_dead(entry):
                path = Path(entry.path)
                kill_marked(path, 0)
                shutil.rmtree(path, ignore_errors=True)
                log.info("run_directory_swept", path=entry.path)


def _is_dead(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
            return False
        fd = os.open(f"{entry.path}/{LIFELINE}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A FIFO without a writer is at its end; one that has a writer would block.
            return stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.read(fd, 1)
        finally:
            os.close(fd)
    return False
