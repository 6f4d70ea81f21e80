"""What runs between a pipeline's start and its end: the parts, wired, and the background thread.

It knows nothing of `Pipeline`, so a pipeline that is dropped can be collected, and takes this with it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from supervisor.errors import StageDiedError
from supervisor.log import log
from supervisor.manager import StageProcManager
from supervisor.monitor import Monitor
from supervisor.outbox import Outbox
from supervisor.reporter import Reporter
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
        self.manager = StageProcManager(config, stop_fd)
        self._closing = threading.Lock()
        self._closed = False
        self._owner_pid = os.getpid()
        try:
            self._transport = Transport(self.manager)
        except BaseException:
            self.manager.close()
            raise
        try:
            reporter = Reporter(report_dir)
            with launch(self.manager, self._transport, reporter, injections, stop_fd):
                self.switchboard = Switchboard(config, Outbox(self._transport.router))
            self._monitor = Monitor(
                self.manager.procs,
                self._transport.pulls,
                self.switchboard.on_message,
                self._lose_message,
                stop_fd,
                self._stop,
            )
        except BaseException:
            self.manager.close()
            self._transport.close()
            raise
        self.turns = Turns(self._monitor, self.switchboard.outbox, self.switchboard.lock)
        undertaker = Undertaker(self.manager, self._monitor, self.switchboard, reporter)
        self._thread = threading.Thread(
            target=_watch,
            args=(self.turns, self._monitor, self.switchboard, undertaker),
            name="pipeline-watch",
            daemon=True,
        )
        self._thread.start()

    def submit(self, request: Request, payload: Payload) -> None:
        """Send a request off, once there is a slot for it; an empty id is replaced.

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
        with signals_hurry(self.manager.hurry), self._closing:
            if self._closed:
                return
            self._closed = True
            self.switchboard.close("the pipeline is closed")
            self.turns.end()
            self._thread.join()
            self.manager.close()
            self._monitor.close()
            self._transport.close()
        log.info("pipeline_stopped")

    def _stop(self, times: int) -> None:
        self.switchboard.close("the pipeline was asked to stop")
        self.manager.stops.add(times)

    def _lose_message(self) -> None:
        self.switchboard.close("a message was lost, since an interrupt came while it was handled")


def _watch(turns: Turns, monitor: Monitor, switchboard: Switchboard, undertaker: Undertaker) -> None:
    try:
        turns.run_background()
        if monitor.dying:
            undertaker.bury()
    except BaseException:
        # A fault of ours: nobody may be left waiting for results that cannot come any more.
        log.exception("pipeline_failed")
        switchboard.close("the supervisor has failed, see its log")
        raise
