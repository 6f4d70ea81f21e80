"""The side of a stage process, or of a coordinator, of the handshake: HELLO → INIT → READY, or FATAL, on a DEALER."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import zmq

from stage.names import label_of
from stage.protocol import Failed, Handshake, Hello, Ready, header_encoder
from stage.sockets import Context, Socket, open_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

    from stage.black_box import BlackBox

FLUSH_MS = 1000

T = TypeVar("T")


@contextmanager
def handshake(
    context: Context, address: str, hello: Hello, box: BlackBox, decoder: msgspec.msgpack.Decoder[T]
) -> Iterator[T]:
    """Greet the supervisor and yield what it answers; the end of the block is READY, an exception in it is FATAL.

    The wait for the answer has no limit of its own: the supervisor's deadline and the watch on the supervisor end it.

    Args:
        context: the context of this process.
        address: the supervisor's handshake endpoint.
        hello: who we are.
        box: gets the phase and the error; what it recorded first is what FATAL says.
        decoder: for the answer: `Init` for a stage process, `GroupInit` for a coordinator.

    Raises:
        msgspec.DecodeError: the answer is none for us; nothing of it has been applied.
    """
    identity = label_of(hello.stage, hello.replica).encode()
    with open_socket(context, zmq.DEALER, connect=address, identity=identity) as socket:
        # The last word must arrive, though the socket is closed, or the process ends, right after it.
        socket.setsockopt(zmq.LINGER, FLUSH_MS)
        try:
            box.enter("hello")
            _send(socket, hello)
            yield decoder.decode(socket.recv())
            # Entered before it is said: who reads READY may look into the box at once.
            box.enter("ready")
            _send(socket, Ready())
        except BootStopped:
            raise
        except BaseException as exc:
            _fail(socket, box, exc)
            raise


class BootStopped(SystemExit):
    """A signal asked the process to stop before it was ready: an end that needs no report."""


def _send(socket: Socket, message: Handshake) -> None:
    socket.send(header_encoder.encode(message))


def _fail(socket: Socket, box: BlackBox, exc: BaseException) -> None:
    _send(socket, Failed(box.record_error("fatal", exc)))
