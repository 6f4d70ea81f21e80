"""The coordinator of a stage's replicas: a process that owns the group's sockets, and does what `Group` says.

One thread polls three sockets: the XPUB to the replicas, whose subscriptions are the barrier at the start; the PULL
from them; and the DEALER from the supervisor, which tells of members. By a PUSH it tells the supervisor what there is
to tell. It sleeps without a limit unless loads have changed that are not due yet. The shape follows vLLM's
`DPCoordinator`.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import zmq

from stage.boot import CLOSE_S, run_process
from stage.group import Group
from stage.group_protocol import SUBSCRIBE, group_encoder, members_decoder, to_coordinator_decoder
from stage.handshake import handshake
from stage.protocol import Hello, group_init_decoder, header_encoder
from stage.sockets import milliseconds, open_socket, readable, receive_frames
from stage.strays import Strays

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.boot import Boot, Running
    from stage.group_protocol import ToReplicas, ToSupervisor
    from stage.protocol import GroupInit
    from stage.sockets import Context, Socket

_AT_ONCE = 100
"""Messages that are read from a socket before the others have their turn, and before the clock is looked at."""


def run_coordinator(boot: Boot) -> None:
    """Run one coordinator from its first instruction to its last.

    Raises:
        SystemExit: with status 1, when it ended by an error.
    """
    run_process(boot, _serve)


def _serve(running: Running) -> bool:
    boot, box = running.boot, running.box
    hello = Hello(boot.stage, None, os.getpid())
    with handshake(running.context, boot.handshake_address, hello, box, group_init_decoder) as init:
        box.enter("io")
        coordinator = Coordinator(running.context, init, boot.label.encode())
        running.ending.callback(coordinator.close)
        running.signals.hand_over(coordinator)
    try:
        coordinator.run()
    except BaseException as exc:
        box.record_error("fatal", exc)
        raise
    box.enter("stopping")
    return True


class Coordinator:
    """Pass messages between a group's sockets and its account.

    Args:
        context: the context of this process.
        init: what the supervisor has told.
        identity: the routing id by which the supervisor knows us.
    """

    def __init__(self, context: Context, init: GroupInit, identity: bytes) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._publisher = open_socket(context, zmq.XPUB)
        # All of them: by default only the first of several equal subscriptions is passed up.
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._publisher.bind(init.group.publish)
        self._collector = open_socket(context, zmq.PULL, bind=init.group.collect)
        self._supervisor = open_socket(context, zmq.DEALER, connect=init.input_address, identity=identity)
        self._supervisor.send(b"")  # a ROUTER cannot address a peer that has not spoken
        self._push = open_socket(context, zmq.PUSH, connect=init.output_address)
        self._group = Group(init.replicas, self._publish, self._tell)
        self._stopping = False
        self._strays = Strays(partial(print, "dropped a message that is none of ours:"))

    def request_shutdown(self) -> None:
        """Make `run` return; for any thread, and for signal handlers."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        """Coordinate until a shutdown is asked for."""
        poller = zmq.Poller()
        for item in (self._publisher, self._collector, self._supervisor, self._wake_fd):
            poller.register(item, zmq.POLLIN)
        group = self._group
        while not self._stopping:
            wait_s = group.wait_s(time.monotonic())
            poller.poll(None if wait_s is None else milliseconds(wait_s))
            self._read(self._publisher, self._hear_subscriber)
            self._read(self._supervisor, self._hear_supervisor)
            self._read(self._collector, self._hear_replica)
            group.tell_loads(time.monotonic())

    def close(self) -> None:
        """Close every socket, the messages that are on their way excepted."""
        for socket in (self._publisher, self._collector, self._supervisor, self._push):
            socket.close(linger=int(CLOSE_S * 1000))
        os.close(self._wake_fd)

    def _read(self, socket: Socket, hear: Callable[[memoryview], None]) -> None:
        for _ in range(_AT_ONCE):
            if not readable(socket):
                break
            frames = receive_frames(socket, zmq.NOBLOCK)
            try:
                hear(frames[-1].buffer)
            except (msgspec.DecodeError, RecursionError) as exc:
                self._strays.add(str(exc))

    def _hear_subscriber(self, content: memoryview) -> None:
        if content == SUBSCRIBE:
            self._group.subscribed()

    def _hear_replica(self, content: memoryview) -> None:
        self._group.hear(to_coordinator_decoder.decode(content))

    def _hear_supervisor(self, content: memoryview) -> None:
        for message in members_decoder.decode(content):
            self._group.set_members(message.replicas)

    def _publish(self, message: ToReplicas) -> None:
        self._publisher.send(group_encoder.encode(message))

    def _tell(self, message: ToSupervisor) -> None:
        self._push.send(header_encoder.encode([message]))
