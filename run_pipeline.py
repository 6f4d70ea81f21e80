"""The command `run_pipeline.py`: signal handlers first, then `supervisor.cli.command`, then the exit status.

Signals are handled from the first moment: before the handlers stand, nothing is imported that takes time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# Not imported from `typing`, which takes longer than all of the above; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Ignored by default, so that a late one does no harm.
_POKE = signal.SIGURG
# Several, since one may come, like the signal itself, just before the main thread blocks.
_POKES = 4
_POKE_INTERVAL_MS = 20
# Longer than a busy machine takes between two signals of one cause, shorter than between two keys of a person.
_ECHO_S = 0.03


class Interrupted(BaseException):
    """A signal ends what is waited for; raised only where a `Stop` was told to raise it."""


class Stop:
    """What signals leave behind: which one came first, and a count in an eventfd that a `Pipeline` watches.

    Python runs a handler only when the main thread comes back to Python code. A signal that meets the main thread just
    before it blocks, or another thread, would so be noticed much later. Hence a thread of its own hears of each signal
    through a pipe that the interpreter writes to at once, counts it, and pokes the main thread.

    One cause may send a signal twice: `timeout` signals its child and then its group, and a shell hangs up its jobs as
    the kernel does. The pipeline is therefore told of the first signal only when such an echo would have come, and each
    kind counts once till then. That loses no second request to stop: nobody has seen an effect of the first one yet.

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
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # SIGINT also where it is ignored, as a shell script sets it for what it starts with `&`.
        signal.signal(signal.SIGINT, _do_nothing)
        signal.signal(signal.SIGTERM, _do_nothing)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, _do_nothing)
        signal.signal(_POKE, self._on_poke)
        import threading  # noqa: PLC0415 (after the handlers)

        main_thread = threading.get_ident()
        threading.Thread(target=self._listen, args=(reader, main_thread), name="signals", daemon=True).start()

    def ignore(self) -> None:
        """Let no signal change the exit status any more: Python gives handlers up before its process ends."""
        for signum in _SIGNALS:
            signal.signal(signum, signal.SIG_IGN)

    def raising(self, nth: int = 1) -> _Raising:
        """While this context lasts, the `nth` signal raises `Interrupted`; at once if it has been there."""
        return _Raising(self, nth)

    def raise_at(self, nth: int | None) -> None:
        """Raise `Interrupted` from the `nth` signal on; None for never. For the main thread only."""
        self._raise_at = nth
        self._raise_if_due()

    def notice(self, signums: list[int]) -> None:
        """Count signals, and tell the pipeline."""
        self._count(signums)
        os.eventfd_write(self.fd, len(signums))

    def _notice_first(self, signums: list[int], reader: int, main_thread: int) -> None:
        """Count the first signal at once, but tell the pipeline only when its echo has come, if it has one."""
        kinds = list(dict.fromkeys(signums))
        self._count(kinds)
        signal.pthread_kill(main_thread, _POKE)
        time.sleep(_ECHO_S)
        others = [signum for signum in dict.fromkeys(_read_signals(reader)) if signum not in kinds]
        self._count(others)
        os.eventfd_write(self.fd, len(kinds) + len(others))

    def _count(self, signums: list[int]) -> None:
        if signums:
            self.signum = self.signum or signums[0]
            self.count += len(signums)

    def _listen(self, reader: int, main_thread: int) -> None:
        """Hear of signals; the body of the thread."""
        # What is sent to the process shall interrupt the main thread, not this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        pokes_left = 0
        while True:
            if poller.poll(_POKE_INTERVAL_MS if pokes_left else None):
                signums = _read_signals(reader)
                if not signums:
                    continue
                if self.count:
                    self.notice(signums)
                else:
                    self._notice_first(signums, reader, main_thread)
                pokes_left = _POKES
            pokes_left -= 1
            signal.pthread_kill(main_thread, _POKE)

    def _on_poke(self, _signum: int, _frame: FrameType | None) -> None:
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._raise_at is not None and self.count >= self._raise_at:
            # Once: the clean-up that follows must not be cut off.
            self._raise_at = None
            raise Interrupted


def _read_signals(reader: int) -> list[int]:
    try:
        return [number for number in os.read(reader, 4096) if number in _SIGNALS]
    except BlockingIOError:
        return []


def _do_nothing(_signum: int, _frame: FrameType | None) -> None:
    """Handle a signal of which the thread `signals` hears."""


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
        from supervisor.cli.command import execute  # noqa: PLC0415 (after the handlers)

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
            # It gets the lowest free number, which is this one. Standard output stays unwritable: results that nobody
            # can get are an error.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if fd == 2 else os.O_RDONLY), True)


if __name__ == "__main__":
    sys.exit(main())
