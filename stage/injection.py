"""Faults that a stage acts out on itself, so that one terminal is enough to see a death."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.protocol import Injection

ACTIONS = ("sigkill", "sigterm", "sigstop", "segv", "exit0", "raise")


READY_LEAVES_S = 0.05
"""What READY may take to leave the process, by a thread that is not ours: a stage stopped before was never ready."""


class InjectedError(RuntimeError):
    """The `raise` action's exception."""


def _raise() -> None:
    raise InjectedError("injected by --inject")


_ACTS: dict[str, Callable[[], None]] = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segv": faulthandler._sigsegv,  # type: ignore[attr-defined]  # noqa: SLF001 (a real fault, as C code makes it)
    "exit0": lambda: os._exit(0),
    "raise": _raise,
}


def _act(action: str) -> None:
    print(f"acting out {action}, as --inject asked", file=sys.stderr)  # noqa: T201 (the stage's log)
    _ACTS[action]()


def arm(injection: Injection, fail: Callable[[str], None]) -> None:
    """Start the clock of a fault that is due some seconds after READY.

    Args:
        injection: what and when.
        fail: ends the busy loop, for the action `raise`: an exception on a thread of its own would end nothing.
    """
    if injection.after_s is None:
        return
    act = _fail_with(fail) if injection.action == "raise" else partial(_act, injection.action)
    timer = threading.Timer(injection.after_s + READY_LEAVES_S, act)
    timer.name = "injection"
    timer.daemon = True
    timer.start()


def _fail_with(fail: Callable[[str], None]) -> Callable[[], None]:
    return lambda: fail("injected by --inject")


class FaultyStep:
    """An engine's `step` that acts out a fault when its number comes.

    Args:
        step: the engine's own.
        injection: what and at which step.
    """

    def __init__(self, step: Callable[[], Any], injection: Injection) -> None:
        self._step = step
        self._injection = injection
        self._number = 0

    def __call__(self) -> Any:
        """Count the step, and act if it is the one."""
        self._number += 1
        if self._number == self._injection.step:
            _act(self._injection.action)
        return self._step()
