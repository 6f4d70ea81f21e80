"""The switchboard: applies what arrives to the ledger and sends on what follows from it, under one lock.

It owns the ledger and the utility calls that wait; any thread may call it. Headers are decoded here,
payloads never: their frames go on to the next stage as they came.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from stage.codec import Payload
from stage.group_protocol import Loads, WaveEnded, WaveStarted
from stage.names import label_of
from stage.protocol import End, Fatal, Out, Refused, from_stage_decoder
from supervisor.calls import Calls
from supervisor.ledger import AliveError, Ledger
from supervisor.log import log
from supervisor.process_strays import ProcessStrays
from supervisor.seats import Seat
from supervisor.stage_graph import build_graph
from supervisor.turns import Waitable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from stage.protocol import FromStage
    from supervisor.calls import Call
    from supervisor.config import PipelineConfig
    from supervisor.hang_watch import StageWatch
    from supervisor.ledger import OutcomeName, Request
    from supervisor.outbox import Outbox
    from supervisor.report import StageDeathReport
    from supervisor.stage_proc import StageProc


class Slots(Waitable):
    """What a caller waits for while `max_in_flight` requests are under way."""

    def __init__(self) -> None:
        self.tokens = ()


class Switchboard:
    """Route requests, outputs, aborts and utility calls.

    Args:
        config: gives the graph of stages and `max_in_flight`.
        outbox: takes what the stages must be sent; from now on used under `lock` only.
    """

    def __init__(self, config: PipelineConfig, outbox: Outbox) -> None:
        self.lock = threading.Lock()
        self.outbox = outbox
        outbox.on_torn = self._give_up
        self.slots = Slots()
        """Changes whenever a request ends."""
        self.dependents: list[Waitable] = []
        """Woken when nothing is accepted any more: a run without requests under way would not notice."""
        self.died: StageDeathReport | None = None
        self.last_words: dict[str, str] = {}
        """The error text of each `fatal` message, by `stage/replica`."""
        self._ledger = Ledger(build_graph(config), outbox)
        self._max_in_flight = config.max_in_flight
        self._calls = Calls(
            label_of(stage.name, replica).encode() for stage in config.stages for replica in range(stage.replicas)
        )
        self._refusal: str | None = None
        self._request_numbers = count(1)
        self._strays = ProcessStrays()

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._ledger.requests)

    @property
    def done(self) -> int:
        """Requests that have ended."""
        return self._ledger.done

    def has_slot(self) -> bool:
        """True if a request need not wait, be it because it will be refused."""
        return len(self._ledger.requests) < self._max_in_flight or self._refusal is not None

    def refusal(self) -> str | None:
        """Why no request is accepted any more, or None."""
        return self._refusal

    def new_id(self) -> str:
        """Make up an id for a request without one."""
        while (request_id := f"request-{next(self._request_numbers)}") in self._ledger.requests:
            pass
        return request_id

    def open(self, request: Request, payload: Payload) -> bool:
        """Accept a request and send it off; False if there is no slot, or none will be.

        Raises:
            ValueError: a request of this id is alive.
        """
        with self.lock:
            if self._refusal is not None or len(self._ledger.requests) >= self._max_in_flight:
                return False
            try:
                self._ledger.open(request, payload)
                self.outbox.dispatch()
            except AliveError:
                raise
            except BaseException as exc:
                self._give_up(exc)
                raise
            return True

    def on_message(self, proc: StageProc, frames: list[zmq.Frame]) -> bool:
        """Apply a message from a stage; True if it was its `fatal`."""
        try:
            messages = from_stage_decoder.decode(frames[0].buffer)
        except (msgspec.DecodeError, RecursionError) as exc:
            return self._drop(proc, str(exc))
        if sum([message.frames for message in messages]) != len(frames) - 1:
            return self._drop(proc, "its header and its frames do not match")
        with self.lock:
            done = self._ledger.done
            fatal = self._apply(proc, messages, frames)
            if self._ledger.strangers:
                self._warn_of_strangers(proc)
            if self.slots.tokens and self._ledger.done != done:
                self.slots.wake()
            return fatal

    def abort(self, request: Request) -> None:
        """End a request as aborted, in every stage."""
        with self.lock:
            try:
                self._ledger.close(request, "aborted")
                self.slots.wake()
                self.outbox.flush()
                self.outbox.ring()
            except BaseException as exc:
                self._give_up(exc)
                raise

    def look_again(self) -> None:
        """Let whoever waits for a slot check again what it waits for."""
        with self.lock:
            self.slots.wake()
            self.outbox.ring()

    def close(self, refusal: str) -> None:
        """Accept nothing any more, and end all that is under way as aborted."""
        self._strays.tell_rest()
        with self.lock:
            self._end_all(refusal, "aborted", None, None)

    def lose(self, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        """Accept nothing any more, and end all that is under way as failed.

        Args:
            report_for: makes the report from the ids of the requests that it costs.
        """
        with self.lock:
            report = report_for(list(self._ledger.requests))
            # Before any request ends: who sees its request fail must find the report.
            self.died = report
            self._end_all(report.summary(), "failed", report.summary(), report)
            return report

    def lose_replica(self, proc: StageProc, report_for: Callable[[list[str]], StageDeathReport]) -> StageDeathReport:
        """End what a replica had as failed, and go on without it.

        Args:
            proc: the replica.
            report_for: makes the report from the ids of the requests that it costs.
        """
        key = proc.label.encode()
        with self.lock:
            self._ledger.retire(proc.stage, key)
            requests = self._ledger.requests_at(proc.stage, key)
            report = report_for([request.id for request in requests])
            self._fail(requests, report.summary(), report)
            self._forget(proc, report.summary())
            return report

    def expect(self, proc: StageProc) -> None:
        """Await the first word of a replica that joins."""
        with self.lock:
            self.outbox.newcomers.add(proc.label.encode())

    def watch(self, watch: StageWatch) -> None:
        """Count what is sent to a process that is watched for hangs."""
        with self.lock:
            self.outbox.watches[watch.proc.label.encode()] = watch

    def welcome(self, proc: StageProc, timeout_s: float) -> bool:
        """Let a replica that is READY take requests; False if it has not spoken on the ROUTER within `timeout_s`."""
        assert proc.replica is not None  # noqa: S101 (a coordinator takes none)
        key = proc.label.encode()
        with self.lock:
            if not self.outbox.meets(key, timeout_s):
                return False
            self._ledger.add_seat(proc.stage, Seat(proc.replica, key))
            self._calls.admit(key)
            self.outbox.flush()
            return True

    def takes_requests(self, proc: StageProc) -> bool:
        """True if a process is a replica that takes new requests."""
        with self.lock:
            return self._ledger.has_seat(proc.stage, proc.label.encode())

    def retire(self, proc: StageProc, on_empty: Callable[[], None] | None = None) -> bool:
        """Let a replica take no more requests, and call `on_empty` when it has none; False if it has taken none before.

        `on_empty` is called under the lock.
        """
        with self.lock:
            seat = self._ledger.retire(proc.stage, proc.label.encode())
            if seat is None:
                return False
            seat.on_empty = on_empty
            self.outbox.flush()
            if on_empty is not None and not seat.in_flight:
                on_empty()
            return True

    def fail_at(self, proc: StageProc, error: str) -> None:
        """End as failed what a replica has not finished."""
        with self.lock:
            self._fail(self._ledger.requests_at(proc.stage, proc.label.encode()), error, None)

    def _fail(self, requests: list[Request], error: str, report: StageDeathReport | None) -> None:
        for request in requests:
            self._ledger.close(request, "failed", error, report)
        self.slots.wake()
        self.outbox.flush()
        self.outbox.ring()

    def tell_members(self, stage: str, replicas: list[int]) -> None:
        """Tell a stage's coordinator which replicas there are."""
        with self.lock:
            self.outbox.members(label_of(stage, None).encode(), replicas)
            self.outbox.dispatch()

    def call(self, key: bytes, name: str, payload: Payload) -> tuple[int, Call]:
        """Send a utility call, its arguments encoded, to the stage process of routing id `key`."""
        with self.lock:
            if self._refusal is not None:
                return self._calls.refuse(key, self._refusal)
            call_id, call = self._calls.open(key)
            if call.answered():
                return call_id, call
            try:
                self.outbox.utility(key, call_id, name, payload)
                self.outbox.dispatch()
            except BaseException as exc:
                self._give_up(exc)
                raise
        return call_id, call

    def forget_call(self, call_id: int) -> None:
        """Drop the answer of a call that nobody waits for any more."""
        with self.lock:
            self._calls.forget(call_id)

    def forget(self, proc: StageProc) -> None:
        """Keep nothing of a replica that has left, and fail the utility calls that it has not answered."""
        with self.lock:
            self._forget(proc, f"stage {proc.label!r} has left")

    def _forget(self, proc: StageProc, error: str) -> None:
        key = proc.label.encode()
        self._calls.fail(error, key)
        self._strays.forget(proc)
        self.last_words.pop(proc.label, None)
        self.outbox.forget(key)

    def give_up(self, exc: BaseException) -> None:
        """Accept nothing any more, since a message was cut off: what it said is lost, so nobody may wait for it."""
        with self.lock:
            self._give_up(exc)

    def _give_up(self, exc: BaseException) -> None:
        self.outbox.tear()
        reason = f"the supervisor was cut off in the middle of a change by {type(exc).__name__}"
        self._end_all(reason, "aborted", None, None)

    def _apply(self, proc: StageProc, messages: list[FromStage], frames: list[zmq.Frame]) -> bool:
        ledger = self._ledger
        at, fatal = 1, False
        for message in messages:
            if isinstance(message, Out):
                own: Sequence[zmq.Frame] = ()
                if message.frames:
                    own = frames[at : at + message.frames]
                    at += message.frames
                ledger.output(message.request_id, Payload(message.body, own), message.finished)
            elif isinstance(message, End):
                ledger.end(message.request_id)
            elif isinstance(message, Refused):
                ledger.refuse(message.request_id, message.error)
            elif isinstance(message, Fatal):
                self.last_words[proc.label] = message.error
                fatal = True
            elif isinstance(message, Loads):
                ledger.take_loads(proc.stage, message.loads)
            elif isinstance(message, WaveStarted | WaveEnded):
                event = "wave_started" if isinstance(message, WaveStarted) else "wave_ended"
                log.debug(event, stage=proc.stage, wave=message.wave)
            else:
                self._calls.answer(message, frames[at : at + message.frames])
                at += message.frames
        return fatal

    def _drop(self, proc: StageProc, reason: str) -> bool:
        """Count a message that no stage of ours sends; false, since it is no `fatal`."""
        self._strays.add("message_dropped", proc, reason)
        return False

    def _warn_of_strangers(self, proc: StageProc) -> None:
        ids, self._ledger.strangers = self._ledger.strangers, []
        for request_id in ids:
            reason = f"an Output names request_id {request_id!r:.100}, which was never given to add()"
            self._strays.add("output_dropped", proc, reason)

    def _end_all(self, refusal: str, outcome: OutcomeName, error: str | None, report: StageDeathReport | None) -> None:
        self._refusal = self._refusal or refusal
        for request in list(self._ledger.requests.values()):
            self._ledger.close(request, outcome, error, report)
        self._calls.fail(refusal)
        self.slots.wake()
        for dependent in self.dependents:
            dependent.wake()
        self.outbox.flush()
        self.outbox.ring()
