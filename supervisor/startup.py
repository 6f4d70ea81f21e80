"""The start of a pipeline: from the spawn of every process to its READY, under one deadline.

One Poller over the handshake socket, the input ROUTER, and a sentinel and a pidfd for each process. Messages are read
before an EOF is believed: a stage's last word may be readable only after its death is.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import zmq

from stage.black_box import PHASES
from stage.sockets import milliseconds, readable, receive_frames
from supervisor.autopsy import convict, examine, has_failed
from supervisor.errors import StartupError, StopRequestedError
from supervisor.lifecycle import State
from supervisor.log import log
from supervisor.monitor import DRAIN_S
from supervisor.teardown import ECHO_S, SETTLE_S, is_excused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stage.protocol import Failed
    from supervisor.handshakes import Handshakes
    from supervisor.manager import StageProcManager
    from supervisor.report import Evidence
    from supervisor.reporter import Reporter
    from supervisor.stage_proc import StageProc
    from supervisor.transport import Transport

PROGRESS_S = 5.0


@contextmanager
def launch(
    manager: StageProcManager,
    transport: Transport,
    reporter: Reporter,
    handshakes: Handshakes,
) -> Iterator[None]:
    """Spawn the stages, let the caller prepare while they import, and wait until every one is READY.

    Args:
        manager: owns the processes; closed if anything fails.
        transport: the bound sockets.
        reporter: publishes the report of a stage that did not start.
        handshakes: answers the processes.

    Raises:
        StartupError: a stage failed, died, or was not ready within `startup_timeout_s`.
        StopRequestedError: the user has asked to stop.
    """
    deadline = time.monotonic() + manager.config.startup_timeout_s
    try:
        manager.start()
        yield
        _Startup(manager, transport, reporter, handshakes, deadline).run()
    except BaseException:
        manager.close()
        raise


class _Startup:
    def __init__(
        self,
        manager: StageProcManager,
        transport: Transport,
        reporter: Reporter,
        handshakes: Handshakes,
        deadline: float,
    ) -> None:
        self._manager = manager
        self._transport = transport
        self._reporter = reporter
        self._handshakes = handshakes
        for proc in manager.procs:
            self._handshakes.expect(proc)
        self._stop_fd = manager.stops.fd
        self._deadline = deadline
        self._dying: StageProc | None = None
        self._end_by: float | None = None
        self._progress_at = time.monotonic() + PROGRESS_S
        self._procs = {proc.label.encode(): proc for proc in manager.procs}
        # A ROUTER can address only who has spoken on it: READY alone is not enough.
        self._silent = set(self._procs)
        self._poller = zmq.Poller()
        # Which fd tells the end of which process: two for each.
        self._ends = {proc.pidfd: proc for proc in manager.procs}
        self._ends |= {proc.process.sentinel: proc for proc in manager.procs}
        for item in (transport.handshake, transport.router, *self._ends):
            self._poller.register(item, zmq.POLLIN)
        if self._stop_fd is not None:
            self._poller.register(self._stop_fd, zmq.POLLIN)

    def run(self) -> None:
        while not self._all_ready():
            ready = dict(self._poller.poll(self._next_timeout_ms()))
            self._read_messages()
            if self._stop_fd is not None and self._stop_fd in ready:
                self._stop()
            # A sentinel of a dead process shows POLLERR, not POLLIN: membership counts.
            for fd, proc in self._ends.items():
                if fd in ready:
                    self._give_up(proc)
            if time.monotonic() >= self._deadline and not self._all_ready():
                self._give_up_waiting()

    def _all_ready(self) -> bool:
        return not self._silent and not self._late()

    def _late(self) -> list[StageProc]:
        late = [proc for proc in self._procs.values() if proc.state is not State.READY]
        return late or [self._procs[label] for label in sorted(self._silent)]

    def _next_timeout_ms(self) -> int:
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            for proc in self._late():
                log.info(
                    "stage_starting",
                    stage=proc.stage,
                    replica=proc.replica,
                    pid=proc.pid,
                    phase=proc.read_box().phase,
                    left_s=round(self._deadline - now, 1),
                )
        return milliseconds(min(self._deadline, self._progress_at) - now)

    def _read_messages(self) -> None:
        for socket, take in ((self._transport.router, self._hear), (self._transport.handshake, self._answer)):
            while readable(socket):
                identity, *rest = receive_frames(socket, zmq.NOBLOCK)
                take(identity.bytes, rest[-1].bytes if rest else b"")

    def _hear(self, identity: bytes, _content: bytes) -> None:
        self._silent.discard(identity)

    def _answer(self, identity: bytes, content: bytes) -> None:
        failure = self._handshakes.answer(identity, content)
        # What others say while we wait for the last words of one that has died comes after its death.
        if failure is not None and self._dying in {None, failure[0]}:
            self._give_up(*failure)

    def _give_up(self, proc: StageProc, failed: Failed | None = None) -> NoReturn:
        """Report a stage that has failed or died."""
        if failed is None:
            self._dying = proc
            self._read_late_messages()
            if is_excused(proc, self._manager.stops, time.monotonic() + ECHO_S):
                self._stop()
        self._fail(proc, self._examine(proc, None if failed is None else failed.error.message))

    def _stop(self) -> NoReturn:
        self._manager.stops.read()
        raise StopRequestedError("stopped before every stage was ready")

    def _give_up_waiting(self) -> NoReturn:
        """Report the stage that is furthest behind: a replica that only waits for the others of its stage is not."""
        late = f"it was not ready within {self._manager.config.startup_timeout_s:g} s (startup_timeout_s)"
        proc = min(self._late(), key=lambda proc: PHASES.index(proc.read_box().phase))
        self._fail(proc, convict(proc, "startup_timeout", late))

    def _fail(self, first: StageProc, evidence: Evidence) -> NoReturn:
        """Report the first failure, and what has died besides; `launch` takes the others down."""
        report = self._reporter.build(evidence, [], None)
        self._reporter.publish(report)
        for proc in self._procs.values():
            # Who else has died by now was not asked to either.
            if proc is not first and not proc.asked_to_stop and has_failed(proc):
                self._reporter.publish(self._reporter.build(self._examine(proc, None), [], first.label))
        raise StartupError(report)

    def _examine(self, proc: StageProc, said: str | None) -> Evidence:
        if self._end_by is None:
            self._end_by = time.monotonic() + self._manager.config.shutdown_timeout_s
        if not proc.wait_end(SETTLE_S):
            self._manager.ask_to_end([proc], self._end_by)
        return examine(proc, said, self._end_by, self._manager.stops)

    def _read_late_messages(self) -> None:
        """Let the last words of a dead stage arrive; a FATAL among them ends the start there."""
        until = time.monotonic() + DRAIN_S
        while (left := until - time.monotonic()) > 0:
            self._transport.handshake.poll(milliseconds(left))
            self._read_messages()
