"""A simulated replica of a stage: the real busy loop and the real bodies of the IO threads, run a little at a time.

Each thread of it is an actor. Where its code would block it is paused by an exception, before it has taken
anything, and is called again from the start of its loop when the scheduler likes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import zmq
from sim_engine import SimulatedEngine
from sim_process import SimulatedProcess
from sim_queue import PausingQueue
from sim_wires import Context, Push, Receiver
from sim_world import Pause

from stage.busy_loop import BusyLoop
from stage.errors_text import safe_repr
from stage.io_threads import run_input, run_output
from stage.recorded_engine import RecordedEngine, WatchedEngine

if TYPE_CHECKING:
    from sim_engine import Fault
    from sim_wires import Kernel
    from sim_world import World

    from supervisor.config import StageConfig

MAX_BYTES = 1_000_000


class SimulatedStage(SimulatedProcess):
    """One replica of a stage.

    Args:
        world: whose actors its threads are.
        kernel: has its descriptors.
        config: of its stage.
        replica: its number.
        fault: what its engine does, or None.
        lingers: it does not end after its engine's error, and must be killed. One that cannot say so, since its output
            thread is gone or there was no error, is a matter for `step_timeout_s`, and is not simulated.
    """

    def __init__(
        self, world: World, kernel: Kernel, config: StageConfig, replica: int, fault: Fault | None, *, lingers: bool
    ) -> None:
        super().__init__(world, kernel, config.name, replica)
        self._fault = fault
        self._watched = config.step_timeout_s is not None
        self._stuck_cells: list[int] = []
        self._lingers = lingers
        self._input_queue, self._output_queue = PausingQueue(), PausingQueue()
        self._given = cast("Any", self._input_queue)
        self._emitted = cast("Any", self._output_queue)
        self.engine = SimulatedEngine(world, config, self.label, self._input_queue, self._strike)
        box: Any = SimpleNamespace(cells=self.box)
        recorded = (WatchedEngine if self._watched else RecordedEngine)(self.engine, box, None)
        self._loop = BusyLoop(recorded, self._given, self._output_queue.put)
        self._dealer = Receiver(self.to)
        self._context: Any = Context({zmq.DEALER: self._dealer, zmq.PUSH: Push(self.back)})
        self._loop_over = self._recorded = False
        self._io_over = {"input": False, "output": False}
        self._add_threads()

    def _add_threads(self) -> None:
        add = self._world.add
        add(f"{self.label} input", self._can_input, self._input)
        add(f"{self.label} loop", self._can_loop, self._run_loop)
        add(f"{self.label} output", self._can_output, self._output)
        add(f"{self.label} main", self._can_end, self._end)

    def _stop(self) -> None:
        self._loop.request_shutdown()

    def get_foreign_signal(self) -> None:
        """Get a SIGTERM that the supervisor knows nothing of."""
        if self.is_alive and not self.asked_to_stop:
            self._world.note(self.label, "gets a SIGTERM from a stranger")
            self._lingers = False
            self.got_signal, self.failed = 15, True
            self._loop.request_shutdown()

    def get_stopped(self) -> None:
        """Get a SIGSTOP: nothing happens inside it any more.

        Only where a hang watch can tell it from a stage that waits for something by itself: with no request in hand
        and no output under way. That it works for nobody then is seen when a message comes.
        """
        at_rest = not (
            self.is_stuck or self.engine.requests or self._output_queue.items or self.back.unsent or self._loop_over
        )
        if self._watched and self.is_alive and at_rest and not self.asked_to_stop:
            self._world.note(self.label, "is stopped")
            self.is_stuck = self._stopped = True

    def lose_thread(self, kind: str) -> None:
        """Let an IO thread die, as `stage.process` tells of it."""
        if self.is_alive and not (self.asked_to_stop or self._io_over[kind] or self.is_stuck):
            self._io_over[kind] = self.failed = True
            self._lingers = False
            self._world.note(self.label, f"loses its {kind} thread")
            self._record("io_thread", OSError("no buffers"))
            self._input_queue.put(("EXECUTOR_FAILED", f"{kind} thread died"))

    def _strike(self, point: str) -> None:
        fault = self._fault
        if fault is None or fault.point != point:
            return
        fault.nth -= 1
        if fault.nth == 0:
            self._world.note(self.label, f"fails in {point}")
            if fault.error is None:
                self.is_stuck, self._stuck_cells = True, list(self.box)
                raise Pause
            if fault.exit_code is not None:
                self.die(fault.exit_code)
            # Caught or not: nothing that a dead process does is seen.
            raise fault.error

    # The busy loop.

    def _can_loop(self) -> bool:
        return (
            self.is_alive
            and not (self._loop_over or self.is_stuck)
            and bool(self._input_queue.items or self.engine.requests)
        )

    def _run_loop(self) -> None:
        self._input_queue.allowance = self._world.rng.randrange(1, 5)
        self.engine.steps_allowed = 1
        last: tuple[str, ...] = ("shutdown",)
        try:
            self._loop._loop()
        except Pause:
            if self.is_stuck:
                # The call never returns, so what is recorded at its end is not.
                self.box[:] = self._stuck_cells
            return
        except BaseException as exc:
            # As `BusyLoop.run` does it, which has no place to pause.
            self._loop.error = exc.with_traceback(None)
            last = ("fatal", safe_repr(exc))
        self._loop_over, self._phase = True, "stopping"
        self.failed = self.failed or not self.asked_to_stop
        self._world.note(self.label, f"loop ends: {last}")
        self._output_queue.put(last)

    # The IO threads.

    def _can_input(self) -> bool:
        return self.is_alive and bool(self.to.arrived) and not (self._io_over["input"] or self._stopped)

    def _input(self) -> None:
        self._dealer.allowance = self._world.rng.randrange(1, 4)
        ready: Any = SimpleNamespace(set=bool)
        try:
            run_input(self._context, "input", self.label.encode(), self._given, self._emitted, None, ready)
        except Pause:
            return

    def _can_output(self) -> bool:
        return self.is_alive and bool(self._output_queue.items) and not (self._io_over["output"] or self._stopped)

    def _output(self) -> None:
        self._output_queue.allowance = self._world.rng.randrange(1, 6)
        ready: Any = SimpleNamespace(set=bool)
        try:
            run_output(
                self._context, "output", self._emitted, self._given, self._record_fatal, 1.0, MAX_BYTES, None, ready
            )
        except Pause:
            return
        self._io_over["output"] = True

    def _record_fatal(self) -> None:
        if self._loop.error is not None:
            self._record("fatal", self._loop.error)

    # The end of the main thread.

    def _can_end(self) -> bool:
        if not self.is_alive or not self._loop_over:
            return False
        flushed = self._io_over["output"] and not self.back.unsent
        return not self._recorded or (flushed and not self._lingers)

    def _end(self) -> None:
        if self._recorded:
            self.die(0 if self._loop.error is None else 1)
        self._record_fatal()
        self._recorded = True
