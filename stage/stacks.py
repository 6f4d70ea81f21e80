"""Stack dumps of a process that does not answer: a signal lets every thread's stack be written to a file.

The handler is C code that needs no interpreter lock, so it works while the lock is held by a call that never returns.
"""

from __future__ import annotations

import faulthandler
import os
import signal

# A real-time signal, since engines may have uses of their own for SIGUSR1 and SIGUSR2.
STACKS_SIGNAL = signal.SIGRTMIN + 7


def offer_stacks(path: str) -> None:
    """Let `STACKS_SIGNAL` append the stacks of all threads of this process to the file `path`."""
    # The descriptor stays open for as long as the process lives.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(STACKS_SIGNAL, fd, all_threads=True, chain=False)
