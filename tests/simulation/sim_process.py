"""What every simulated process has, and the supervisor's record of it; and the coordinator of a group, in outline.

A process ends at one moment. What it has sent by then arrives, its connections end after that, and its two descriptors
show the end whenever the scheduler likes.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from sim_wires import Cells, Pipe

from stage.black_box import HANDLED, STEPS, BlackBoxRecord
from stage.errors_text import safe_str
from stage.group_protocol import Loads, members_decoder
from stage.names import label_of
from stage.protocol import ErrorRecord, header_encoder
from supervisor.lifecycle import Event, State, advance

if TYPE_CHECKING:
    from sim_wires import Kernel
    from sim_world import World

FIRST_PID = 4000
MAX_LOADS = 3
"""How often a coordinator publishes loads: a history must come to its end."""


class SimulatedProcess:
    """One process, and what a `StageProc` is for a real one.

    Args:
        world: whose actors its wires are.
        kernel: has its descriptors.
        stage: the name of its stage.
        replica: its number; None for a coordinator.
    """

    def __init__(self, world: World, kernel: Kernel, stage: str, replica: int | None) -> None:
        self.stage = stage
        self.replica = replica
        self.role = "coordinator" if replica is None else "stage"
        self.label = label_of(stage, replica)
        self.pidfd, sentinel = kernel.eventfd(), kernel.eventfd()
        self.pid = FIRST_PID + len(kernel.counters)
        self.process = SimpleNamespace(sentinel=sentinel)
        self.state = State.READY
        self.was_ready = True
        self.is_released = False
        self.exit_code: int | None = None
        self.status: int | None = None
        """As the kernel knows it, from the moment of the death."""
        self.asked_to_stop = False
        self.failed = False
        """Its end has begun, before anybody asked for it."""
        self.to, self.back = Pipe(), Pipe()
        self.error: ErrorRecord | None = None
        self.error_at = 0
        self.got_signal = 0
        self.box = Cells([0] * (HANDLED + 1))
        self.is_stuck = False
        """A call of its engine never returns, or a signal has stopped it."""
        self.was_convicted = False
        """The supervisor has taken it for hung."""
        self.is_excused = False
        """The supervisor has taken its end for one that the user asked for."""
        self._world = world
        self._kernel = kernel
        self._stopped = False
        self._phase = "ready"
        self._add_wires()

    def _add_wires(self) -> None:
        add, to, back = self._world.add, self.to, self.back
        add(f"{self.label} zmq", lambda: bool(back.unsent) and not self._stopped, back.leave)
        add(f"{self.label} from", lambda: bool(back.under_way), back.arrive)
        add(f"{self.label} to", lambda: bool(to.under_way), self._arrive)

    def _add_end(self) -> None:
        self._world.add(f"{self.label} end", self._can_disconnect, self._disconnect)
        for fd in (self.pidfd, self.process.sentinel):
            self._world.add(f"{self.label} fd", partial(self._can_show, fd), partial(self._show, fd))

    @property
    def is_alive(self) -> bool:
        """True until the moment of its death."""
        return self.status is None

    @property
    def is_seen_dead(self) -> bool:
        """True once a poll of its descriptors would tell."""
        counters = self._kernel.counters
        return bool(counters[self.pidfd] or counters[self.process.sentinel])

    @property
    def has_ended(self) -> bool:
        """True once its end has been confirmed."""
        return self.state is State.DEAD

    def move(self, event: Event) -> None:
        """Record what happened to it."""
        self.state = advance(self.state, event)

    def read_box(self) -> BlackBoxRecord:
        """What its black box tells."""
        return BlackBoxRecord(
            phase=self._phase,
            steps=self.box[STEPS],
            signal=self.got_signal,
            error=self.error,
            error_at=self.error_at,
            handled=self.box[HANDLED],
        )

    def wait_end(self, timeout_s: float) -> bool:
        """Confirm its end, if it can be seen without waiting."""
        assert timeout_s <= 0.05  # no longer than a dying process takes
        if self.is_seen_dead and not self.has_ended:
            self.exit_code = self.status
            self.move(Event.EXIT)
        return self.has_ended

    def die(self, status: int) -> None:
        """End at once: what it holds is lost, what has left it is not."""
        if not self.is_alive:
            return
        self._world.note(self.label, f"ends with {status}")
        self.status = status
        self.failed = self.failed or not self.asked_to_stop
        self.back.unsent.clear()
        self.to.arrived.clear()
        self._add_end()

    def terminate(self) -> None:
        """Get the supervisor's SIGTERM, once."""
        if self.state not in {State.STOPPING, State.DEAD}:
            self.asked_to_stop = True
            self.move(Event.STOP)
            self._stop()

    def release(self) -> None:
        """Give its descriptors back: nobody may poll them from now on."""
        self._world.expect(self.has_ended, f"{self.label} is let go before its end is confirmed")
        self._world.expect(not self.is_released, f"{self.label} is let go twice")
        self.is_released = True
        for fd in (self.pidfd, self.process.sentinel):
            self._kernel.close(fd)

    def _stop(self) -> None:
        """Do what a SIGTERM asks for."""

    def _record(self, cause: str, exc: BaseException) -> None:
        if self.error is None:
            self.error = ErrorRecord(cause, "ready", type(exc).__name__, safe_str(exc), "a traceback")
            self.error_at = int(self._world.now * 1e9)

    def _arrive(self) -> None:
        self.to.arrive()
        if not self.is_alive:
            self.to.arrived.clear()

    def _can_disconnect(self) -> bool:
        return not self.back.under_way and not (self.back.ended and self.to.ended)

    def _disconnect(self) -> None:
        if self.back.ended or self._world.chance(0.5):
            self.to.ended = True
        else:
            self.back.ended = True

    def _can_show(self, fd: int) -> bool:
        return not self._kernel.counters[fd] and fd not in self._kernel.closed

    def _show(self, fd: int) -> None:
        self._world.note(self.label, "its death can be seen")
        self._kernel.eventfd_write(fd, 1)


class SimulatedCoordinator(SimulatedProcess):
    """The coordinator of a stage's replicas: it publishes loads, of whatever kind, and hears who the replicas are.

    Args:
        world: whose actors it has.
        kernel: has its descriptors.
        stage: the stage's name.
        replicas: how many there are.
    """

    def __init__(self, world: World, kernel: Kernel, stage: str, replicas: int) -> None:
        super().__init__(world, kernel, stage, None)
        self.members = list(range(replicas))
        """As it was told last."""
        self._loads_left = world.rng.randrange(MAX_LOADS + 1)
        world.add(f"{self.label} loads", self._can_publish, self._publish)
        world.add(f"{self.label} main", lambda: self.is_alive and self.asked_to_stop, partial(self.die, 0))

    def _can_publish(self) -> bool:
        return self.is_alive and self._loads_left > 0

    def _publish(self) -> None:
        self._loads_left -= 1
        rng = self._world.rng
        loads = {replica: (rng.randrange(4), rng.randrange(4)) for replica in self.members if rng.random() < 0.9}
        self.back.unsent.append([header_encoder.encode([Loads(loads)])])

    def _arrive(self) -> None:
        super()._arrive()
        while self.to.arrived:
            for message in members_decoder.decode(self.to.arrived.popleft()[0]):
                self.members = message.replicas
