"""SIGTERM and SIGINT of a stage process: both ask it to end in order.

Until the busy loop stands, a signal ends the boot by an exception, since an import may take a minute; from then on it
only asks the loop.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from stage.handshake import BootStopped

if TYPE_CHECKING:
    from types import FrameType

    from stage.black_box import BlackBox
    from stage.busy_loop import BusyLoop

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Install the handlers; the signals were blocked by the supervisor since before the process began.

    Args:
        box: records which signal came.
    """

    def __init__(self, box: BlackBox) -> None:
        self._box = box
        self._loop: BusyLoop | None = None
        self._asked = False
        for signum in SIGNALS:
            signal.signal(signum, self._handle)

    def unblock(self) -> None:
        """Let signals in, also those that came before."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def hand_over(self, loop: BusyLoop) -> None:
        """From now on a signal asks `loop` to end."""
        self._loop = loop

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self._box.got_signal(signum)
        if self._loop is not None:
            self._loop.request_shutdown()
        elif not self._asked:
            # Once only: a second one must not cut the clean-up off.
            self._asked = True
            raise BootStopped(0)
