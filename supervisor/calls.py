"""Utility calls that wait for their answers; used under the switchboard's lock."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from stage.codec import Payload
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """All that wait.

    Args:
        keys: the routing ids of the processes that can be called.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._waiting: dict[int, Call] = {}
        self._ids = count(1)
        self._keys = set(keys)

    def admit(self, key: bytes) -> None:
        """Let one more process be called."""
        self._keys.add(key)

    def open(self, key: bytes) -> tuple[int, Call]:
        """Make a call to the process of routing id `key`; returns its number, too.

        It has failed already if what is sent to this process is lost, and no death would ever tell of it.
        """
        call_id = next(self._ids)
        call = Call(key)
        if key in self._keys:
            self._waiting[call_id] = call
        else:
            call.error = "it has not joined its stage yet, or has left it"
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
        """Fail the calls to one process, which cannot be called any more, or all."""
        if key is not None:
            self._keys.discard(key)
        for call_id, call in list(self._waiting.items()):
            if key is None or call.key == key:
                del self._waiting[call_id]
                call.error = error
                call.wake()
