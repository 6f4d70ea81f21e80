"""What the product's code sees of zmq and of the kernel: sockets, a Poller, eventfds, a clock; all of it simulated.

A connection is FIFO and as slow as the scheduler likes. What a process has handed to zmq but what has not left it dies
with it; what has left arrives, and only then does the connection end.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import zmq
from sim_world import Pause

if TYPE_CHECKING:
    from sim_world import World

Parts = list[Any]


class Frame:
    """A part of a message as pyzmq's `Frame` shows it."""

    __slots__ = ("buffer", "more")

    def __init__(self, buffer: Any, more: bool) -> None:
        self.buffer = buffer
        self.more = more


class Pipe:
    """One direction of one connection."""

    def __init__(self) -> None:
        self.unsent: deque[Parts] = deque()
        """Handed to zmq, still inside the sender."""
        self.under_way: deque[Parts] = deque()
        self.arrived: deque[Parts] = deque()
        self.left = 0
        """Messages that have left the sender."""
        self.ended = False
        """The receiver knows that nothing more can come."""

    def leave(self) -> None:
        """Let the oldest message leave the sender."""
        self.under_way.append(self.unsent.popleft())
        self.left += 1

    def arrive(self) -> None:
        """Let the oldest message become readable."""
        self.arrived.append(self.under_way.popleft())


class Sender:
    """A PUSH or DEALER socket that sends, or a ROUTER if it has several pipes."""

    def __init__(self) -> None:
        self.parts: Parts = []

    def send(self, data: Any, flags: int = 0, *, copy: bool = True) -> None:
        """Take a part; the last one makes the message."""
        self.parts.append(data.buffer if isinstance(data, Frame) else data)
        if not flags & zmq.SNDMORE:
            parts, self.parts = self.parts, []
            self.deliver(parts)

    def deliver(self, parts: Parts) -> None:
        """Take a whole message."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def connect(self, *_: Any) -> None:
        """Connected from the beginning."""

    def close(self, linger: int = 0) -> None:
        """Whether what is unsent leaves is for the scheduler to say."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Router(Sender):
    """The supervisor's ROUTER; it refuses a peer that it knows to be gone."""

    def __init__(self, pipes: dict[bytes, Pipe]) -> None:
        super().__init__()
        self._pipes = pipes

    def send(self, data: Any, flags: int = 0, *, copy: bool = True) -> None:
        """Take a part, the first of which is the address."""
        if not self.parts and self._pipes[data].ended:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        super().send(data, flags, copy=copy)

    def deliver(self, parts: Parts) -> None:
        """Send it: the supervisor outlives its stages, so it has left at once."""
        self._pipes[parts[0]].under_way.append(parts[1:])


class Push(Sender):
    """A stage's PUSH."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def deliver(self, parts: Parts) -> None:
        """Hand it to zmq."""
        self._pipe.unsent.append(parts)


class Receiver(Sender):
    """A stage's DEALER, or a PULL."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe
        self.allowance = 1
        self._rest: deque[Frame] = deque()

    def recv(self, flags: int = 0, *, copy: bool = True) -> Frame:
        """The next part."""
        if not self._rest:
            if not flags & zmq.NOBLOCK:
                if not self.pipe.arrived or not self.allowance:
                    raise Pause
                self.allowance -= 1
            if not self.pipe.arrived:
                raise zmq.Again
            parts = self.pipe.arrived.popleft()
            last = len(parts) - 1
            self._rest.extend(Frame(part, i < last) for i, part in enumerate(parts))
        return self._rest.popleft()

    def getsockopt(self, option: int) -> int:
        """Whether it is readable."""
        return zmq.POLLIN if self.pipe.arrived else 0

    def is_readable(self) -> bool:
        """True if there is a message."""
        return bool(self.pipe.arrived)


