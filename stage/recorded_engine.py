"""An engine as the busy loop sees it: the same calls, and each step leaves a trace in the black box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.injection import FaultyStep

if TYPE_CHECKING:
    from stage.black_box import BlackBox
    from stage.protocol import Injection


class RecordedEngine:
    """An engine whose steps leave a trace in the black box; the other calls go straight through.

    Args:
        engine: the engine.
        box: the stage's black box.
        injection: a fault, for one of the steps perhaps.
    """

    def __init__(self, engine: Any, box: BlackBox, injection: Injection | None) -> None:
        self.add = engine.add
        self.abort = engine.abort
        self.utility = engine.utility
        if hasattr(engine, "set_failure_callback"):
            self.set_failure_callback = engine.set_failure_callback
        self.has_work = engine.has_work
        self._step = engine.step
        if injection is not None:
            self._step = FaultyStep(engine.step, injection)
        self._begins = box.step_begins

    def step(self) -> Any:
        """Record the step, then do it."""
        self._begins()
        outputs = self._step()
        if outputs is None:
            raise TypeError("step() returned None: it must return its Outputs, an empty list if there are none")
        return outputs
