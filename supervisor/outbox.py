"""The outbox: messages that wait to be sent, and the ROUTER they leave by.

A single request is sent at once by the thread that submits it. In a burst, what comes right behind is gathered, and
the thread that polls sends it in one message for each stage: many small messages cost more than their bytes. Used
under the switchboard's lock only.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import zmq

from stage.group_protocol import Members
from stage.protocol import Abort, Add, ToProcess, Utility, header_encoder
from stage.sockets import Socket, milliseconds, readable, receive_frames, send_message
from supervisor.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.codec import Payload
    from stage.strays import Strays
    from supervisor.hang_watch import StageWatch
    from supervisor.seats import Seat

BURST_S = 500e-6
"""Messages that follow each other faster than this are a burst."""

LOOK_S = 1.0
"""How long what a stranger has sent lies at the ROUTER, while something is sent through it."""

MAX_GATHERED = 128
"""Messages that wait at most, so that the stages have work while a long burst is being submitted."""


class Outbox:
    """Gather and send.

    Args:
        router: the socket that reaches every stage.
        strays: counts what comes in by it, though the stages say nothing there once they are ready; or None.
    """

    def __init__(self, router: Socket, strays: Strays | None = None) -> None:
        self._router = router
        self._strays = strays
        self._looked_at = 0.0
        self.wake: Callable[[], None] | None = None
        """Makes the thread that polls come back."""
        self.on_torn: Callable[[BaseException], None] | None = None
        """Called when something has cut a message off."""
        self._waiting: dict[bytes, tuple[list[ToProcess], list[Any]]] = {}
        self.count = 0
        """Messages that wait."""
        self._sent_at = 0.0
        self._torn = False
        self.newcomers: set[bytes] = set()
        """Routing ids of replicas that join: the first word of each is awaited."""
        self.watches: dict[bytes, StageWatch] = {}
        """What counts the messages to those stages that are watched for hangs."""
        self.asleep = False
        """A thread polls, and has not been woken since; it flushes before it polls again."""

    def add(self, seat: Seat, engine_id: str, payload: Payload) -> None:
        """Put a request in."""
        self._put(seat.key, Add(engine_id, payload.body, len(payload.frames)), payload.frames)

    def abort(self, seat: Seat, engine_ids: list[str]) -> None:
        """Put an abort in."""
        self._put(seat.key, Abort(engine_ids), ())

    def utility(self, key: bytes, call_id: int, name: str, payload: Payload) -> None:
        """Put a utility call in."""
        self._put(key, Utility(call_id, name, payload.body, len(payload.frames)), payload.frames)

    def members(self, key: bytes, replicas: list[int]) -> None:
        """Put in, for a coordinator, which replicas its group has."""
        self._put(key, Members(replicas), ())

    def dispatch(self) -> None:
        """Send what was put in, unless it is part of a burst: then whoever polls next sends it."""
        if self.count >= MAX_GATHERED or monotonic() - self._sent_at > BURST_S:
            self.flush()
        else:
            self.ring()

    def ring(self) -> None:
        """Make the thread that polls look again, at what waits here or at what it waits for."""
        if self.asleep and self.wake is not None:
            self.asleep = False
            self.wake()

    def flush(self) -> None:
        """Send everything."""
        if not self.count or self._torn:
            return
        try:
            waiting, self._waiting, self.count = self._waiting, {}, 0
            for key, (messages, frames) in waiting.items():
                try:
                    send_message(self._router, header_encoder.encode(messages), frames, to=key)
                except zmq.ZMQError as exc:
                    # The stage is dead, which its sentinel tells: its requests fail then.
                    log.debug("message_unsent", to=key.decode(), reason=str(exc))
                else:
                    if key in self.watches:
                        self._count(self.watches[key], len(messages))
            self._sent_at = now = monotonic()
            if self._strays is not None and now - self._looked_at > LOOK_S:
                self._looked_at = now
                self._drop_strays()
        except BaseException as exc:
            # An interrupt between two frames, say: what is sent next would become a part of this message.
            if self.on_torn is not None:
                self.on_torn(exc)
            raise

    def meets(self, key: bytes, timeout_s: float) -> bool:
        """True once a newcomer has spoken on the ROUTER, which cannot address it before."""
        while key in self.newcomers and self._router.poll(milliseconds(timeout_s)):
            self._read_one()
        return key not in self.newcomers

    def forget(self, key: bytes) -> None:
        """Keep nothing of a process that is gone."""
        self.newcomers.discard(key)
        self.watches.pop(key, None)

    def tear(self) -> None:
        """Send nothing any more: a message was cut off, and what comes next would become a part of it."""
        self._torn = True

    def _drop_strays(self) -> None:
        """Read what has come; not polled, since only the thread that has the lock may touch the socket."""
        while readable(self._router):
            self._read_one()

    def _read_one(self) -> None:
        """Read a message: the first word of a replica that joins, which is empty, or one of nobody's."""
        identity, *frames = receive_frames(self._router, zmq.NOBLOCK)
        size = sum(len(frame.buffer) for frame in frames)
        if identity.bytes in self.newcomers and not size:
            self.newcomers.discard(identity.bytes)
        elif self._strays is not None:
            self._strays.add(f"a message of {size} bytes on the socket for input")

    def _count(self, watch: StageWatch, messages: int) -> None:
        watch.sent += messages
        if watch.at_rest:
            self.ring()

    def _put(self, key: bytes, message: ToProcess, frames: Any) -> None:
        self.count += 1
        batch = self._waiting.get(key)
        if batch is None:
            self._waiting[key] = ([message], list(frames))
        else:
            batch[0].append(message)
            batch[1].extend(frames)
