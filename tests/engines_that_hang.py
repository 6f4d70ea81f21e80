"""Engines that get stuck, and engines whose helpers leave their process group, in every way that matters.

Each action that is added here is one of `FaultEngine`'s.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines_for_tests import ACTIONS, Echo, FaultEngine, Gate, Split, Unsendable, announce

from stage import Output

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FaultEngine", "Gate", "Unsendable"]


def spin_in_python(_engine: FaultEngine) -> None:
    while True:
        pass


def match_for_ever(_engine: FaultEngine) -> None:
    """Hold the interpreter lock in C, at full speed."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleep_with_the_lock(_engine: FaultEngine) -> None:
    """Hold the interpreter lock in C, asleep: functions of a PyDLL do not let go of it."""
    libc = ctypes.PyDLL(None)
    while True:
        libc.pause()


def _sleeper(engine: FaultEngine) -> None:
    assert engine.announce_to is not None
    announce(engine.announce_to, f"sleeper {os.getpid()}")
    while True:
        signal.pause()


def fork_away(engine: FaultEngine) -> None:
    """A helper in a session of its own that runs no other program."""
    if os.fork() == 0:
        os.setsid()
        _sleeper(engine)


def fork_twice_away(engine: FaultEngine) -> None:
    """A daemon as books have it: a session of its own, and another parent."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            _sleeper(engine)
        os._exit(0)
    os.waitpid(pid, 0)


def fork_renamed(engine: FaultEngine) -> None:
    """As `fork_away`, with a new command line, as `setproctitle` makes it."""
    if os.fork() == 0:
        os.setsid()
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, b"a helper", 8)
        _sleeper(engine)


def popen_away(engine: FaultEngine) -> None:
    """A program in a session of its own."""
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: S607
    assert engine.announce_to is not None
    announce(engine.announce_to, f"sleeper {sleeper.pid}")


ACTIONS.update(
    spin_in_python=spin_in_python,
    match_for_ever=match_for_ever,
    sleep_with_the_lock=sleep_with_the_lock,
    fork_away=fork_away,
    fork_twice_away=fork_twice_away,
    fork_renamed=fork_renamed,
    popen_away=popen_away,
)


class Slow(Split):
    """As `Split`, but each step, and each utility `nap`, takes so long."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def step(self) -> Iterable[Any]:
        time.sleep(self.step_s)
        return super().step()

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "nap":
            time.sleep(args[0])
            return "rested"
        return super().utility(name, args)


class Eater(Echo):
    """Allocate, a step at a time, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.eaten: list[bytearray] = []

    def step(self) -> Iterable[Any]:
        block = bytearray(16 << 20)
        block[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(block[:: os.sysconf("SC_PAGE_SIZE")])
        self.eaten.append(block)
        return []


class Inflate(Echo):
    """Answer a number with that many bytes; `utility("bytes", (n,))` does so too."""

    def step(self) -> Iterable[Any]:
        outputs = [
            Output(request_id, bytes(data) if isinstance(data, int) else data, True)
            for request_id, data in self.todo.items()
        ]
        self.todo.clear()
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        return bytes(args[0]) if name == "bytes" else super().utility(name, args)


class RaiseWhenTold(FaultEngine):
    """Announce that the step has begun, and raise once the FIFO `trigger_step` is opened for writing.

    Args:
        trigger_step: the FIFO.
        linger: a FIFO that `shutdown` waits for, or None.
    """

    def __init__(self, trigger_step: str, linger: str | None = None, announce: str | None = None) -> None:
        super().__init__(announce=announce)
        self.trigger_step, self.linger = trigger_step, linger

    def step(self) -> Iterable[Any]:
        self.announce("step")
        Path(self.trigger_step).read_bytes()
        raise RuntimeError("raised when told")

    def shutdown(self) -> None:
        super().shutdown()
        if self.linger is not None:
            Path(self.linger).read_bytes()


class WaitInInit(FaultEngine):
    """Announce `built`, go on once the FIFO `gate` is opened for writing, and act, if there is something to do."""

    def __init__(self, gate: str, announce_to: str, then: str = "report") -> None:
        announce(announce_to, "built")
        Path(gate).read_bytes()
        super().__init__("init", then)
