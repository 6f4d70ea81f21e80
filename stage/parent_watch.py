"""The watch on the supervisor: a daemon thread that ends this stage and its children when the supervisor is gone.

A pidfd tells, not `getppid() == 1` (an orphan may be re-parented to a subreaper) and not PR_SET_PDEATHSIG (which
follows the thread that spawned us, not its process).
"""

from __future__ import annotations

import os
import select
import signal
import threading

ORDERLY_S = 0.5
"""How long an orphaned stage has for an orderly end: its engine's `shutdown()` runs in this time or not at all."""


def watch_parent(parent_pid: int) -> None:
    """Start to watch the process `parent_pid`; the calling process must lead its own group."""
    try:
        pidfd = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        pidfd = -1
    # Looked up again: the pid may have been reused between the parent's death and pidfd_open.
    if pidfd < 0 or os.getppid() != parent_pid:
        os.killpg(os.getpid(), signal.SIGKILL)
    threading.Thread(target=_wait_for_end, args=(pidfd,), name="parent-watch", daemon=True).start()


def _wait_for_end(pidfd: int) -> None:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(ORDERLY_S)
    os.killpg(os.getpid(), signal.SIGKILL)
