"""The messages of a group: between a stage's replicas, their coordinator, and the supervisor.

A replica pushes to the coordinator, which publishes to all replicas at once and tells the supervisor what it needs to
know. All of them are small, and none carries a payload.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

SUBSCRIBE = b"\x01"
"""What an XSUB sends, as zmq wants it, to subscribe to all that is published."""


class Load(msgspec.Struct, array_like=True, tag="load"):
    """A replica's requests: how many wait to be added to its engine, and how many its engine has."""

    replica: int
    waiting: int
    running: int


class NeedWave(msgspec.Struct, array_like=True, tag="need_wave"):
    """A replica has work, and the wave of this number, the next one as far as it knows, has not begun."""

    replica: int
    wave: int


class Vote(msgspec.Struct, array_like=True, tag="vote"):
    """A replica has taken the last step of a round, and says whether it has work left."""

    replica: int
    wave: int
    round: int
    has_work: bool


class GroupReady(msgspec.Struct, array_like=True, tag="ready"):
    """Every replica listens; whoever hears it may become READY."""


class Members(msgspec.Struct, array_like=True, tag="members"):
    """The replicas of the group from now on."""

    replicas: list[int]


class StartWave(msgspec.Struct, array_like=True, tag="start_wave"):
    """All step from now on."""

    wave: int


class Verdict(msgspec.Struct, array_like=True, tag="verdict"):
    """The same for all that have voted: whether the wave goes on for another round, or has ended."""

    wave: int
    round: int
    goes_on: bool


class Loads(msgspec.Struct, array_like=True, tag="loads"):
    """The last `waiting` and `running` of each replica."""

    frames: ClassVar[int] = 0
    loads: dict[int, tuple[int, int]]


class WaveStarted(msgspec.Struct, array_like=True, tag="wave_started"):
    """A wave has begun."""

    frames: ClassVar[int] = 0
    wave: int


class WaveEnded(msgspec.Struct, array_like=True, tag="wave_ended"):
    """A wave has ended: all replicas were idle."""

    frames: ClassVar[int] = 0
    wave: int


ToCoordinator = Load | NeedWave | Vote
ToReplicas = GroupReady | Members | StartWave | Verdict
ToSupervisor = Loads | WaveStarted | WaveEnded

group_encoder = msgspec.msgpack.Encoder()
to_coordinator_decoder: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
to_replicas_decoder: msgspec.msgpack.Decoder[ToReplicas] = msgspec.msgpack.Decoder(ToReplicas)
members_decoder: msgspec.msgpack.Decoder[list[Members]] = msgspec.msgpack.Decoder(list[Members])
