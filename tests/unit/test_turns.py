"""Turns: of the threads that wait one polls, and each hears of what it waits for."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
import zmq
from harness import HANG_S, ended, in_thread, is_asleep, until

from supervisor.monitor import Monitor
from supervisor.outbox import Outbox
from supervisor.turns import Turns, Waitable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Flag(Waitable):
    """Something to wait for."""

    def __init__(self) -> None:
        self.tokens = ()
        self.up = False

    def is_up(self) -> bool:
        return self.up


class House:
    """Turns over a real poller that knows no stage; `stop_fd` is what there is to poll."""

    def __init__(self, router: zmq.Socket[bytes], stop_fd: int) -> None:
        self.lock = threading.Lock()
        self.stop_fd = stop_fd
        self.polled_by: list[str] = []
        self.on_stop: Flag | None = None
        self.outbox = Outbox(router)
        self.monitor = Monitor([], {}, lambda *_: False, lambda _: None, stop_fd, self._stopped)
        self.turns = Turns(self.monitor, self.outbox, self.lock)

    def _stopped(self, _times: int) -> None:
        self.polled_by.append(threading.current_thread().name)
        if self.on_stop is not None:
            with self.lock:
                self.on_stop.up = True
                self.on_stop.wake()

    def raise_flag(self, flag: Flag) -> None:
        """Change something from a thread that does not poll."""
        with self.lock:
            flag.up = True
            flag.wake()
            self.outbox.ring()


@pytest.fixture
def house(clean_slate: object) -> Iterator[House]:
    """Turns, without their background thread."""
    stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        made = House(router, stop_fd)
        yield made
        made.monitor.close()
    os.close(stop_fd)


@pytest.fixture
def background(house: House) -> Iterator[threading.Thread]:
    """The background thread, which the end of the test ends."""
    thread = threading.Thread(target=house.turns.run_background, name="background")
    thread.start()
    yield thread
    house.turns.end()
    assert ended(thread)


def test_ready_already(house: House) -> None:
    """What is ready need not be waited for."""
    flag = Flag()
    flag.up = True
    assert house.turns.wait(flag, flag.is_up)


@pytest.mark.usefixtures("background")
def test_deadline(house: House) -> None:
    """A wait past its deadline returns False, not early, and takes the flag down again."""
    flag = Flag()
    deadline = time.monotonic() + 0.05
    assert not house.turns.wait(flag, flag.is_up, deadline)
    assert time.monotonic() >= deadline
    assert flag.tokens == ()


@pytest.mark.parametrize("waiters", [1, 2, 8])
@pytest.mark.usefixtures("background")
def test_change_from_a_thread_that_does_not_poll(house: House, waiters: int) -> None:
    """Whichever of the threads that wait has the turn, each is woken by its own flag, in any order."""
    flags = [Flag() for _ in range(waiters)]
    threads = [in_thread(partial(house.turns.wait, flag, flag.is_up)) for flag in flags]
    for thread in threads:
        until(partial(is_asleep, thread), "it waits")
    for flag, thread in sorted(zip(flags, threads, strict=True), key=lambda pair: id(pair[0])):
        house.raise_flag(flag)
        assert ended(thread)


@pytest.mark.usefixtures("background")
def test_two_wait_for_the_same(house: House) -> None:
    """One change wakes everybody who waits for it."""
    flag = Flag()
    threads = [in_thread(lambda: house.turns.wait(flag, flag.is_up)) for _ in range(3)]
    for thread in threads:
        until(partial(is_asleep, thread), "it waits")
    house.raise_flag(flag)
    assert all(ended(thread) for thread in threads)


@pytest.mark.usefixtures("background")
def test_who_waits_polls(house: House) -> None:
    """What a poll brings is read by a thread that waits, if there is one, and by the background otherwise."""
    flag = house.on_stop = Flag()
    waiter = in_thread(lambda: house.turns.wait(flag, flag.is_up))
    until(lambda: is_asleep(waiter), "it waits")
    os.eventfd_write(house.stop_fd, 1)
    assert ended(waiter)
    house.on_stop = None
    os.eventfd_write(house.stop_fd, 1)
    until(lambda: len(house.polled_by) == 2, "the background reads it")
    assert house.polled_by[1] == "background"


def test_end_while_a_thread_waits(house: House, background: threading.Thread) -> None:
    """The end takes the turn from whoever has it; a flag that is raised afterwards still ends the wait."""
    flag = Flag()
    waiter = in_thread(lambda: house.turns.wait(flag, flag.is_up))
    until(lambda: is_asleep(waiter), "it waits")
    house.turns.end()
    assert ended(background)
    assert waiter.is_alive()
    house.raise_flag(flag)
    assert ended(waiter)


class InterruptError(BaseException):
    """What a signal handler may raise, on any instruction."""


@pytest.mark.usefixtures("background")
def test_interrupted_wait_gives_the_turn_back(house: House) -> None:
    """An exception out of the middle of a wait leaves the turn to others."""

    def interrupt() -> bool:
        raise InterruptError

    for _ in range(3):
        flag = Flag()
        with pytest.raises(InterruptError):
            house.turns.wait(flag, interrupt)
        assert flag.tokens == ()
    other = Flag()
    waiter = in_thread(lambda: house.turns.wait(other, other.is_up))
    until(lambda: is_asleep(waiter), "it waits")
    house.raise_flag(other)
    assert ended(waiter)


@pytest.mark.parametrize("waits_again", [True, False])
def test_turn_that_an_interrupt_left_behind(house: House, waits_again: bool) -> None:
    """A thread that was interrupted right after it took the turn gives it back after its next wait, or at the end."""
    assert house.turns._take()
    background = in_thread(house.turns.run_background)
    if waits_again:
        flag = Flag()
        assert not house.turns.wait(flag, flag.is_up, time.monotonic())
        os.eventfd_write(house.stop_fd, 1)
        until(lambda: house.polled_by == [background.name], "the background has the turn")
    house.turns.end()
    assert ended(background)


@pytest.mark.usefixtures("background")
def test_many_threads_and_many_changes(house: House) -> None:
    """A thousand waits on eight threads, each ended by another thread, all end."""
    flags = [[Flag() for _ in range(125)] for _ in range(8)]

    def wait_for(mine: list[Flag]) -> None:
        for flag in mine:
            assert house.turns.wait(flag, flag.is_up, time.monotonic() + HANG_S)

    threads = [in_thread(partial(wait_for, mine)) for mine in flags]
    for row in zip(*flags, strict=True):
        for flag in row:
            house.raise_flag(flag)
    assert all(ended(thread) for thread in threads)
