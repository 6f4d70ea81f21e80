"""The two IO threads of a stage process: each owns its sockets, and nobody else touches them.

Both end by themselves: the input thread when the zmq context shuts down, the output thread after the busy loop's last
word. Any other end is an error of the stage, told through `on_death`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from stage.codec import EncodeError, TooLargeError, check_size, decode, encode
from stage.engine import Output
from stage.names import name_thread
from stage.protocol import (
    Abort,
    Add,
    End,
    Fatal,
    FromStage,
    Out,
    Refused,
    Reply,
    ToStage,
    Utility,
    header_encoder,
    to_stage_decoder,
)
from stage.sockets import Context, open_socket, receive_frames, send_message
from stage.strays import Strays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from queue import SimpleQueue

    from stage.group_link import GroupLink

    Message = tuple[str, Any]
    Emit = tuple[Any, ...]

MAX_BATCH = 256
"""Outputs in one frame at most, so that the first of a burst does not wait for all the others to be encoded."""

READY_STEP_S = 0.5
"""How often a start that waits for a thread sees whether it is alive, and tells what it waits for."""

_log = logging.getLogger(__name__)
_LAST_WORDS = ("shutdown", "fatal")
_NO_BODY = b"\xc0"


class IOThread:
    """A daemon thread around `body(ready)` that reports its own death.

    Args:
        kind: `input` or `output`.
        name: what a person sees, such as `asr/0-input`.
        body: runs on the thread and sets `ready` once its socket stands; it returns when it has nothing more to do.
        on_death: called on the thread with the exception that ended it early.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        body: Callable[[threading.Event], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._kind = kind
        self._ready = threading.Event()
        self._thread = threading.Thread(target=_guard, args=(name, body, self._ready, on_death), name=name, daemon=True)

    def start(self, waits_for: str | None = None) -> None:
        """Start the thread and return once it is ready.

        Args:
            waits_for: what it waits for before, if that may take its time: for the log.

        Raises:
            RuntimeError: it died before it was ready.
        """
        self._thread.start()
        while not self._ready.wait(READY_STEP_S):
            # The wait is bounded by the thread's life; the whole start is bounded by the supervisor's deadline.
            if not self._thread.is_alive():
                break
            if waits_for is not None:
                print(f"{self._thread.name}: waiting for {waits_for}", flush=True)  # noqa: T201 (into the stage's log)
        if not self._ready.is_set():
            raise RuntimeError(f"{self._kind} thread died during startup")

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end, so long; one that was never started has none."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)


def _guard(
    name: str,
    body: Callable[[threading.Event], None],
    ready: threading.Event,
    on_death: Callable[[BaseException], None],
) -> None:
    name_thread(name)
    try:
        body(ready)
    except zmq.ContextTerminated:
        return
    except BaseException as exc:
        on_death(exc)


def run_input(
    context: Context,
    address: str,
    identity: bytes,
    input_queue: SimpleQueue[Message],
    output_queue: SimpleQueue[Emit],
    link: GroupLink | None,
    ready: threading.Event,
) -> None:
    """Decode what the supervisor sends into `input_queue`, until the context shuts down.

    With a `link`, which a stage of one replica has not, hear the coordinator too; `ready` is then set when every
    replica listens.
    """
    with ExitStack() as opened:
        socket = opened.enter_context(open_socket(context, zmq.DEALER, connect=address, identity=identity))
        # A ROUTER cannot address a peer that has not spoken on this very socket.
        socket.send(b"")
        if link is not None:
            opened.enter_context(link.open_listener(context))
            link.join(socket)
        ready.set()
        strays = Strays(partial(_log.warning, "dropped messages that are none of ours, the last since %s: %d"))
        while True:
            frames = receive_frames(socket) if link is None else link.receive(socket, input_queue)
            try:
                messages = to_stage_decoder.decode(frames[0].buffer)
            except (msgspec.DecodeError, RecursionError) as exc:
                strays.add(str(exc))
                continue
            if sum([message.frames for message in messages]) != len(frames) - 1:
                strays.add("its header and its frames do not match")
                continue
            requests = _queue_messages(messages, frames, input_queue, output_queue)
            if link is not None:
                link.received(requests, output_queue)


def _queue_messages(
    messages: list[ToStage],
    frames: Sequence[zmq.Frame],
    input_queue: SimpleQueue[Message],
    output_queue: SimpleQueue[Emit],
) -> int:
    """Decode and queue; return how many requests were among them."""
    at, requests = 1, 0
    for message in messages:
        if isinstance(message, Abort):
            input_queue.put(("ABORT", message.request_ids))
            continue
        own: Sequence[Any] = ()
        if message.frames:
            own = [frame.buffer for frame in frames[at : at + message.frames]]
            at += message.frames
        try:
            data = decode(message.body, own)
        except Exception as exc:
            output_queue.put(_undecodable(message, exc))
            input_queue.put(("ABORT", []))  # asks for nothing, but this message counts as handled (see WatchedEngine)
            continue
        if isinstance(message, Add):
            input_queue.put(("ADD", (message.request_id, data)))
            requests += 1
        else:
            input_queue.put(("UTILITY", (message.call_id, message.name, tuple(data))))
    return requests


def _undecodable(message: Add | Utility, exc: Exception) -> Emit:
    if isinstance(message, Add):
        return ("refused", message.request_id, f"its data cannot be decoded: {exc!r}")
    return ("utility", message.call_id, None, f"its arguments cannot be decoded: {exc!r}")


def run_output(
    context: Context,
    address: str,
    output_queue: SimpleQueue[Emit],
    input_queue: SimpleQueue[Message],
    before_fatal: Callable[[], None],
    flush_timeout_s: float,
    max_bytes: int,
    link: GroupLink | None,
    ready: threading.Event,
) -> None:
    """Send what the busy loop emits, all that is at hand in one message, up to its last word.

    `before_fatal` is called before a `fatal` leaves: who reads it may look into the black box at once. What is for the
    coordinator leaves by `link`.
    """
    socket = open_socket(context, zmq.PUSH, connect=address)
    teller = None if link is None else link.open_teller(context)
    try:
        ready.set()
        last = False
        while not last:
            batch = [output_queue.get() if link is None else link.next_emit(output_queue)]
            while len(batch) < MAX_BATCH and not output_queue.empty():
                batch.append(output_queue.get_nowait())
            last = batch[-1][0] in _LAST_WORDS
            if batch[-1][0] == "fatal":
                before_fatal()
            if link is not None:
                batch = link.divert(batch)
            header, frames = encode_batch(batch, input_queue, max_bytes)
            if header:
                send_message(socket, header_encoder.encode(header), frames)
    finally:
        socket.close(linger=int(flush_timeout_s * 1000))
        if teller is not None:
            teller.close(linger=0)


def encode_batch(
    batch: Sequence[Emit], input_queue: SimpleQueue[Message], max_bytes: int
) -> tuple[list[FromStage], list[Any]]:
    """Encode emits for one message: its header and its payload frames.

    An output that cannot be encoded, or is larger than `max_bytes`, fails its request alone, and the engine is told to
    drop it.
    """
    header: list[FromStage] = []
    frames: list[Any] = []
    for emit in batch:
        kind = emit[0]
        if kind == "output":
            message = _encode_output(emit[1], frames, input_queue, max_bytes)
            if message is not None:
                header.append(message)
        elif kind == "utility":
            header.append(_encode_reply(emit, frames, max_bytes))
        elif kind == "refused":
            header.append(Refused(emit[1], emit[2]))
        elif kind == "fatal":
            header.append(Fatal(emit[1]))
    return header, frames


def _encode_output(out: Any, frames: list[Any], input_queue: SimpleQueue[Message], max_bytes: int) -> FromStage | None:
    if not isinstance(out, Output) or not isinstance(out.request_id, str):
        wrong = f"step() returned {out!r:.200} where it must be stage.Output(request_id: str, data, finished)"
        input_queue.put(("EXECUTOR_FAILED", wrong))
        return None
    request_id, data, finished = out
    if data is None:
        return End(request_id) if finished else None
    try:
        payload = encode(data)
        if payload.frames or len(payload.body) > max_bytes:
            check_size(payload, max_bytes, "an output of the engine")
    except (EncodeError, TooLargeError) as exc:
        input_queue.put(("ABORT", (request_id,)))
        return Refused(request_id, f"an output of the engine {exc}" if isinstance(exc, EncodeError) else str(exc))
    frames.extend(payload.frames)
    return Out(request_id, payload.body, len(payload.frames), bool(finished))


def _encode_reply(emit: Emit, frames: list[Any], max_bytes: int) -> Reply:
    _, call_id, result, error = emit
    if error is not None:
        return Reply(call_id, _NO_BODY, 0, error)
    try:
        payload = encode(result)
        check_size(payload, max_bytes, "the result")
    except EncodeError as exc:
        return Reply(call_id, _NO_BODY, 0, f"the result {exc}")
    except TooLargeError as exc:
        return Reply(call_id, _NO_BODY, 0, str(exc))
    frames.extend(payload.frames)
    return Reply(call_id, payload.body, len(payload.frames), None)
