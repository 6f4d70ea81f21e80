"""The messages between the supervisor and a stage process or a coordinator: every type that a header frame may hold.

A data message is one header frame, a msgpack list of the structs below, followed by the frames of their payloads in
order; each struct says in `frames` how many are its own. Nothing on a wire is pickled. `body` is a payload that stays
encoded: the supervisor passes it on unread.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from stage.group_protocol import Loads, Members, WaveEnded, WaveStarted


class Add(msgspec.Struct, array_like=True, tag="add", gc=False):
    """A request for the engine; `frames` is the number of payload frames that belong to it."""

    request_id: str
    body: bytes
    frames: int


class Abort(msgspec.Struct, array_like=True, tag="abort", gc=False):
    """Requests that the engine shall forget."""

    frames: ClassVar[int] = 0
    request_ids: list[str]


class Utility(msgspec.Struct, array_like=True, tag="utility", gc=False):
    """A call of `Engine.utility`; the payload is the list of its arguments."""

    call_id: int
    name: str
    body: bytes
    frames: int


class Out(msgspec.Struct, array_like=True, tag="out", gc=False):
    """One `Output` that carries data."""

    request_id: str
    body: bytes
    frames: int
    finished: bool


class End(msgspec.Struct, array_like=True, tag="end", gc=False):
    """An `Output` without data that finishes its request."""

    frames: ClassVar[int] = 0
    request_id: str


class Refused(msgspec.Struct, array_like=True, tag="refused", gc=False):
    """The engine, or the codec, refused this request alone."""

    frames: ClassVar[int] = 0
    request_id: str
    error: str


class Reply(msgspec.Struct, array_like=True, tag="reply", gc=False):
    """The answer to a `Utility`: a payload, or the repr of an exception."""

    call_id: int
    body: bytes
    frames: int
    error: str | None


class Fatal(msgspec.Struct, array_like=True, tag="fatal", gc=False):
    """The busy loop has ended with this error; the details are in the stage's black box."""

    frames: ClassVar[int] = 0
    error: str


ToStage = Add | Abort | Utility
ToProcess = ToStage | Members
FromStage = Out | End | Refused | Reply | Fatal | Loads | WaveStarted | WaveEnded
"""The last three come from a coordinator."""


class ErrorRecord(msgspec.Struct, frozen=True):
    """The first error of a stage, as text only: an exception of its own class may not survive a journey.

    Args:
        cause: `fatal` or `io_thread`.
        phase: where the stage was.
        error_type: the exception's qualified class name.
        message: its text, capped.
        traceback: the whole chain, capped.
    """

    cause: str
    phase: str
    error_type: str
    message: str
    traceback: str


class Hello(msgspec.Struct, tag="HELLO"):
    """The first word of a stage process, or of a coordinator, on the handshake socket."""

    stage: str
    replica: int | None
    pid: int


class Init(msgspec.Struct, tag="INIT"):
    """All that a stage needs to become ready.

    Args:
        engine: import path, `package.module:ClassName`.
        args: the engine's keyword arguments.
        env: variables to set before the engine is imported.
        cpus: processor numbers to run on; None leaves them as they are.
        import_path: directories to look for the engine in, first ones first.
        input_address: endpoint that the input thread connects to.
        output_address: endpoint that the output thread connects to.
        shutdown_timeout_s: how long the stage may take to end.
        watched: True if the supervisor watches for calls that hang.
        max_payload_bytes: the size from which on an output, or the result of a utility, is not sent.
        injection: a fault to act out, or None.
        group: how to reach the coordinator, or None for a stage of one replica.
    """

    engine: str
    args: dict[str, Any]
    env: dict[str, str]
    cpus: list[int] | None
    import_path: list[str]
    input_address: str
    output_address: str
    shutdown_timeout_s: float
    watched: bool
    max_payload_bytes: int
    injection: Injection | None
    group: GroupAddresses | None


class GroupAddresses(msgspec.Struct):
    """Where a coordinator is met.

    Args:
        publish: endpoint from which it publishes to every replica.
        collect: endpoint at which it collects what they tell.
        lockstep: True if the replicas step together.
    """

    publish: str
    collect: str
    lockstep: bool


class GroupInit(msgspec.Struct, tag="GROUP"):
    """All that a coordinator needs to become ready.

    Args:
        group: what to bind.
        replicas: the numbers of those that the group begins with.
        input_address: endpoint of the supervisor's that tells of members.
        output_address: endpoint of the supervisor's that takes what the coordinator tells.
    """

    group: GroupAddresses
    replicas: list[int]
    input_address: str
    output_address: str


class Injection(msgspec.Struct, frozen=True):
    """A fault that a stage acts out on itself, to show what a death looks like.

    Args:
        action: one of `stage.injection.ACTIONS`.
        after_s: seconds after READY, or None.
        step: the number of the step, counted from 1, or None.
    """

    action: str
    after_s: float | None = None
    step: int | None = None


class Ready(msgspec.Struct, tag="READY"):
    """The engine is built and the IO threads are up."""


class Failed(msgspec.Struct, tag="FATAL"):
    """The stage could not become ready."""

    error: ErrorRecord


Handshake = Hello | Ready | Failed

header_encoder = msgspec.msgpack.Encoder()
to_stage_decoder: msgspec.msgpack.Decoder[list[ToStage]] = msgspec.msgpack.Decoder(list[ToStage])
from_stage_decoder: msgspec.msgpack.Decoder[list[FromStage]] = msgspec.msgpack.Decoder(list[FromStage])
handshake_decoder: msgspec.msgpack.Decoder[Handshake] = msgspec.msgpack.Decoder(Handshake)
init_decoder: msgspec.msgpack.Decoder[Init] = msgspec.msgpack.Decoder(Init)
group_init_decoder: msgspec.msgpack.Decoder[GroupInit] = msgspec.msgpack.Decoder(GroupInit)
