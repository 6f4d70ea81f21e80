"""The switchboard: applies what arrives to the ledger and sends on what follows from it, under one lock.

It owns the ledger, the utility calls that wait, and the ROUTER; any thread may call it. Headers are decoded here,
payloads never: their frames go on to the next stage as they came.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from stage.codec import Payload, encode
from stage.protocol import (
    Abort,
    Add,
    End,
    Fatal,
    Out,
    Refused,
    ToStage,
    Utility,
    from_stage_decoder,
    header_encoder,
)
from stage.sockets import Socket, send_message
from supervisor.ledger import Ledger, build_graph
from supervisor.log import log
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stage.protocol import FromStage, Reply
    from supervisor.config import PipelineConfig
    from supervisor.ledger import Cancel, Forward, OutcomeName, Request, Sink
    from supervisor.report import StageDeathReport
    from supervisor.stage_proc import StageProc


class Call(Waitable):
    """A utility call that waits for its answer."""

    __slots__ = ("answer", "error", "key")

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.key = key
        self.answer: Payload | None = None
        self.error: str | None = None

    def answered(self) -> bool:
        """True once there is an answer or an error."""
        return self.answer is not None or self.error is not None


class Switchboard:
    """Route requests, outputs, aborts and utility calls.

    Args:
        config: gives the graph of stages and `max_in_flight`.
        router: the socket that reaches every stage; from now on used under `lock` only.
    """

    def __init__(self, config: PipelineConfig, router: Socket) -> None:
        self.lock = threading.Lock()
        self.slots = Waitable()
        """Changes whenever a request ends."""
        self.died: StageDeathReport | None = None
        self.last_words: dict[str, str] = {}
        """The error text of each `fatal` message, by `stage/replica`."""
        self._router = router
        self._ledger = Ledger(build_graph(config))
        self._max_in_flight = config.max_in_flight
        self._calls: dict[int, Call] = {}
        self._call_ids = count(1)
        self._refusal: str | None = None
        self._request_numbers = count(1)

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._ledger)

    @property
    def done(self) -> int:
        """Requests that have ended."""
        return self._ledger.done

    def has_slot(self) -> bool:
        """True if a request need not wait, be it because it will be refused."""
        return len(self._ledger) < self._max_in_flight or self._refusal is not None

    def refusal(self) -> str | None:
        """Why no request is accepted any more, or None."""
        return self._refusal

    def open(self, payload: Payload, request_id: str | None, sink: Sink) -> Request | None:
        """Accept a request and send it off; None if there is no slot, or none will be.

        Raises:
            ValueError: a request of this id is alive.
        """
        with self.lock:
            if self._refusal is not None or len(self._ledger) >= self._max_in_flight:
                return None
            if request_id is None:
                request_id = self._free_id()
            request, forwards = self._ledger.open(request_id, payload, sink)
            self._forward(forwards)
            return request

    def on_message(self, proc: StageProc, frames: list[zmq.Frame]) -> bool:
        """Apply a message from a stage; True if it was its `fatal`."""
        try:
            messages = from_stage_decoder.decode(frames[0].buffer)
        except msgspec.DecodeError as exc:
            log.warning("message_dropped", stage=proc.stage, replica=proc.replica, reason=str(exc))
            return False
        with self.lock:
            return self._apply(proc, messages, frames)

    def abort(self, request: Request) -> None:
        """End a request as aborted, in every stage."""
        with self.lock:
            self._cancel(self._ledger.close(request, "aborted"))

    def close(self, refusal: str) -> None:
        """Accept nothing any more, and end all that is under way as aborted."""
        with self.lock:
            self._end_all(refusal, "aborted", None, None)

    def lose(self, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        """Accept nothing any more, and end all that is under way as failed.

        Args:
            report_for: makes the report from the ids of the requests that it costs.
        """
        with self.lock:
            report = report_for([request.id for request in self._ledger.alive()])
            # Before any request ends: who sees its request fail must find the report.
            self.died = report
            self._end_all(report.summary(), "failed", report.summary(), report)
            return report

    def _end_all(self, refusal: str, outcome: OutcomeName, error: str | None, report: StageDeathReport | None) -> None:
        self._refusal = self._refusal or refusal
        for request in self._ledger.alive():
            self._cancel(self._ledger.close(request, outcome, error, report))
        for call in self._calls.values():
            call.error = refusal
            call.wake()
        self._calls.clear()
        self.slots.wake()

    def call(self, key: bytes, name: str, args: Sequence[Any]) -> tuple[int, Call]:
        """Send a utility call to the stage process of routing id `key`.

        Raises:
            EncodeError: an argument cannot be sent.
        """
        payload = encode(list(args))
        call = Call(key)
        with self.lock:
            call_id = next(self._call_ids)
            if self._refusal is not None:
                call.error = self._refusal
            else:
                self._calls[call_id] = call
                self._send(key, [Utility(call_id, name, payload.body, len(payload.frames))], payload.frames)
        return call_id, call

    def forget_call(self, call_id: int) -> None:
        """Drop the answer of a call that nobody waits for any more."""
        with self.lock:
            self._calls.pop(call_id, None)

    def _free_id(self) -> str:
        while (request_id := f"request-{next(self._request_numbers)}") in self._ledger:
            pass
        return request_id

    def _apply(self, proc: StageProc, messages: list[FromStage], frames: list[zmq.Frame]) -> bool:
        ledger = self._ledger
        forwards: list[Forward] = []
        at, done, fatal = 1, ledger.done, False
        for message in messages:
            if isinstance(message, Out):
                own = frames[at : at + message.frames] if message.frames else ()
                at += message.frames
                forwards += ledger.output(message.request_id, Payload(message.body, own), message.finished)
            elif isinstance(message, End):
                forwards += ledger.end(message.request_id)
            elif isinstance(message, Refused):
                self._cancel(ledger.refuse(message.request_id, message.error))
            elif isinstance(message, Fatal):
                self.last_words[proc.label] = message.error
                fatal = True
            else:
                self._reply(message, frames[at : at + message.frames])
                at += message.frames
        if forwards:
            self._forward(forwards)
        if ledger.done != done:
            self.slots.wake()
        return fatal

    def _reply(self, message: Reply, frames: list[zmq.Frame]) -> None:
        call = self._calls.pop(message.call_id, None)
        if call is None:
            return
        call.error = message.error
        if message.error is None:
            call.answer = Payload(message.body, frames)
        call.wake()

    def _forward(self, forwards: Iterable[Forward]) -> None:
        """Send requests on, all for one stage in one message."""
        batches: dict[bytes, tuple[list[ToStage], list[Any]]] = {}
        for node, engine_id, payload in forwards:
            messages, frames = batches.setdefault(node.key, ([], []))
            messages.append(Add(engine_id, payload.body, len(payload.frames)))
            frames.extend(payload.frames)
        for key, (messages, frames) in batches.items():
            self._send(key, messages, frames)

    def _cancel(self, cancels: Iterable[Cancel]) -> None:
        for node, engine_ids in cancels:
            self._send(node.key, [Abort(engine_ids)], ())

    def _send(self, key: bytes, messages: list[ToStage], frames: Sequence[Any]) -> None:
        try:
            send_message(self._router, header_encoder.encode(messages), frames, to=key)
        except zmq.ZMQError as exc:
            # The stage is dead, which its sentinel tells: its requests fail then.
            log.debug("message_unsent", to=key.decode(), reason=str(exc))
