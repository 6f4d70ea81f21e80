"""The supervisor's side of every handshake: HELLO is answered with all that the process needs, READY is noted.

Whoever polls the handshake socket passes on what comes, while the pipeline starts or while a stage grows.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import zmq

from stage.protocol import Failed, GroupInit, Hello, Init, Injection, Ready, handshake_decoder, header_encoder
from stage.sockets import send_message
from supervisor.lifecycle import Event, State
from supervisor.log import log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stage.protocol import Handshake
    from supervisor.config import PipelineConfig
    from supervisor.stage_proc import StageProc
    from supervisor.transport import Transport


class Handshakes:
    """Answer processes that start.

    Args:
        config: gives their settings.
        transport: has the socket, and the addresses.
        injections: faults to act out, by `stage/replica`.
    """

    def __init__(self, config: PipelineConfig, transport: Transport, injections: Mapping[str, Injection]) -> None:
        self._config = config
        self._transport = transport
        self._injections = injections
        self._stages = {stage.name: stage for stage in config.stages}
        self._procs: dict[bytes, StageProc] = {}
        self.lock = threading.Lock()
        """Held by whoever starts a process while the socket is polled, until that one is expected."""

    def expect(self, proc: StageProc) -> None:
        """Answer this process when it speaks; whom a stage has lost is not expected any more."""
        self._procs = {key: other for key, other in self._procs.items() if not other.has_left}
        self._procs[proc.label.encode()] = proc

    def answer(self, identity: bytes, content: bytes) -> tuple[StageProc, Failed] | None:
        """Answer a message; if it says that a process has failed, return that."""
        with self.lock:
            proc = self._procs.get(identity)
        try:
            message: Handshake = handshake_decoder.decode(content)
        except (msgspec.DecodeError, RecursionError) as exc:
            self._transport.strays.add(str(exc))
            return None
        if proc is None or not _expected(proc, message):
            self._transport.strays.add(f"an unexpected {type(message).__name__} from {identity!r:.100}")
        elif isinstance(message, Hello):
            proc.move(Event.HELLO)
            init = header_encoder.encode(self._init_for(proc) if proc.role == "stage" else self._group_init_for(proc))
            with suppress(zmq.ZMQError):  # dead already: its sentinel will tell
                send_message(self._transport.handshake, init, (), to=identity)
        elif isinstance(message, Ready):
            proc.move(Event.READY)
            log.info(f"{proc.role}_ready", stage=proc.stage, replica=proc.replica, pid=proc.pid)
        else:
            return proc, message
        return None

    def _init_for(self, proc: StageProc) -> Init:
        config = self._config
        stage = self._stages[proc.stage]
        return Init(
            engine=stage.engine,
            args=stage.args,
            env=stage.environment(proc.replica or 0, self._count(proc.stage)),
            cpus=None if stage.cpus is None else list(stage.cpus),
            import_path=list(config.import_path),
            input_address=self._transport.input_address,
            output_address=self._transport.output_addresses[proc.label],
            shutdown_timeout_s=config.shutdown_timeout_s,
            watched=stage.step_timeout_s is not None,
            max_payload_bytes=config.max_request_bytes,
            injection=self._injections.get(proc.label),
            group=self._transport.groups.get(proc.stage),
        )

    def _count(self, stage: str) -> int:
        """How many replicas a stage has by now, those that are starting included."""
        procs = list(self._procs.values())
        return sum(proc.stage == stage and proc.role == "stage" and not proc.asked_to_stop for proc in procs)

    def _group_init_for(self, proc: StageProc) -> GroupInit:
        return GroupInit(
            group=self._transport.groups[proc.stage],
            replicas=list(range(self._stages[proc.stage].replicas)),
            input_address=self._transport.input_address,
            output_address=self._transport.output_addresses[proc.label],
        )


def _expected(proc: StageProc, message: Handshake) -> bool:
    wanted = State.SPAWNED if isinstance(message, Hello) else State.STARTING
    if isinstance(message, Failed):
        return proc.state in {State.SPAWNED, State.STARTING}
    return proc.state is wanted
