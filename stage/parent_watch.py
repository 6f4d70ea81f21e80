"""The watch on the supervisor, kept by the kernel: when the supervisor is gone, this process and its group are killed.

The lifeline is a pipe whose write end only the supervisor holds. When its last writer is gone, the kernel itself sends
SIGKILL to the group that owns the read end. That needs no thread and no interpreter lock, and reaches a process that
is stopped. It follows the supervisor's process: not the thread that spawned us, as PR_SET_PDEATHSIG does, nor the
number of our parent, since an orphan may be re-parented to a subreaper.
"""

from __future__ import annotations

import fcntl
import os
import signal


def die_with(lifeline: str) -> None:
    """Die, with all of the group that the calling process must lead, when the last writer of a pipe is gone.

    Args:
        lifeline: path of the pipe, a FIFO perhaps, or `/proc/self/fd/N`. It is opened anew, since owner and signal
            belong to an open file, which others may share.
    """
    try:
        fd = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # removed by a supervisor that ended meanwhile
        _die()
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    try:
        gone = not os.read(fd, 1)
    except BlockingIOError:
        gone = False
    if gone:  # before we asked to be told
        _die()


def _die() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)
