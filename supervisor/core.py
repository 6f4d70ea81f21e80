"""What runs between a pipeline's start and its end: the parts, wired, and the background thread.

It knows nothing of `Pipeline`, so a pipeline that is dropped can be collected, and takes this with it.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from supervisor.errors import StageDiedError
from supervisor.handshakes import Handshakes
from supervisor.hang_watch import HangWatch, StageWatch
from supervisor.log import log
from supervisor.manager import StageProcManager
from supervisor.membership import Membership
from supervisor.monitor import Monitor
from supervisor.outbox import Outbox
from supervisor.reporter import Reporter
from supervisor.scaling import Scaling
from supervisor.signal_wake import SignalWake
from supervisor.startup import launch
from supervisor.switchboard import Switchboard
from supervisor.teardown import signals_hurry
from supervisor.transport import Transport
from supervisor.turns import Turns
from supervisor.undertaker import Undertaker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stage.codec import Payload
    from stage.protocol import Injection
    from supervisor.config import PipelineConfig
    from supervisor.ledger import Request
    from supervisor.stage_proc import StageProc


class Core:
    """Start every stage, and keep the pipeline going until `close`.

    Args:
        config: what to start.
        report_dir: where reports of deaths go as JSON files, or None.
        injections: faults to act out, by `stage/replica`.
        stop_fd: an eventfd that becomes readable when the user asks to stop, or None.

    Raises:
        StartupError: a stage did not become ready.
        StopRequestedError: `stop_fd` became readable before every stage was ready.
    """

    def __init__(
        self,
        config: PipelineConfig,
        report_dir: Path | None,
        injections: Mapping[str, Injection],
        stop_fd: int | None,
    ) -> None:
        self._closing = threading.Lock()
        self._closed = False
        self._owner_pid = os.getpid()
        self.reporter = Reporter(report_dir)
        with ExitStack() as opened:
            self.manager = StageProcManager(config, stop_fd)
            opened.callback(self.manager.close)
            transport = Transport(self.manager)
            opened.callback(transport.close)
            handshakes = Handshakes(config, transport, injections)
            with launch(self.manager, transport, self.reporter, handshakes):
                self.switchboard = Switchboard(config, Outbox(transport.router, transport.strays))
            hang_watch = _watch_for_hangs(config, self.manager.procs, self.switchboard.outbox)
            if hang_watch is not None:
                opened.callback(hang_watch.close)
            signal_wake = SignalWake()
            opened.callback(signal_wake.close)
            self._monitor = Monitor(
                self.manager.procs,
                transport.pulls,
                self.switchboard.on_message,
                self.switchboard.give_up,
                stop_fd,
                self._stop,
                hang_watch,
                signal_wake,
            )
            opened.callback(self._monitor.close)
            # Once more, so that it comes first: a stage flushes its last messages into sockets that are still open.
            opened.callback(self.manager.close)
            self.turns = Turns(self._monitor, self.switchboard.outbox, self.switchboard.lock)
            membership = Membership(self.manager, self._monitor, self.switchboard, handshakes)
            self._monitor.listen(transport.handshake, membership.hear)
            self.scaling = Scaling(
                self.manager, transport, handshakes, self._monitor, self.switchboard, membership, self.turns
            )
            self._undertaker = Undertaker(self.manager, self._monitor, self.switchboard, self.reporter, membership)
            parts = (self.turns, self._monitor, self.switchboard, self._undertaker)
            self._thread = threading.Thread(target=_watch, args=parts, name="pipeline-watch", daemon=True)
            self._thread.start()
            self._opened = opened.pop_all()

    def submit(self, request: Request, payload: Payload) -> None:
        """Send a request off, once there is a slot for it.

        Raises:
            ValueError: a request of this id is alive.
            StageDiedError: a stage has died.
            RuntimeError: the pipeline is stopping or closed.
        """
        switchboard = self.switchboard
        while not switchboard.open(request, payload):
            self.raise_refusal()
            self.turns.wait(switchboard.slots, switchboard.has_slot)

    def raise_refusal(self) -> None:
        """Raise why nothing is accepted any more, if so."""
        if self.switchboard.died is not None:
            raise StageDiedError(self.switchboard.died)
        if (refusal := self.switchboard.refusal()) is not None:
            raise RuntimeError(refusal)

    def close(self) -> None:
        """Abort what is under way, stop the stages, close the sockets; do it once."""
        if os.getpid() != self._owner_pid:
            return
        if threading.current_thread() is self._thread:
            # A log handler that closes, say: this thread is in the middle of a death, and is waited for below.
            threading.Thread(target=self.close, name="pipeline-close").start()
            return
        with signals_hurry(self.manager.hurry), self._closing:
            if self._closed:
                return
            self._closed = True
            self.switchboard.close("the pipeline is closed")
            self.turns.end()
            self._thread.join()
            try:
                self._undertaker.bury_rest()
            finally:
                self.switchboard.outbox.wake = None
                self._opened.close()
        log.info("pipeline_stopped")

    def _stop(self, times: int) -> None:
        self.switchboard.close("the pipeline was asked to stop")
        self.manager.stops.add(times)


def _watch_for_hangs(config: PipelineConfig, procs: list[StageProc], outbox: Outbox) -> HangWatch | None:
    """Watch the stages that have a `step_timeout_s`; None if none has."""
    limits = {stage.name: stage.step_timeout_s for stage in config.stages}
    replicas = [proc for proc in procs if proc.role == "stage"]
    watches = [StageWatch(proc, limit) for proc in replicas if (limit := limits[proc.stage]) is not None]
    outbox.watches = {watch.proc.label.encode(): watch for watch in watches}
    return HangWatch(watches) if watches else None


def _watch(turns: Turns, monitor: Monitor, switchboard: Switchboard, undertaker: Undertaker) -> None:
    try:
        turns.run_background()
        while monitor.dying and not undertaker.bury():
            turns.resume()
            turns.run_background()
    except BaseException:
        # A fault of ours: nobody may be left waiting for results that cannot come any more.
        log.exception("pipeline_failed")
        switchboard.close("the supervisor has failed, see its log")
        raise
