"""Names that a person sees in `ps -L`, `top` and `py-spy`, and the one by which what a stage has started is found."""

from __future__ import annotations

import threading
from pathlib import Path

MARK = "STAGE_RUN_DIR"
"""The variable that each stage sets, to the run directory's path, for all that it starts."""

_KERNEL_LIMIT = 15


def fit_name(label: str, suffix: str) -> str:
    """Shorten `label` so that it and `suffix` fit into the kernel's 15 characters."""
    return label[: _KERNEL_LIMIT - len(suffix)] + suffix


def name_thread(name: str) -> None:
    """Give the calling thread a name for the kernel (`threading.Thread(name=)` sets Python's only)."""
    try:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(name.encode()[:_KERNEL_LIMIT])
    except OSError:
        return  # a name is a courtesy: without /proc everything else still works


def label_of(stage: str, replica: int | None) -> str:
    """`stage/replica`, or `stage/coordinator`: the routing id of a process, and how it is called."""
    return f"{stage}/{'coordinator' if replica is None else replica}"
