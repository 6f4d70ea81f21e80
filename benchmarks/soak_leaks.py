"""What a pipeline could leave behind: processes, descriptors, threads, files and shared memory, compared as sets."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

KINDS = ("processes", "descriptors", "threads", "run directories", "shared memory")
SETTLE_S = 5.0
"""How long kernel threads and processes may take to go after they were joined."""

MARK = "SOAK_MARK"
"""A variable that every process below this one inherits: it finds those that have lost their parent too."""

Thing = tuple[str, str]
"""A kind, and a name."""


class Inventory:
    """Find what is there now and was not there before.

    Args:
        directory: the temporary directory of this program alone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # No run directory may be there already.
        self._known = {(kind, name) for kind, name in self._all() if kind != "run directories"}

    def leaks(self) -> list[Thing]:
        """Name what is new, once; it has some time to go."""
        until = time.monotonic() + SETTLE_S
        while new := self._all() - self._known:
            if time.monotonic() > until:
                break
            gc.collect()
            time.sleep(0.01)
        self._known |= new
        return sorted(new)

    def remove_logs(self) -> int:
        """Remove the directories that were kept for their logs, which hold nothing else; return how many there were."""
        kept = [
            path for path in self._directory.glob("stages-*") if all(log.suffix == ".log" for log in path.iterdir())
        ]
        for path in kept:
            shutil.rmtree(path)
        return len(kept)

    def _all(self) -> set[Thing]:
        found = {("processes", name) for name in marked_processes()}
        found |= {("threads", f"{thread.name} {thread.ident}") for thread in threading.enumerate()}
        found |= {("run directories", path.name) for path in self._directory.iterdir()}
        found |= {("shared memory", path.name) for path in Path("/dev/shm").iterdir() if _is_ours(path)}  # noqa: S108
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # that of the listing itself
                found.add(("descriptors", f"{link.name} {link.readlink()}"))
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                name = (task / "comm").read_text().strip()
                if name.startswith("ZMQ"):
                    found.add(("threads", f"{name} {task.name}"))
        return found


def marked_processes() -> set[str]:
    """Every process with our mark in its environment, but for this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.name != str(os.getpid()) and mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(f"{process.name} {(process / 'comm').read_text().strip()}")
    return found


def _is_ours(path: Path) -> bool:
    """True unless another program that runs beside us has made it: one of ours has our number in its name."""
    with suppress(OSError):
        return path.stat().st_uid == os.getuid() and not _is_mapped_elsewhere(str(path))
    return False


def _is_mapped_elsewhere(path: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.name != str(os.getpid()) and path in (process / "maps").read_text():
                return True
    return False
