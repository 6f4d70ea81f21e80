"""The black box: a small mmap'd file that a stage writes and the supervisor reads after its death.

What is stored here survives SIGKILL and `os._exit`: the pages belong to the file, not to the process. Only the stage
writes; each cell is one aligned 64-bit store with one writing thread, and the length of the error is written after its
text.
"""

from __future__ import annotations

import importlib
import mmap
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stage.errors_text import safe_str, traceback_text
from stage.protocol import ErrorRecord

if TYPE_CHECKING:
    from types import TracebackType

_traceback_of = BaseException.__dict__["__traceback__"].__get__
_module_of, _qualname_of = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))

PHASES = ("spawned", "hello", "import", "init", "io", "ready", "stopping")

CALLS = ("", "add", "abort", "step", "utility")

PHASE, STEPS, SIGNAL, ERROR_SIZE, ERROR_AT, CALL, CALL_SINCE, IN_HAND, HANDLED = range(9)
"""The cells. Times are nanoseconds of the monotonic clock, which all processes of a machine share; 0 for never."""

_CELLS_SIZE = 8 * (HANDLED + 1)
_HEADER_SIZE = 128
_SIZE = 256 * 1024
_HERE = Path(__file__).parent
_OURS = (
    *(str(_HERE / f"{name}.py") for name in ("busy_loop", "engine_path", "handshake", "process", "recorded_engine")),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)


class BlackBoxRecord(msgspec.Struct, frozen=True):
    """What a black box tells.

    Args:
        phase: one of `PHASES`.
        steps: number of steps begun.
        signal: number of the SIGTERM or SIGINT that the stage got, 0 if none.
        error: the first error, if there was one.
        error_at: when it was recorded.
        call: the engine's method that runs, or "" between two calls.
        call_since: when it was called.
        in_hand: requests that were added and have not ended.
        handled: messages from the supervisor that have reached the engine, this call included; counted only for a
            stage with a `step_timeout_s`, as are calls other than `step`.
    """

    phase: str
    steps: int
    signal: int
    error: ErrorRecord | None
    error_at: int = 0
    call: str = ""
    call_since: int = 0
    in_hand: int = 0
    handled: int = 0


def create_black_box(path: Path) -> None:
    """Create the file with all its blocks allocated, so that a full disk shows here and not as SIGBUS in a stage."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _SIZE)
    finally:
        os.close(fd)


def read_black_box(path: Path) -> BlackBoxRecord:
    """Read a box, also while its stage is writing."""
    content = path.read_bytes()
    cells = memoryview(content)[:_CELLS_SIZE].cast("q")
    error = None
    if size := cells[ERROR_SIZE]:
        error = msgspec.msgpack.decode(content[_HEADER_SIZE : _HEADER_SIZE + size], type=ErrorRecord)
    return BlackBoxRecord(
        phase=PHASES[cells[PHASE]],
        steps=cells[STEPS],
        signal=cells[SIGNAL],
        error=error,
        error_at=cells[ERROR_AT],
        call=CALLS[call_of(cells)],
        call_since=cells[CALL_SINCE],
        in_hand=cells[IN_HAND],
        handled=cells[HANDLED],
    )


def call_of(cells: memoryview) -> int:
    """The number of the call that is under way; none if an engine's native code has written anything there."""
    call: int = cells[CALL]
    return call if 0 <= call < len(CALLS) else 0


def view_cells(path: Path) -> memoryview:
    """Map the cells of a box, to be read while its stage is writing; `release` the view at the end."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), _CELLS_SIZE, access=mmap.ACCESS_READ)).cast("q")


class BlackBox:
    """The stage's side of its black box.

    Args:
        path: the file, made by `create_black_box`.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._first: ErrorRecord | None = None
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.cells = memoryview(self._map)[:_CELLS_SIZE].cast("q")
        """Written by the thread that each belongs to; the engine's cells by `RecordedEngine`."""

    @property
    def phase(self) -> str:
        """The phase that was entered last."""
        return PHASES[self.cells[PHASE]]

    @property
    def has_error(self) -> bool:
        """True once an error has been recorded."""
        return bool(self.cells[ERROR_SIZE])

    def enter(self, phase: str) -> None:
        """Record that a phase begins."""
        self.cells[PHASE] = PHASES.index(phase)

    def got_signal(self, signum: int) -> None:
        """Record the signal that asked the stage to stop."""
        self.cells[SIGNAL] = signum

    def record_error(self, cause: str, exc: BaseException) -> ErrorRecord:
        """Record `exc` unless an earlier error stands here, and return what does: the first failure is the cause."""
        kind = type(exc)
        # Past the exception's own class, which may let nothing be set (a frozen dataclass), or raise.
        BaseException.with_traceback(exc, _from_engine(_traceback_of(exc)))
        record = ErrorRecord(cause, self.phase, _qualified_name(kind), safe_str(exc), traceback_text(exc))
        with self._lock:  # the busy loop and an IO thread may fail together
            if self._first is None:
                self._first = record
                text = msgspec.msgpack.encode(record)
                self._map[_HEADER_SIZE : _HEADER_SIZE + len(text)] = text
                self.cells[ERROR_AT] = time.monotonic_ns()
                self.cells[ERROR_SIZE] = len(text)
            return self._first


def _from_engine(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of ours by which the engine was called or imported: they lead away from the fault."""
    inner, last = traceback, ""
    while inner is not None and (last := inner.tb_frame.f_code.co_filename).startswith(_OURS):
        inner = inner.tb_next
    # What ends in a frame of the importer itself is a module that is not there; what ends in ours, a fault of ours.
    return inner if inner is not None or last.startswith("<frozen importlib") else traceback


def _qualified_name(kind: type) -> str:
    # Past a metaclass with attributes of its own.
    name = f"{safe_str(_module_of(kind))}.{_qualname_of(kind)}".removeprefix("builtins.")
    return name.encode("utf-8", "replace").decode()[:1000]
