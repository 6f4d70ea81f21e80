"""Engines whose replicas tell who they are, or step together."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from engines_for_tests import Gate, announce

from stage import Output

if TYPE_CHECKING:
    from collections.abc import Iterable

REPLICA, REPLICAS = "STAGE_REPLICA", "STAGE_REPLICAS"


class WhoAmI(Gate):
    """Answer each request with the number of the replica, once it is permitted to, or at once if `free`."""

    def __init__(self, free: bool = True) -> None:
        super().__init__()
        self.free = free

    def has_work(self) -> bool:
        return bool(self.todo) and (self.free or self.permits > 0)

    def step(self) -> Iterable[Any]:
        self.permits -= 1
        outputs = [Output(request_id, [int(os.environ[REPLICA]), data], True) for request_id, data in self.todo.items()]
        self.todo.clear()
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """As `Gate`, and `block` never returns."""
        if name == "block":
            threading.Event().wait()
        return super().utility(name, args)


class SlowReplica(WhoAmI):
    """As `WhoAmI`, but the replica `which` tells that it is being built, and waits until it can read from `trigger`."""

    def __init__(self, which: int, announce_to: str, trigger: str) -> None:
        super().__init__()
        if int(os.environ[REPLICA]) == which:
            announce(announce_to, f"building {os.getpid()}")
            with open(trigger, "rb", buffering=0) as file:  # noqa: PTH123
                file.read(1)


class FailsFrom(WhoAmI):
    """As `WhoAmI`, but replicas from the number `which` on cannot be built."""

    def __init__(self, which: int) -> None:
        super().__init__()
        if int(os.environ[REPLICA]) >= which:
            raise MemoryError(f"no room for replica {os.environ[REPLICA]}")


class HangsAtTheEnd(WhoAmI):
    """As `WhoAmI`, but the replica `which` ends only when it can read from `trigger`, or never.

    `utility("fail", ())` makes its next step raise.
    """

    def __init__(self, which: int, trigger: str | None = None) -> None:
        super().__init__()
        self.hangs = int(os.environ[REPLICA]) == which
        self.trigger = trigger
        self.fails = False

    def step(self) -> Iterable[Any]:
        if self.fails:
            raise ValueError("a step too far")
        return super().step()

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "fail":
            self.fails, self.free = True, False
            return None
        return super().utility(name, args)

    def shutdown(self) -> None:
        if self.hangs and self.trigger is None:
            threading.Event().wait()
        if self.hangs and self.trigger is not None:
            with open(self.trigger, "rb", buffering=0) as file:  # noqa: PTH123
                file.read(1)


class DeafReplica(SlowReplica):
    """As `SlowReplica`, but a stop that comes while it is built does not end it."""

    def __init__(self, which: int, announce_to: str, trigger: str) -> None:
        with suppress(SystemExit):
            super().__init__(which, announce_to, trigger)


class AllReduce:
    """Step together: each step adds up, over TCP, how many requests every replica has, and waits for all of them.

    A replica that steps once more often than another one waits for ever, and so does its stage.

    Args:
        port: replica 0 listens there.
    """

    def __init__(self, port: int) -> None:
        self.rank, self.size = int(os.environ[REPLICA]), int(os.environ[REPLICAS])
        self.todo: dict[str, int] = {}
        self.steps = self.dummies = 0
        self.peers: list[socket.socket] = []
        if self.rank == 0:
            with socket.create_server(("127.0.0.1", port)) as server:
                self.peers = [server.accept()[0] for _ in range(self.size - 1)]
        else:
            self.peers = [_connect(port)]

    def has_work(self) -> bool:
        return bool(self.todo)

    def add(self, request_id: str, data: int) -> None:
        self.todo[request_id] = data

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.todo.pop(request_id, None)

    def step(self) -> Iterable[Any]:
        total = self._sum(len(self.todo))
        outputs = []
        for request_id in list(self.todo):
            self.todo[request_id] -= 1
            if self.todo[request_id] <= 0:
                del self.todo[request_id]
                outputs.append(Output(request_id, [self.rank, total], True))
        return outputs

    def dummy_step(self) -> None:
        self.dummies += 1
        self._sum(0)

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        return [self.steps, self.dummies]

    def shutdown(self) -> None:
        for peer in self.peers:
            peer.close()

    def _sum(self, number: int) -> int:
        self.steps += 1
        if self.rank == 0:
            total = number + sum(_receive(peer) for peer in self.peers)
            for peer in self.peers:
                peer.sendall(struct.pack("q", total))
            return total
        self.peers[0].sendall(struct.pack("q", number))
        return _receive(self.peers[0])


def _connect(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            os.sched_yield()


def _receive(peer: socket.socket) -> int:
    content = b""
    while len(content) < 8:
        chunk = peer.recv(8 - len(content))
        if not chunk:
            raise ConnectionError("another replica has gone")
        content += chunk
    (number,) = struct.unpack("q", content)
    return int(number)
