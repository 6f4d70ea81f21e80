"""What a `FaultEngine` can do to its own process besides ending it: stall it, lie for it, take its sockets away."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import tempfile
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from stage.protocol import Hello, Out, Reply, header_encoder

if TYPE_CHECKING:
    from collections.abc import Iterable


def crash() -> None:
    """Read from the address 0, as a fault in native code does."""
    ctypes.string_at(0)


def loop() -> None:
    """Go round for ever in Python; other threads get their turns."""
    while True:
        pass


def loop_in_c() -> None:
    """Go round for ever in C, with the interpreter's lock held: no other thread, no signal handler runs any more."""
    deque(repeat(None), maxlen=0)


def send_garbage(request_ids: Iterable[str]) -> None:
    """Send to every socket of the supervisor what it must not take for a message of ours.

    Args:
        request_ids: those that the engine has in hand; a message that has lost its payload frames names them.
    """
    garbage = _garbage()
    garbage += [[header_encoder.encode([Out(one, b"\xc0", 7, True)]), b"too few"] for one in request_ids]
    with zmq.Context() as context:
        for path in Path(tempfile.gettempdir()).glob("stages-*/*.sock"):
            _send_no_zmtp(path)
            kind = zmq.PUSH if path.name.startswith("output") else zmq.DEALER
            with context.socket(kind) as sender:
                sender.setsockopt(zmq.LINGER, 1000)
                sender.connect(f"ipc://{path}")
                for frames in garbage:
                    sender.send_multipart(frames)


def _send_no_zmtp(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        stranger.send(b"GET / HTTP/1.1\r\n\r\n" * 10)


def _garbage() -> list[list[bytes]]:
    encode = header_encoder.encode
    return [
        [b""],
        [b"", b""],
        [os.urandom(1000)],
        [bytes(1 << 20)],
        [encode({"type": "HELLO"})],
        [encode(Hello("faulty", 0, os.getpid()))],
        [encode(Hello("ghost", 0, 1))],
        [encode([])],
        [encode([["unknown", 1]])],
        [encode([["out", "held#1"]])],
        [encode([Out("nobody", b"\xc0", 0, True)])],
        [encode([Reply(10**6, b"\xc0", 0, "nobody asked")])],
    ]


def close_socket() -> None:
    """Close a socket that another part of the stage goes on to use: the one for its outputs, or else its first."""
    gc.unfreeze()
    found = [thing for thing in gc.get_objects() if isinstance(thing, zmq.Socket) and not thing.closed]
    (min(found, key=lambda one: one.type != zmq.PUSH)).close()
