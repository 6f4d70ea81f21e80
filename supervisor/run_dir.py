"""The run directory: private to one supervisor, it holds the sockets, and each stage's black box and log."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = 64


class RunDir:
    """Make a directory of mode 0700 in a place short enough for a socket's path."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _SOCKET_PATH_LIMIT - _LONGEST_NAME:
            base = "/tmp"  # noqa: S108 (mkdtemp makes a private directory in it)
        self.path = Path(tempfile.mkdtemp(prefix=f"stages-{os.getpid()}-", dir=base))

    def address(self, name: str) -> str:
        """The endpoint of the socket `name`."""
        return f"ipc://{self.path}/{name}.sock"

    def black_box(self, stage: str, replica: int) -> Path:
        """The path of a stage's black box."""
        return self.path / f"{stage}-{replica}.box"

    def log(self, stage: str, replica: int) -> Path:
        """The path of a stage's log."""
        return self.path / f"{stage}-{replica}.log"

    def remove(self, *, keep_logs: bool) -> None:
        """Remove the directory, or all but the logs that explain a death."""
        if not keep_logs:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with suppress(OSError):  # somebody has been quicker
            for path in self.path.iterdir():
                if path.suffix != ".log":
                    path.unlink(missing_ok=True)
