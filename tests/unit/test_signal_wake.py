"""A signal ends a poll of the main thread, also one that comes right before the poll begins to wait."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.monitor import Monitor
from supervisor.signal_wake import SignalWake

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq


class SignalledPoller:
    """A Poller that a signal meets on its way into the poll."""

    def __init__(self, poller: zmq.Poller) -> None:
        self.poller = poller

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        os.kill(os.getpid(), signal.SIGUSR1)  # its handler has run before the next line
        return self.poller.poll(timeout)


@pytest.fixture
def wake(clean_slate: object) -> Iterator[SignalWake]:
    wake = SignalWake()
    yield wake
    wake.close()


@pytest.fixture
def heard(clean_slate: object) -> Iterator[list[int]]:
    """The signals that a handler has heard of, which raises nothing."""
    signums: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, _frame: signums.append(signum))
    yield signums
    signal.signal(signal.SIGUSR1, before)


def test_signal_on_the_way_into_a_poll(wake: SignalWake, heard: list[int]) -> None:
    """A poll without a limit returns, again and again, though the handler has run before it began to wait."""
    monitor = Monitor([], {}, lambda *_: False, lambda _: None, None, lambda _: None, None, wake)
    monitor._poller = SignalledPoller(monitor._poller)  # type: ignore[assignment]
    assert [monitor.poll(None) for _ in range(2)] == [False, False]
    monitor.close()
    assert heard == [signal.SIGUSR1] * 2
    assert signal.set_wakeup_fd(-1) == -1


def test_wakeup_fd_of_the_program(wake: SignalWake) -> None:
    """A program's own wakeup fd stays."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    try:
        assert [wake.arm() for _ in range(2)] == [False, False]
    finally:
        assert signal.set_wakeup_fd(-1) == writer
        os.close(reader)
        os.close(writer)


def test_another_thread(wake: SignalWake) -> None:
    """No signal handler runs on another thread: there is nothing to do."""
    armed: list[bool] = []
    thread = threading.Thread(target=lambda: armed.append(wake.arm()))
    thread.start()
    thread.join()
    assert armed == [False]
