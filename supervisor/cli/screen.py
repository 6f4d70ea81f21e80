"""Owns standard error: logs and messages go through here, so that none lands in the middle of the live line.

The live line is the last line of a terminal. It is drawn again on a thread that sleeps until something has changed,
and at most ten times a second.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from supervisor.cli.output import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STANDARD_ERROR = 2
INTERVAL_S = 0.1
_FALLBACK_WIDTH = 80
_ERASE = "\r\x1b[2K"


class Screen:
    """Write text to standard error; a context manager that takes the live line away at the end.

    Args:
        live_line: makes the live line, of so many characters at most; None for no live line.
    """

    def __init__(self, live_line: Callable[[int], str] | None) -> None:
        self._live_line = live_line
        # Reentrant, for what is logged while `aside` holds it.
        self._changed = threading.Condition(threading.RLock())
        self._is_dirty = False
        self._is_shown = False
        self._is_over = False
        self._painter = threading.Thread(target=self._paint, name="live-line", daemon=True)

    def __enter__(self) -> Self:
        if self._live_line is not None:
            self._painter.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._painter.ident is not None:
            self._painter.join()
        with self._changed:
            self._erase()

    def write(self, text: str) -> None:
        """Write whole lines."""
        with self.aside():
            self._put(text)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keep the live line away while somebody writes to the same terminal."""
        with self._changed:
            self._erase()
            try:
                yield
            finally:
                self.change()

    def change(self) -> None:
        """Let the live line be drawn again, soon."""
        if self._live_line is not None and not self._is_dirty:
            with self._changed:
                self._is_dirty = True
                self._changed.notify()

    def _paint(self) -> None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._is_dirty or self._is_over)
                if self._is_over:
                    return
                self._draw()
                self._changed.wait_for(lambda: self._is_over, INTERVAL_S)

    def _draw(self) -> None:
        self._is_dirty = False
        assert self._live_line is not None  # noqa: S101 (there is no painter otherwise)
        # One column less: a terminal may wrap as soon as the last one is filled.
        self._put(_ERASE + self._live_line(_width() - 1))
        self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown:
            self._put(_ERASE)
            self._is_shown = False

    def _put(self, text: str) -> None:
        # Nobody is left to tell when standard error is gone.
        with suppress(OSError):
            write_all(STANDARD_ERROR, text.encode("utf-8", "backslashreplace"))


def _width() -> int:
    try:
        return os.get_terminal_size(STANDARD_ERROR).columns or _FALLBACK_WIDTH
    except OSError:
        return _FALLBACK_WIDTH