class Events:
    """The monitor socket of a connection: readable once the last message has been delivered, until that is read."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.were_read = False

    def is_readable(self) -> bool:
        """True if its end has not been read."""
        return self._pipe.ended and not self.were_read


class Inlet:
    """What a supervisor's `Inlet` is for a real PULL."""

    def __init__(self, pipe: Pipe) -> None:
        self.socket = Receiver(pipe)
        self.events = Events(pipe)
        self._pipe = pipe

    def count_peers(self) -> int:
        """One, until the connection has ended."""
        self.events.were_read = self._pipe.ended
        return not self._pipe.ended

    def close(self) -> None:
        """Nothing is kept."""


class Context:
    """A stage's zmq context: its two sockets, over and over."""

    def __init__(self, sockets: dict[int, Sender]) -> None:
        self._sockets = sockets

    def socket(self, kind: int) -> Sender:
        """The socket of this kind."""
        return self._sockets[kind]


class Cells(list[int]):
    """The cells of a black box, as its stage and the supervisor see them."""

    def release(self) -> None:
        """Nothing is kept."""


class Kernel:
    """Descriptors that are counters: eventfds, and pidfds that become readable once."""

    def __init__(self) -> None:
        self.counters: dict[int, int] = {}
        self.closed: set[int] = set()

    def eventfd(self, value: int = 0, _flags: int = 0) -> int:
        """A new descriptor, of a number that no real one has."""
        fd = 100_000 + len(self.counters)
        self.counters[fd] = value
        return fd

    def eventfd_write(self, fd: int, value: int) -> None:
        """Make it readable."""
        self.counters[fd] += value

    def eventfd_read(self, fd: int) -> int:
        """Take what was written."""
        value, self.counters[fd] = self.counters[fd], 0
        if not value:
            raise BlockingIOError
        return value

    def close(self, fd: int) -> None:
        """Let nobody poll it any more."""
        self.closed.add(fd)

    def is_readable(self, item: Any) -> bool:
        """True if a poll would return it."""
        return self.counters[item] > 0 if isinstance(item, int) else item.is_readable()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Poller:
    """A `zmq.Poller`; while it waits, the world goes on."""

    def __init__(self, world: World, kernel: Kernel) -> None:
        self._world = world
        self._kernel = kernel
        self._items: list[Any] = []
        self._fds: list[int] = []
        self._sockets: list[Any] = []

    def register(self, item: Any, _flags: int = 0) -> None:
        """Watch it as well."""
        self._items.append(item)
        (self._fds if isinstance(item, int) else self._sockets).append(item)

    def unregister(self, item: Any) -> None:
        """Watch it no more."""
        self._items.remove(item)
        (self._fds if isinstance(item, int) else self._sockets).remove(item)

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        """Wait for the first item, and return all in the order in which they were registered."""
        closed = self._kernel.closed
        self._world.expect(not closed or closed.isdisjoint(self._items), "a descriptor is polled that is closed")
        until = None if timeout is None else self._world.now + timeout / 1000
        self._world.wait(self._any, until)
        ready = [item for item in self._items if self._kernel.is_readable(item)]
        if len(ready) > 1 and isinstance(ready[-1], int) and self._world.chance(0.3):
            # Items are looked at one after the other: a message that comes right after its own look, but before that
            # at the sentinel, is missed.
            ready = [item for item in ready if isinstance(item, int)]
        return [(item, zmq.POLLIN) for item in ready]

    def _any(self) -> bool:
        """True if there is something; asked at every event, so it must be quick."""
        if any(map(self._kernel.counters.__getitem__, self._fds)):
            return True
        return any(socket.is_readable() for socket in self._sockets)


class Zmq:
    """The module `zmq` for code that makes its own Poller."""

    def __init__(self, world: World, kernel: Kernel) -> None:
        self.Poller = partial(Poller, world, kernel)

    def __getattr__(self, name: str) -> Any:
        return getattr(zmq, name)


class Clock:
    """The module `time` as far as the supervisor may use it in a history."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Simulated seconds."""
        return self._world.now

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self._world.now * 1e9)
