"""SIGTERM and SIGINT of a stage process: both ask it to end in order.

Until the busy loop stands, a signal ends the boot by an exception, since an import may take a minute; from then on it
only asks the loop. Python runs a handler when the main thread next comes back to the interpreter: a signal that
arrives just before that thread begins to wait for a message would be handled after the wait, perhaps never. So a
thread of its own reads the wakeup fd, into which every signal is written as it arrives, and passes it on.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Protocol

from stage.handshake import BootStopped

if TYPE_CHECKING:
    from types import FrameType

    from stage.black_box import BlackBox

SIGNALS = (signal.SIGTERM, signal.SIGINT)
INSIST_S = 0.02


class Stoppable(Protocol):
    """What can be asked to end, from any thread and from a signal handler."""

    def request_shutdown(self) -> None:
        """End soon."""


class StopSignals:
    """Install the handlers; the signals were blocked by the supervisor since before the process began.

    Args:
        box: records which signal came.
    """

    def __init__(self, box: BlackBox) -> None:
        self._box = box
        self._loop: Stoppable | None = None
        self._asked = False
        for signum in SIGNALS:
            signal.signal(signum, self._handle)
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        threading.Thread(target=self._pass_on, args=(read_fd,), name="stop-signals", daemon=True).start()
        self._mask: set[int] = set()
        os.register_at_fork(before=self._block, after_in_parent=self._restore, after_in_child=self._forget)

    def unblock(self) -> None:
        """Let signals in, also those that came before."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def ignore(self) -> None:
        """Heed no signal any more."""
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)

    def check(self) -> None:
        """See that nobody has asked us to stop, which the engine may have swallowed while it was built.

        Raises:
            BootStopped: somebody has.
        """
        if self._asked:
            raise BootStopped(0)

    def hand_over(self, loop: Stoppable) -> None:
        """From now on a signal asks `loop` to end, also one whose `BootStopped` got lost, in a `__del__` say."""
        self._loop = loop
        if self._asked:
            loop.request_shutdown()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self._box.got_signal(signum)
        if self._loop is not None:
            self._loop.request_shutdown()
        elif not self._asked:
            # Once only: a second one must not cut the clean-up off.
            self._asked = True
            raise BootStopped(0)

    def _pass_on(self, wakeup_fd: int) -> None:
        """See that a signal is heeded; the body of a thread.

        Python runs a handler when the main thread comes back to Python code. A signal that meets it just before it
        blocks would be noticed with the next message only.
        """
        while True:
            signum = os.read(wakeup_fd, 1)[0]
            if signum not in SIGNALS:
                continue  # an engine may have signals of its own
            while self._loop is None and not self._asked:
                threading.Event().wait(INSIST_S)
                signal.pthread_kill(threading.main_thread().ident or 0, signum)
            if self._loop is not None:
                self._loop.request_shutdown()

    def _block(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _forget(self) -> None:
        """Undo it in a fork copy: what an engine forks must end by a signal, and not tell this stage of it."""
        signal.set_wakeup_fd(-1)
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        self._restore()
