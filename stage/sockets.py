"""One factory for every zmq socket of the project, and how a message leaves and enters one.

No high-water mark: what is under way is bounded by `max_in_flight`, and a peer that is stopped must never block us.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

_MAX_WAIT_S = 2_000_000.0


@contextmanager
def batch_scheduling() -> Iterator[None]:
    """Let the threads that are started meanwhile run as SCHED_BATCH.

    They have the same share of the processors as before, but one that wakes does not push the running thread aside,
    often only to wait for something that this one holds: half of the context switches of a round trip were such.
    """
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        batch = policy == os.SCHED_OTHER
        if batch:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        batch = False  # a sandbox that forbids it: slower, nothing else
    try:
        yield
    finally:
        if batch:
            os.sched_setscheduler(0, policy, param)


def milliseconds(seconds: float) -> int:
    """A timeout as poll takes it, a C int. Rounded up: rounded down, the last millisecond to a deadline would spin."""
    if not seconds < _MAX_WAIT_S:
        return int(_MAX_WAIT_S * 1000)
    return max(0, math.ceil(seconds * 1000))


def open_socket(
    context: Context,
    kind: int,
    *,
    bind: str | None = None,
    connect: str | None = None,
    identity: bytes | None = None,
    receive_limit: int = 0,
) -> Socket:
    """Open a socket that drops what is unsent when it is closed, unless the closer says otherwise.

    Args:
        context: the context of this process.
        kind: zmq.ROUTER and so on. A ROUTER refuses messages to an unknown peer instead of dropping them silently.
        bind: endpoint to own.
        connect: endpoint of a peer.
        identity: the routing id that a ROUTER will know this socket by.
        receive_limit: the most messages of one peer that wait to be received; 0 for no limit.
    """
    socket = context.socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, receive_limit)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        if bind is not None:
            socket.bind(bind)
        if connect is not None:
            socket.connect(connect)
    except BaseException:
        socket.close()
        raise
    return socket


def send_message(socket: Socket, header: bytes, frames: Sequence[Any], to: bytes | None = None) -> None:
    """Send a header and its payload frames, which are not copied; `to` is the routing id a ROUTER needs."""
    if to is not None:
        socket.send(to, zmq.SNDMORE)
    if not frames:
        socket.send(header)
        return
    socket.send(header, zmq.SNDMORE)
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        socket.send(frame, zmq.SNDMORE if i < last else 0, copy=False)


def receive_frames(socket: Socket, flags: int = 0) -> list[zmq.Frame]:
    """Receive one whole message without copying it.

    Raises:
        zmq.Again: there is none, and `flags` say not to wait.
        zmq.ContextTerminated: the context is shutting down.
    """
    frame = socket.recv(flags, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(copy=False)
        frames.append(frame)
    return frames


def readable(socket: Socket) -> bool:
    """True if a message can be received without waiting."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
