"""Engines that make trouble in ways of their own: odd exceptions, much output, forks, and ends that take for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from engines_for_tests import Echo, FaultEngine, Gate, announce

from stage import Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class HostileError(Exception):
    """Shows nothing of itself."""

    def __repr__(self) -> str:
        raise SystemExit("no repr")

    def __str__(self) -> str:
        raise KeyboardInterrupt("no str")


class UnpicklableError(Exception):
    """Holds what cannot be pickled, and cannot be made again from its `args`."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.lock, self.code, self.call = threading.Lock(), code, lambda: code


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nothing be set, its traceback included."""

    code: int


class OpaqueError(Exception):
    """Cannot be looked into."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class _NamelessMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class NamelessError(Exception, metaclass=_NamelessMeta):
    """Its class does not tell its name."""


def _chain() -> BaseException:
    """Two thousand errors, each of them the cause of the next."""
    error: BaseException = KeyError("the very first")
    for number in range(2000):
        following = ValueError(f"number {number} {'x' * 100}")
        following.__cause__ = error
        error = following
    return error


def _ring() -> BaseException:
    first, second = ValueError("first of the ring"), ValueError("second of the ring")
    first.__cause__, second.__cause__ = second, first
    return first


def _hostile_cause() -> BaseException:
    error = ValueError("visible")
    error.__cause__ = HostileError()
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "hostile": HostileError,
    "unpicklable": lambda: UnpicklableError("cannot travel", code=3),
    "frozen": lambda: FrozenError(3),
    "opaque": OpaqueError,
    "nameless": NamelessError,
    "chain": _chain,
    "ring": _ring,
    "hostile cause": _hostile_cause,
    "long": lambda: ValueError("the head " + "x" * 10_000_000 + " the tail"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "group": lambda: ExceptionGroup("several", [ValueError("one"), HostileError(), KeyError("two")]),
}


class Raiser(Echo):
    """Raise one of `ERRORS`.

    Args:
        error: which.
        point: `init` or `step`; `refuse` raises a RequestError of that text from `add`.
    """

    def __init__(self, error: str, point: str) -> None:
        super().__init__()
        self.error, self.point = error, point
        self._raise_at("init")

    def add(self, request_id: str, data: Any) -> None:
        if self.point == "refuse":
            raise RequestError(str(ERRORS[self.error]()))
        super().add(request_id, data)

    def step(self) -> Iterable[Any]:
        self._raise_at("step")
        return super().step()

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "raise":
            error = ERRORS[self.error]()
            raise error
        return super().utility(name, args)

    def _raise_at(self, point: str) -> None:
        if point == self.point:
            error = ERRORS[self.error]()
            raise error


class Leaver(Echo):
    """Leave at a step by `sys.exit` with this status, as a script does."""

    def __init__(self, status: Any) -> None:
        super().__init__()
        self.status = status

    def step(self) -> NoReturn:
        sys.exit(self.status)


def _fill_standard_output() -> None:
    sys.stdout.write("x" * 20_000_000)
    sys.stdout.flush()


def _write_junk() -> None:
    os.write(1, bytes(range(256)) * 1000 + b"\nthe end\n")


def _print_from_a_child() -> None:
    subprocess.run(["sh", "-c", "echo to output; echo to errors >&2"], check=True)  # noqa: S607


def _print_progress() -> None:
    sys.stderr.write("".join(f"\rprogress {number}" for number in range(1000)) + "\n")


def _close_standard_output() -> None:
    sys.stderr.write("closing\n")
    sys.stdout.close()
    os.close(1)


def _print_surrogates() -> None:
    sys.stdout.write("a\ud800b\n")


PRINTS: dict[str, Callable[[], None]] = {
    "megabytes without a newline": _fill_standard_output,
    "junk": _write_junk,
    "a child's": _print_from_a_child,
    "progress": _print_progress,
    "closed": _close_standard_output,
    "surrogates": _print_surrogates,
}


class Printer(Echo):
    """Print what the utility call names, a key of `PRINTS`."""

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name in PRINTS:
            return PRINTS[name]()
        return super().utility(name, args)


class Forker(Gate):
    """Fork or start what goes on living, by a utility call, and answer its pid."""

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        match name:
            case "os.fork":
                return _fork()
            case "multiprocessing":
                child = multiprocessing.get_context("fork").Process(target=_pause, daemon=True)
                child.start()
                return child.pid
            case "Popen":
                return subprocess.Popen(["sleep", "1000"], close_fds=False).pid  # noqa: S607
            case "posix_spawn":
                return os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
        return super().utility(name, args)


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        _pause()
    return pid


def _pause() -> NoReturn:
    while True:
        signal.pause()


def _write_for_ever() -> NoReturn:
    while True:
        sys.stdout.write("x" * 100_000)


def _fork_for_ever() -> NoReturn:
    while True:
        if os.fork() == 0:
            # Each lives on; not a bomb: the parent alone forks, and not faster than this.
            _pause()
        threading.Event().wait(0.005)


def _answer_sigterm_by_forking() -> None:
    threading.Thread(target=_fork_for_ever, daemon=True).start()


class Lingerer(FaultEngine):
    """Does not end when it is asked to, in the way that `how` says; tells `shutdown` when it is asked."""

    def __init__(self, how: str, announce: str | None = None) -> None:
        super().__init__(announce=announce)
        self.how = how
        if how == "thread":
            threading.Thread(target=threading.Event().wait).start()
        elif how == "exit hook":
            Finalize(None, threading.Event().wait, exitpriority=10)
        elif how == "forks":
            _answer_sigterm_by_forking()
        elif how == "ignores":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def shutdown(self) -> None:
        super().shutdown()
        if self.how == "writes":
            _write_for_ever()
        if self.how == "forks":
            threading.Event().wait()


class FatalLingerer(Lingerer):
    """As `Lingerer`, but it fails at its first step."""

    def step(self) -> Iterable[Any]:
        raise ValueError("a step too far")


class BrokenLingerer(Lingerer):
    """As `Lingerer`, but it cannot be built: it fails once it can read a byte from `trigger`."""

    def __init__(self, how: str, announce_to: str, trigger: str) -> None:
        super().__init__(how)
        announce(announce_to, "building")
        with Path(trigger).open("rb", buffering=0) as file:
            file.read(1)
        raise ValueError("it cannot be built")


class Talker(Echo):
    """Answer a number with so many outputs at once, as soon as it may.

    Args:
        announce: the FIFO to tell when a step has begun.
        trigger: a FIFO; the step goes on when somebody has opened it for writing.
    """

    def __init__(self, announce: str, trigger: str) -> None:
        super().__init__()
        self.announce_to, self.trigger = announce, trigger

    def step(self) -> Iterable[Any]:
        announce(self.announce_to, "step")
        Path(self.trigger).read_bytes()
        ((request_id, total),) = self.todo.items()
        self.todo.clear()
        return [Output(request_id, number, number == total - 1) for number in range(total)]


class Cleaner(Echo):
    """Is never built, and cleans up after itself when that is cut off: tells `cleaning`, waits, tells `cleaned`."""

    def __init__(self, announce_to: str, trigger: str) -> None:
        super().__init__()
        try:
            announce(announce_to, f"building {os.getpid()}")
            threading.Event().wait()
        finally:
            announce(announce_to, "cleaning")
            Path(trigger).read_bytes()
            announce(announce_to, "cleaned")
