"""Utility calls that wait for their answers; used under the switchboard's lock."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from stage.codec import Payload
from supervisor.turns import Waitable

if TYPE_CHECKING:
    import zmq

    from stage.protocol import Reply


class Call(Waitable):
    """A utility call that waits for its answer.

    Args:
        key: the routing id of the process that was called.
    """

    def __init__(self, key: bytes) -> None:
        self.tokens = ()
        self.key = key
        self.answer: Payload | None = None
        self.error: str | None = None

    def answered(self) -> bool:
        """True once there is an answer or an error."""
        return self.answer is not None or self.error is not None


class Calls:
    """All that wait."""

    def __init__(self) -> None:
        self._waiting: dict[int, Call] = {}
        self._ids = count(1)

    def open(self, key: bytes) -> tuple[int, Call]:
        """Make a call to the process of routing id `key`; returns its number, too."""
        call_id = next(self._ids)
        call = self._waiting[call_id] = Call(key)
        return call_id, call

    def refuse(self, key: bytes, error: str) -> tuple[int, Call]:
        """Make a call that has failed already."""
        call = Call(key)
        call.error = error
        return next(self._ids), call

    def forget(self, call_id: int) -> None:
        """Drop the answer of a call that nobody waits for any more."""
        self._waiting.pop(call_id, None)

    def answer(self, reply: Reply, frames: list[zmq.Frame]) -> None:
        """Give a call its answer, which has `frames`; one that nobody waits for is dropped."""
        call = self._waiting.pop(reply.call_id, None)
        if call is None:
            return
        call.error = reply.error
        if reply.error is None:
            call.answer = Payload(reply.body, frames)
        call.wake()

    def fail(self, error: str, key: bytes | None = None) -> None:
        """Fail the calls to one process, or all."""
        for call_id, call in list(self._waiting.items()):
            if key is None or call.key == key:
                del self._waiting[call_id]
                call.error = error
                call.wake()
