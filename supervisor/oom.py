"""Evidence of the kernel's out-of-memory killer: the counter of a process's memory cgroup, v2 or v1."""

from __future__ import annotations

from pathlib import Path

_V2 = ("", "sys/fs/cgroup", "memory.events")
_V1 = ("memory", "sys/fs/cgroup/memory", "memory.oom_control")


class OomCounter:
    """Remember how many processes of its cgroup the kernel had killed when a process began.

    Args:
        pid: the process.
        root: where `/proc` and `/sys` are.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._file = _counter_file(pid, root)
        self._before = self._read()

    def kills(self) -> int | None:
        """How many it has killed since; None if nothing tells."""
        now = self._read()
        return None if now is None or self._before is None else now - self._before

    def _read(self) -> int | None:
        if self._file is None:
            return None
        try:
            for line in self._file.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            pass
        return None


def _counter_file(pid: int, root: Path) -> Path | None:
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = {
        controller: path for _, names, path in (line.split(":", 2) for line in lines) for controller in names.split(",")
    }
    for controller, place, name in (_V2, _V1):
        if controller in paths:
            # In a container the path may be the host's, and the mount the container's own.
            for directory in (root / place / paths[controller].lstrip("/"), root / place):
                if (directory / name).exists():
                    return directory / name
    return None
