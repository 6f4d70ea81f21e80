"""The supervisor of a simulated pipeline: its real parts, put together over simulated stages, sockets and time."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from sim_switchboard import WatchedOutbox, WatchedSwitchboard
from sim_watch import Watch, WatchedCall
from sim_wires import Clock, Inlet, Kernel, Router, Zmq

from stage import recorded_engine
from supervisor import calls, hang_watch, monitor, outbox, teardown, turns, undertaker
from supervisor import core as core_module
from supervisor.autopsy import has_failed
from supervisor.core import Core
from supervisor.lifecycle import Event
from supervisor.membership import Membership
from supervisor.monitor import Monitor
from supervisor.report import Evidence
from supervisor.reporter import Reporter
from supervisor.teardown import is_excused
from supervisor.turns import Turns
from supervisor.undertaker import Undertaker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim_process import SimulatedProcess
    from sim_world import World

    from supervisor.config import PipelineConfig
    from supervisor.report import Cause, StageDeathReport


class Manager:
    """Stands in for `StageProcManager`: ends the simulated processes."""

    def __init__(
        self, world: World, kernel: Kernel, stop_fd: int, config: PipelineConfig, procs: list[SimulatedProcess]
    ) -> None:
        self.config = config
        self.procs = procs
        self.stops = SimpleNamespace(add=self._add_stops, asked_within=self._is_asked_within)
        self.owed: list[str] = []
        """Those whose death could be seen when the others were asked to stop: each needs a report."""
        self.parted: list[str] = []
        """Those that were let go of, in this order."""
        self._world = world
        self._kernel = kernel
        self._stop_fd = stop_fd
        self._closed = self._asked = self._is_told = False

    def _add_stops(self, times: int) -> None:
        self._world.note("supervisor", f"is asked to stop ({times})")
        self._is_told = True

    def _is_asked_within(self, time_s: float) -> bool:
        self._world.wait(lambda: self._is_told or self._kernel.is_readable(self._stop_fd), self._world.now + time_s)
        return self._is_told or self._kernel.is_readable(self._stop_fd)

    def part_with(self, proc: SimulatedProcess) -> None:
        """Let go of a replica that has ended."""
        self.parted.append(proc.label)
        proc.release()

    def hurry(self) -> None:
        """Nobody hurries a history."""

    def ask_to_end(self, spared: list[SimulatedProcess], deadline: float) -> None:
        """Terminate all but `spared`, each once."""
        others = [proc for proc in self.procs if proc not in spared and not proc.asked_to_stop]
        asked = [proc for proc in others if not has_failed(proc)]  # type: ignore[arg-type]
        self._world.note("supervisor", f"asks {len(asked)} to stop, until {deadline:.3f}")
        if not self._asked:
            self.owed = [proc.label for proc in self.procs if proc.is_seen_dead]
        for proc in asked:
            proc.terminate()
        self._asked = True

    def close(self) -> None:
        """Terminate, wait, kill."""
        if self._closed:
            return
        self._closed = True
        self._world.note("supervisor", "stops the stages")
        if not self._asked:
            self.owed = [proc.label for proc in self.procs if proc.is_seen_dead]
        alive = [proc for proc in self.procs if not proc.has_ended]
        for proc in alive:
            proc.terminate()
        self._world.wait(lambda: all(proc.is_seen_dead for proc in alive), self._world.now + 0.02)
        for proc in alive:
            proc.die(-9)
            if not proc.has_ended:
                proc.move(Event.EXIT)


class FilingReporter(Reporter):
    """A reporter that keeps what it publishes."""

    def __init__(self) -> None:
        super().__init__(None)
        self.reports: list[StageDeathReport] = []

    def publish(self, report: StageDeathReport) -> None:
        self.reports.append(report)
        super().publish(report)


class Supervisor:
    """A real `Core` whose processes, sockets and threads are simulated.

    Args:
        world: what it runs in.
        kernel: has the descriptors.
        config: of the pipeline.
        processes: those of its stages, all READY.
        watch: looks on.
    """

    def __init__(
        self, world: World, kernel: Kernel, config: PipelineConfig, processes: list[SimulatedProcess], watch: Watch
    ) -> None:
        procs: Any = processes
        self.stop_fd = kernel.eventfd()
        self.manager = Manager(world, kernel, self.stop_fd, config, processes)
        self.reporter = FilingReporter()
        box = WatchedOutbox(Router({proc.label.encode(): proc.to for proc in processes}), config, watch)
        self.switchboard = WatchedSwitchboard(config, box, watch)
        core = self.core = Core.__new__(Core)
        pulls: Any = {proc.label: Inlet(proc.back) for proc in processes}
        on_message, give_up = self.switchboard.on_message, self.switchboard.give_up
        hangs = core_module._watch_for_hangs(config, procs, box)
        self.monitor = Monitor(procs, pulls, on_message, give_up, self.stop_fd, core._stop, hangs)
        self.switchboard.monitor, self.switchboard.procs = self.monitor, processes
        self.turns = Turns(self.monitor, box, self.switchboard.lock)
        self.turns._away = self._away(world)
        manager: Any = self.manager
        nobody: Any = None  # joins, so nobody greets
        membership = Membership(manager, self.monitor, self.switchboard, nobody)
        self.undertaker = Undertaker(manager, self.monitor, self.switchboard, self.reporter, membership)
        parts = {
            "manager": manager,
            "switchboard": self.switchboard,
            "turns": self.turns,
            "_monitor": self.monitor,
            "_undertaker": self.undertaker,
            "_closing": threading.Lock(),
            "_closed": False,
            "_owner_pid": os.getpid(),
            "_thread": SimpleNamespace(join=bool),
            "_opened": ExitStack(),
        }
        vars(core).update(parts)
        core._opened.callback(manager.close)

    def _away(self, world: World) -> Any:
        """The event by which a stay of the background thread ends early."""

        def wait(timeout: float) -> bool:
            return world.wait(lambda: self.turns.over, world.now + timeout)

        return SimpleNamespace(wait=wait, set=bool, clear=bool)

    def watch_stages(self) -> None:
        """Do what the background thread does, until a stage is dying or the pipeline closes."""
        core_module._watch(self.turns, self.monitor, self.switchboard, self.undertaker)

    def begin_close(self) -> None:
        """Do what another thread does first that closes the pipeline: then it waits for the background thread."""
        self.switchboard.close("the pipeline is closed")
        self.turns.end()


class Autopsy:
    """Stands in for the two ways of `supervisor.autopsy` to an end and its evidence, and keeps who was excused."""

    def __init__(self, world: World) -> None:
        self._world = world

    def is_excused(self, proc: SimulatedProcess, stops: Any, until: float) -> bool:
        """As the real one says."""
        proc.is_excused = is_excused(cast("Any", proc), stops, until)
        return proc.is_excused

    def examine(self, proc: SimulatedProcess, said: str | None, deadline: float, _stops: Any) -> Evidence:
        """Wait for the end, or kill."""
        self._world.wait(lambda: proc.is_seen_dead, deadline)
        return self._gather(proc, said, None)

    def convict(self, proc: SimulatedProcess, verdict: Cause, finding: str) -> Evidence:
        """Kill."""
        self._world.note("supervisor", f"convicts {proc.label}: {finding}")
        self._world.expect(proc.is_stuck, f"{proc.label} is taken for {verdict}, and works: {finding}")
        proc.was_convicted = True
        return self._gather(proc, finding, verdict)

    def _gather(self, proc: SimulatedProcess, said: str | None, verdict: Cause | None) -> Evidence:
        if not proc.wait_end(0):
            proc.die(-9)
            proc.exit_code = proc.status
            proc.move(Event.EXIT)
        return Evidence(
            stage=proc.stage,
            replica=proc.replica,
            pid=proc.pid,
            exit_code=proc.exit_code,
            box=proc.read_box(),
            said=said,
            verdict=verdict,
            stacks=None,
            oom_kills=None,
            uptime_s=1.0,
            log_tail=[],
            log_path="log",
        )


@contextmanager
def installed(world: World, kernel: Kernel) -> Iterator[None]:
    """Let the supervisor's modules see the simulated zmq, kernel, clock and autopsy meanwhile."""
    clock = Clock(world)

    autopsy = Autopsy(world)
    WatchedCall.world = world
    seams: list[tuple[Any, str, Any]] = [
        (monitor, "zmq", Zmq(world, kernel)),
        (monitor, "os", kernel),
        (monitor, "time", clock),
        (outbox, "monotonic", clock.monotonic),
        (calls, "Call", WatchedCall),
        (turns, "time", clock),
        (undertaker, "time", clock),
        (teardown, "time", clock),
        (undertaker, "examine", autopsy.examine),
        (undertaker, "convict", autopsy.convict),
        (undertaker, "is_excused", autopsy.is_excused),
        (hang_watch, "time", clock),
        (hang_watch, "view_cells", lambda cells: cells),
        (recorded_engine, "monotonic_ns", clock.monotonic_ns),
        (logging.getLogger("supervisor"), "disabled", True),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in seams]
    for owner, name, value in seams:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
