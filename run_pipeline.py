"""The command `run_pipeline.py`: signal handlers first, then `supervisor.command`, then the exit status.

Signals are handled from the first moment: before the handlers stand, nothing is imported that takes time.
"""

from __future__ import annotations

import os
import signal
import sys

# Not imported from `typing`, which takes longer than all of the above; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


class Interrupted(BaseException):
    """A signal ends what is waited for; raised only where a `Stop` was told to raise it."""


class Stop:
    """What signals leave behind: which one came first, and a count in an eventfd that a `Pipeline` watches.

    Attributes:
        fd: the eventfd.
        count: signals so far.
        signum: the first one, or None.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.count = 0
        self.signum: int | None = None
        self._raise_at: int | None = None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM, and SIGHUP unless `nohup` has made us ignore it."""
        # SIGINT also where it is ignored, as a shell script sets it for what it starts with `&`.
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._handle)

    def ignore(self) -> None:
        """Let no signal change the exit status any more: Python gives handlers up before its process ends."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)

    def raising(self, nth: int = 1) -> _Raising:
        """While this context lasts, the `nth` signal raises `Interrupted`; at once if it has been there."""
        return _Raising(self, nth)

    def raise_at(self, nth: int | None) -> None:
        """Raise `Interrupted` from the `nth` signal on; None for never."""
        self._raise_at = nth
        self._raise_if_due()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signum = self.signum or signum
        os.eventfd_write(self.fd, 1)
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._raise_at is not None and self.count >= self._raise_at:
            # Once: the clean-up that follows must not be cut off.
            self._raise_at = None
            raise Interrupted


class _Raising:
    def __init__(self, stop: Stop, nth: int) -> None:
        self._stop = stop
        self._nth = nth

    def __enter__(self) -> None:
        self._stop.raise_at(self._nth)

    def __exit__(self, *_: object) -> None:
        self._stop.raise_at(None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: its arguments; those of the process if None.

    Returns:
        The exit status: 0 every request finished; 1 some request failed, the stages lived; 2 bad usage, config or
        input; 3 a stage died or did not start; 128+n ended by signal n; 141 the reader of standard output has gone.
    """
    _open_missing_streams()
    stop = Stop()
    stop.install()
    try:
        from supervisor.command import execute  # noqa: PLC0415 (after the handlers)

        status = execute(argv, stop)
    except Interrupted:
        status = 128 + (stop.signum or 0)
    stop.ignore()
    return status


def _open_missing_streams() -> None:
    """Let no other file take the place of a standard stream that was closed when we started."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is this one


if __name__ == "__main__":
    sys.exit(main())
