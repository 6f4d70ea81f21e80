"""The run directory: private to one supervisor, it holds the sockets, and each stage's black box and log.

In it lies the lifeline, a FIFO that the supervisor holds open for writing as long as it lives: the stages die with its
last writer (`stage.parent_watch`), and a directory whose lifeline has none belongs to nobody any more (`sweep`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from stage.names import MARK, label_of
from supervisor.held import hold, let_go

_SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = 64

PREFIX = "stages-"
LIFELINE = "lifeline"


def place() -> Path:
    """Where run directories are made: the temporary directory, unless its path is too long for a socket."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _SOCKET_PATH_LIMIT - _LONGEST_NAME:
        base = "/tmp"  # noqa: S108 (mkdtemp makes a private directory in it)
    return Path(base)


class RunDir:
    """Make a directory of mode 0700 in a place short enough for a socket's path."""

    def __init__(self) -> None:
        base = place()
        # Under another name until its lifeline is held: somebody else's sweep must not take it for a dead one.
        fresh = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{os.getpid()}-", dir=base))
        try:
            os.mkfifo(fresh / LIFELINE, 0o600)
            # For reading too, since nobody reads it yet: opening it for writing alone would fail.
            self.lifeline_fd = os.open(fresh / LIFELINE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        hold(self.lifeline_fd)
        self.path = base / fresh.name.removeprefix(".")
        fresh.rename(self.path)
        self.lifeline = self.path / LIFELINE
        self.mark = f"{MARK}={self.path}"
        """What everything that a stage starts has in its environment."""

    def address(self, name: str) -> str:
        """The endpoint of the socket `name`."""
        return f"ipc://{self.path}/{name}.sock"

    def black_box(self, stage: str, replica: int | None) -> Path:
        """The path of a stage's black box."""
        return self._file(stage, replica, "box")

    def log(self, stage: str, replica: int | None) -> Path:
        """The path of a stage's log."""
        return self._file(stage, replica, "log")

    def stacks(self, stage: str, replica: int | None) -> Path:
        """The path of a stage's stack dumps."""
        return self._file(stage, replica, "stacks")

    def _file(self, stage: str, replica: int | None, suffix: str) -> Path:
        return self.path / f"{label_of(stage, replica).replace('/', '-')}.{suffix}"

    def remove(self, *, keep_logs: bool) -> None:
        """Remove the directory, or all but the logs that explain a death, and let go of the lifeline."""
        # The lifeline is let go when its name is gone: no sweep may take what is kept for what a dead one has left.
        try:
            if not keep_logs:
                shutil.rmtree(self.path, ignore_errors=True)
                return
            # First, whatever else lies here: a sweep takes a lifeline that nobody holds for a dead supervisor's.
            self.lifeline.unlink(missing_ok=True)
            for path in self.path.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)  # an engine's
                elif path.suffix != ".log":
                    path.unlink(missing_ok=True)
        except OSError:
            pass  # somebody has been quicker
        finally:
            if let_go(self.lifeline_fd):
                os.close(self.lifeline_fd)
