"""An engine as the busy loop sees it: the same calls, each leaving a trace in the black box.

The cells are written on the thread that runs the engine, around each call, so that whoever reads them after a death,
or while nothing moves, knows where it is.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from stage.black_box import CALL, CALL_SINCE, CALLS, HANDLED, IN_HAND, STEPS
from stage.injection import FaultyStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stage.black_box import BlackBox
    from stage.protocol import Injection

_ADD, _ABORT, _STEP, _UTILITY = (CALLS.index(call) for call in ("add", "abort", "step", "utility"))


class RecordedEngine:
    """An engine whose steps, and requests in hand, are recorded; the rest goes straight through.

    Args:
        engine: the engine.
        box: the stage's black box.
        injection: a fault, for one of the steps perhaps.
    """

    def __init__(self, engine: Any, box: BlackBox, injection: Injection | None) -> None:
        self._add = engine.add
        self._abort = engine.abort
        self.utility = engine.utility
        if hasattr(engine, "set_failure_callback"):
            self.set_failure_callback = engine.set_failure_callback
        self.has_work = engine.has_work
        self._step = engine.step
        self._dummy_step: Any = getattr(engine, "dummy_step", None)
        if injection is not None:
            self._step = FaultyStep(engine.step, injection)
        self._cells = box.cells
        self._in_hand: set[str] = set()

    @property
    def in_hand(self) -> int:
        """Requests that the engine has."""
        return len(self._in_hand)

    def add(self, request_id: str, data: Any) -> None:
        """Hand a request to the engine."""
        self._add(request_id, data)
        self._in_hand.add(request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Hand an abort to the engine, unless it asks for nothing (see `io_threads`)."""
        if request_ids:
            self._abort(request_ids)
            self._in_hand.difference_update(request_ids)

    def step(self) -> Any:
        """Record the step, then do it."""
        cells, in_hand = self._cells, self._in_hand
        cells[IN_HAND] = len(in_hand)
        cells[STEPS] += 1
        cells[CALL_SINCE] = monotonic_ns()
        cells[CALL] = _STEP
        outputs = self._step()
        if outputs is None:
            raise TypeError("step() returned None: it must return its Outputs, an empty list if there are none")
        if not isinstance(outputs, list | tuple):
            return self._passed_on(outputs)
        self._account_for(outputs)
        return outputs

    def dummy_step(self) -> None:
        """Record a step without work, and do it."""
        cells = self._cells
        cells[STEPS] += 1
        cells[CALL_SINCE] = monotonic_ns()
        cells[CALL] = _STEP
        self._dummy_step()
        cells[CALL] = 0

    def _passed_on(self, outputs: Iterable[Any]) -> Iterator[Any]:
        """A generator of the engine's does its work while it is read: that is within the step."""
        passed = []
        for output in outputs:
            passed.append(output)
            yield output
        self._account_for(passed)

    def _account_for(self, outputs: Sequence[Any]) -> None:
        cells, in_hand = self._cells, self._in_hand
        try:
            for output in outputs:
                if output[2]:
                    in_hand.discard(output[0])
        except (TypeError, IndexError, KeyError):
            pass  # no `Output`, which the output thread tells in better words
        cells[IN_HAND] = len(in_hand)
        cells[CALL] = 0


class WatchedEngine(RecordedEngine):
    """For a stage with a `step_timeout_s`: every call is recorded, so that the supervisor sees one that hangs."""

    def __init__(self, engine: Any, box: BlackBox, injection: Injection | None) -> None:
        super().__init__(engine, box, injection)
        self._utility = engine.utility
        self.utility = self._watched_utility

    def add(self, request_id: str, data: Any) -> None:
        """Record the call and make it."""
        self._begin(_ADD)
        try:
            super().add(request_id, data)
        finally:
            self._end()

    def abort(self, request_ids: Sequence[str]) -> None:
        """Record the call and make it."""
        # What our own output thread asks for comes as a tuple, and is no message of the supervisor's.
        self._begin(_ABORT, handled=isinstance(request_ids, list))
        try:
            super().abort(request_ids)
        finally:
            self._end()

    def _watched_utility(self, name: str, args: tuple[Any, ...]) -> Any:
        self._begin(_UTILITY)
        try:
            return self._utility(name, args)
        finally:
            self._end()

    def _begin(self, call: int, *, handled: bool = True) -> None:
        cells = self._cells
        cells[CALL_SINCE] = monotonic_ns()
        cells[CALL] = call
        cells[HANDLED] += handled

    def _end(self) -> None:
        # In this order: a request that is in no call must be in hand.
        self._cells[IN_HAND] = len(self._in_hand)
        self._cells[CALL] = 0
