"""The guardian's program: it outlives the supervisor for a moment, and ends what that has left behind.

A supervisor that is killed runs no code any more; somebody else has to look for what its stages have started. This file
is run by its path, in an interpreter without site-packages: it may import nothing but a few modules of the standard
library. Its other half is `guardian`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 0.3
"""How long orphaned stages have for an orderly end: an engine's `shutdown()` runs in this time or not at all."""

KILL_S = 0.5
DISMISSED = b"."


def kill_marked(mark: str, timeout_s: float) -> list[int]:
    """Kill every process that bears a mark, and what those have started meanwhile.

    Args:
        mark: `STAGE_RUN_DIR=` and the path of a run directory.
        timeout_s: how long to go on finding new ones, and to wait for their ends.

    Returns:
        The pids that are still there.
    """
    deadline = time.monotonic() + timeout_s
    while found := _open_marked(os.fsencode(mark)):
        try:
            for pidfd in found:
                _send(pidfd, signal.SIGKILL)
            alive = wait_ends(found, deadline)
        finally:
            for pidfd in found:
                os.close(pidfd)
        if time.monotonic() >= deadline:
            return [found[pidfd] for pidfd in alive]
    return []


def wait_ends(pidfds: dict[int, int], deadline: float) -> set[int]:
    """Wait for the ends of processes; return the pidfds of those that are there at the deadline."""
    alive = set(pidfds)
    poller = select.poll()
    for pidfd in alive:
        poller.register(pidfd, select.POLLIN)
    while alive and (left_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(left_s * 1000 + 1):
            poller.unregister(pidfd)
            alive.discard(pidfd)
    return alive


def _open_marked(mark: bytes) -> dict[int, int]:
    """Find the processes that bear the mark: pid by pidfd."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes longer to import than all of this)
        if name.isdigit() and int(name) != os.getpid():
            try:
                if not _bears(name, mark):
                    continue
                pidfd = os.pidfd_open(int(name))
            except OSError:
                continue  # gone, or none of this user's
            if _still_bears(name, mark):  # not another process by now, with the same number
                found[pidfd] = int(name)
            else:
                os.close(pidfd)
    return found


def _still_bears(pid: str, mark: bytes) -> bool:
    try:
        return _bears(pid, mark)
    except OSError:
        return False


def _bears(pid: str, mark: bytes) -> bool:
    if mark in _read(f"/proc/{pid}/environ").split(b"\0"):
        return True
    # What was forked, and runs no other program, shows the environment that its stage began with, as the kernel has
    # it. But it has the stage's black box in its memory, for writing: the supervisor and its copies read it only.
    if os.readlink(f"/proc/{pid}/exe") != os.readlink("/proc/self/exe"):  # noqa: PTH115 (see above)
        return False
    directory = mark.partition(b"=")[2] + b"/"
    return any(b" rw-s " in line and directory in line for line in _read(f"/proc/{pid}/maps").splitlines())


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 (see above)
        return file.read()


def _send(pidfd: int, signum: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        signal.pidfd_send_signal(pidfd, signum)


def _close_ended(pidfds: dict[int, int]) -> None:
    """Let go of those who have ended: a stage that grows and shrinks for months has many."""
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    for pidfd, _ in poller.poll(0):
        os.close(pidfd)
        del pidfds[pidfd]


def main(mark: str) -> None:
    """Wait for the end of the supervisor, which holds the other end of standard input, and do its work.

    What comes in are the stages' pids, a line each, and `DISMISSED` at an orderly end. We have inherited the lifeline,
    so the kernel ends what is left of the stages when we are done, and not before.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123 (see above)
        comm.write("stage-guardian")
    stages: dict[int, int] = {}
    heard = b""
    while new := os.read(0, 4096):
        *lines, heard = (heard + new).split(b"\n")
        if DISMISSED in lines:
            return
        _close_ended(stages)
        for line in lines:
            with suppress(ProcessLookupError):
                stages[os.pidfd_open(int(line))] = int(line)
    for pidfd in stages:
        _send(pidfd, signal.SIGTERM)
    wait_ends(stages, time.monotonic() + GRACE_S)
    kill_marked(mark, KILL_S)


if __name__ == "__main__":
    main(sys.argv[1])
