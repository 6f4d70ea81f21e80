"""Where results go: writes to standard output or a file, and notices that its reader has gone.

A write waits for a slow reader; the second signal ends that wait, so a reader that is stuck cannot hold us.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

STANDARD_OUTPUT = "-"
_STANDARD_OUTPUT_FD = 1
# What a pipe takes without blocking once it is writable (POSIX: PIPE_BUF).
_PIECE_BYTES = 4096


class OutputError(Exception):
    """Results cannot be written; the text says where and why."""


class ReaderGoneError(Exception):
    """Nobody reads the results any more."""


class Stop(Protocol):
    """What signals leave behind (see `run_pipeline.Stop`)."""

    fd: int
    count: int
    signum: int | None

    def raising(self, nth: int = 1) -> AbstractContextManager[None]:
        """While this context lasts, the `nth` signal raises."""


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also to a pipe that somebody has made non-blocking."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            _is_writable(fd, None)


class Output:
    """Write lines to a file descriptor; a context manager that closes it, unless it is standard output.

    Args:
        fd: where to.
        name: what errors call it.
        stop: its second signal ends a wait for the reader.
    """

    def __init__(self, fd: int, name: str, stop: Stop) -> None:
        self._fd = fd
        self._name = name
        self._stop = stop
        mode = os.fstat(fd).st_mode
        self._is_file = stat.S_ISREG(mode)
        self._has_reader = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self.reader_gone = False
        self.is_terminal = os.isatty(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd != _STANDARD_OUTPUT_FD:
            with suppress(OSError):
                os.close(self._fd)

    def begin(self) -> None:
        """Give up what a file that `--output` names has held; call it when there is something to take its place.

        Raises:
            OutputError: it cannot be emptied.
        """
        if not self._is_file or self._fd == _STANDARD_OUTPUT_FD:  # what `>>` has opened is not ours to empty
            return
        try:
            os.ftruncate(self._fd, 0)
        except OSError as exc:
            raise OutputError(f"cannot empty {self._name}: {exc.strerror}") from exc

    def write(self, line: bytes) -> None:
        """Write a line at once.

        Raises:
            ReaderGoneError: nobody reads it.
            OutputError: it cannot be written.
        """
        try:
            if self._is_file:
                write_all(self._fd, line)
            else:
                self._write_pieces(line)
        except (BrokenPipeError, ConnectionResetError) as exc:
            self.reader_gone = True
            raise ReaderGoneError from exc
        except OSError as exc:
            raise OutputError(f"cannot write results to {self._name}: {exc.strerror}") from exc

    def _write_pieces(self, line: bytes) -> None:
        for start in range(0, len(line), _PIECE_BYTES):
            if not _is_writable(self._fd, 0):
                with self._stop.raising(nth=2):
                    _is_writable(self._fd, None)
            write_all(self._fd, line[start : start + _PIECE_BYTES])

    @contextmanager
    def watching_reader(self) -> Iterator[None]:
        """While this lasts, ask to stop as soon as the reader has gone, also while nothing is written."""
        if not self._has_reader:
            yield
            return
        end_fd = os.eventfd(0, os.EFD_CLOEXEC)
        watcher = threading.Thread(target=self._watch_reader, args=(end_fd,), name="reader-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            os.eventfd_write(end_fd, 1)
            watcher.join()
            os.close(end_fd)

    def _watch_reader(self, end_fd: int) -> None:
        poller = select.poll()
        poller.register(end_fd, select.POLLIN)
        poller.register(self._fd, 0)  # POLLERR and POLLHUP are always told
        if self._fd in dict(poller.poll()):
            self.reader_gone = True
            os.eventfd_write(self._stop.fd, 1)


def open_output(argument: str, stop: Stop) -> Output:
    """Open the file that `--output` names, and leave in it what it holds; `-` is standard output.

    Raises:
        OutputError: it cannot be opened.
    """
    if argument == STANDARD_OUTPUT:
        return Output(_STANDARD_OUTPUT_FD, "standard output", stop)
    try:
        with stop.raising():  # the opening of a FIFO waits for a reader
            fd = os.open(argument, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise OutputError(f"--output {argument!r}: cannot be written ({reason})") from exc
    return Output(fd, f"--output {argument!r}", stop)


def _is_writable(fd: int, timeout_ms: int | None) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(timeout_ms))
