"""What supervisors that are no more have left behind: their run directories, and processes that bear their mark."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from stage.names import MARK
from supervisor.guard import kill_marked
from supervisor.log import log
from supervisor.run_dir import LIFELINE, PREFIX

if TYPE_CHECKING:
    from pathlib import Path

SWEEP_S = 1.0
"""How long the processes of a dead supervisor may take to end, all that they start meanwhile included."""


def sweep(base: Path) -> None:
    """Remove the run directories of this user's supervisors that are no more, and kill what bears their mark.

    Directories in which logs were kept after a death have no lifeline any more, and stay.
    """
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_dead(entry):
                kill_marked(f"{MARK}={entry.path}", SWEEP_S)
                shutil.rmtree(entry.path, ignore_errors=True)
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
