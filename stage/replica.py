"""A replica's ties to its group: what it tells of its load, and the busy loop that steps with the others.

A stage of one replica has none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.busy_loop import BusyLoop
from stage.group_protocol import Load

if TYPE_CHECKING:
    from stage.busy_loop import Emit, InputQueue
    from stage.waves import WaveEngine


class LoadMeter:
    """How many requests wait for the engine, and how many it has; each count belongs to one thread.

    Requests come and go much faster than anybody needs to know, and telling wakes two threads and a process. So a
    thread that has changed a count wakes the one that tells only if this one is not about to look anyway.

    Args:
        replica: our number.
    """

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self.received = 0
        """Requests so far, as the input thread counts them."""
        self.added = 0
        """Those of them that were handed to the engine, as the busy loop counts them."""
        self.running = 0
        """Those that the engine has."""
        self._last = Load(replica, 0, 0)
        self._is_owed = False

    def owe(self) -> bool:
        """Note that a count has changed; True if the thread that tells must be woken for it."""
        if self._is_owed:
            return False
        self._is_owed = True
        return True

    def news(self) -> Load | None:
        """The load, if it has changed since the last call; for the thread that tells."""
        self._is_owed = False  # first: a count that changes from now on will be owed again
        load = Load(self._replica, max(0, self.received - self.added), self.running)
        if load == self._last:
            return None
        self._last = load
        return load


class MeteredEngine:
    """An engine whose load is measured, each time that the busy loop asks it for work.

    Args:
        engine: a `RecordedEngine`.
        meter: takes the counts.
        emit: called with `("load",)` when they have changed, and nobody knows.
    """

    def __init__(self, engine: Any, meter: LoadMeter, emit: Emit) -> None:
        self.abort = engine.abort
        self.utility = engine.utility
        self.step = engine.step
        if hasattr(engine, "dummy_step"):
            self.dummy_step = engine.dummy_step
        if hasattr(engine, "set_failure_callback"):
            self.set_failure_callback = engine.set_failure_callback
        self._engine = engine
        self._meter = meter
        self._emit = emit
        self._noted = (0, 0)

    def add(self, request_id: str, data: Any) -> None:
        """Hand a request to the engine."""
        self._meter.added += 1
        self._engine.add(request_id, data)

    def has_work(self) -> bool:
        """Note the load, then ask the engine."""
        meter = self._meter
        meter.running = self._engine.in_hand
        if (counts := (meter.added, meter.running)) != self._noted:
            self._noted = counts
            if meter.owe():
                self._emit(("load",))
        return bool(self._engine.has_work())


class LockstepLoop(BusyLoop):
    """A busy loop that also takes `("GROUP", message)`, what the coordinator says.

    Args:
        engine: steps with the group.
        input_queue: as for a `BusyLoop`.
        emit: as for a `BusyLoop`.
    """

    def __init__(self, engine: WaveEngine, input_queue: InputQueue, emit: Emit) -> None:
        super().__init__(engine, input_queue, emit)
        self._waves = engine

    def _handle(self, message: tuple[str, Any]) -> None:
        kind, payload = message
        if kind == "GROUP":
            self._waves.hear(payload)
        else:
            super()._handle(message)
