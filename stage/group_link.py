"""A replica's link to its coordinator: an XSUB that belongs to the input thread, and a PUSH of the output thread's."""

from __future__ import annotations

from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any

import zmq

from stage.group_protocol import SUBSCRIBE, GroupReady, group_encoder, to_replicas_decoder
from stage.replica import LoadMeter
from stage.sockets import open_socket, receive_frames

if TYPE_CHECKING:
    from queue import SimpleQueue

    import msgspec

    from stage.protocol import GroupAddresses
    from stage.sockets import Context, Socket

TELL_AFTER_S = 0.02
"""How long after a change the load is told, with all that changes meanwhile."""


class GroupLink:
    """Hear and tell the coordinator.

    Args:
        addresses: where it is met.
        replica: our number.
    """

    def __init__(self, addresses: GroupAddresses, replica: int) -> None:
        self.addresses = addresses
        self.replica = replica
        self.meter = LoadMeter(replica)
        self._listener: Socket | None = None
        self._poller = zmq.Poller()
        self._teller: Socket | None = None
        self._due: float | None = None

    def open_listener(self, context: Context) -> Socket:
        """Connect for listening; for the input thread, which closes the socket."""
        self._listener = open_socket(context, zmq.XSUB, connect=self.addresses.publish)
        return self._listener

    def join(self, socket: Socket) -> None:
        """Subscribe, and wait until every replica of the group has; for the input thread, which receives by `socket`.

        The wait has no limit of its own: the context's end, the supervisor's deadline, and the watch on the supervisor
        end it.
        """
        assert self._listener is not None  # noqa: S101 (opened before)
        self._listener.send(SUBSCRIBE)
        while not isinstance(self._hear(), GroupReady):
            pass
        for item in (socket, self._listener):
            self._poller.register(item, zmq.POLLIN)

    def receive(self, socket: Socket, input_queue: SimpleQueue[Any]) -> list[zmq.Frame]:
        """Receive a message of the supervisor's; what the coordinator says meanwhile goes into the queue."""
        listener = self._listener
        assert listener is not None  # noqa: S101 (joined before)
        while True:
            ready = dict(self._poller.poll())
            if listener in ready:
                message = self._hear()
                if self.addresses.lockstep:
                    input_queue.put(("GROUP", message))
            if socket in ready:
                return receive_frames(socket, zmq.NOBLOCK)

    def received(self, requests: int, output_queue: SimpleQueue[Any]) -> None:
        """Count requests that wait for the engine now; for the input thread."""
        if requests:
            self.meter.received += requests
            if self.meter.owe():
                output_queue.put(("load",))

    def open_teller(self, context: Context) -> Socket:
        """Connect for telling; for the output thread, which closes the socket."""
        self._teller = open_socket(context, zmq.PUSH, connect=self.addresses.collect)
        return self._teller

    def next_emit(self, output_queue: SimpleQueue[Any]) -> tuple[Any, ...]:
        """Wait for an emit, and tell of the load when it is time; for the output thread."""
        while True:
            try:
                emit: tuple[Any, ...] = output_queue.get(timeout=self._left_s())
            except Empty:
                self._tell_load()
            else:
                return emit

    def divert(self, batch: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Send what is for the coordinator, and return the rest; for the output thread."""
        rest = []
        for emit in batch:
            if emit[0] == "group":
                self._tell(emit[1])
            elif emit[0] == "load":
                self._due = monotonic() + TELL_AFTER_S
            else:
                rest.append(emit)
        if self._left_s() == 0:  # also while there is always something to send
            self._tell_load()
        return rest

    def _left_s(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - monotonic())

    def _tell_load(self) -> None:
        self._due = None
        if (load := self.meter.news()) is not None:
            self._tell(load)

    def _tell(self, message: msgspec.Struct) -> None:
        assert self._teller is not None  # noqa: S101 (opened before)
        self._teller.send(group_encoder.encode(message))

    def _hear(self) -> Any:
        assert self._listener is not None  # noqa: S101 (opened before)
        return to_replicas_decoder.decode(self._listener.recv())
