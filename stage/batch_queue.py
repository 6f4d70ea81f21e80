"""Owns the batches in flight of an engine that works with futures, and makes it an `Engine`.

Batches are updated in the order in which they were scheduled, and the busy loop applies its messages between
the wait for a batch and its update. Nothing here runs on a thread of its own.
"""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stage.engine import Output


@runtime_checkable
class BatchEngine(Protocol):
    """An engine that works in batches, several of which may be under way at once.

    Two methods are optional and looked up by name, as for an `Engine`: `shutdown()` and
    `set_failure_callback(callback)`.
    """

    def has_work(self) -> bool:
        """True while requests are at hand that `schedule` may take; those in flight need not count."""

    def add(self, request_id: str, data: Any) -> None:
        """Accept a request, or raise `RequestError`."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests, also those in a batch in flight: `update` returns nothing more for them."""

    def schedule(self) -> Any | None:
        """Return the next batch, any object but None, or None if none can be formed now.

        None while nothing is in flight says that only a message (add, abort, utility) can change that, and
        the engine is left alone until one comes. To wait for something else, return a batch whose future ends
        with it.
        """

    def execute(self, batch: Any) -> Future[Any]:
        """Start the batch and return a future of its result, without waiting for it."""

    def update(self, batch: Any, result: Any) -> Iterable[Output]:
        """Take in the result of the oldest batch and return the outputs."""

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer a call that is no request."""


class BatchQueue:
    """Turn a `BatchEngine` into an `Engine` that keeps up to `depth` batches in flight.

    One step does one of three things: it schedules a batch; or it waits for the oldest one and returns
    nothing; or it updates from the oldest one. Filling comes first, so that the next batch runs while the
    last one is updated. An abort that arrives during the wait is applied before the update. The order follows
    vLLM's `step_with_batch_queue`.

    A batch whose execution raised, or was cancelled, raises from `step`, which is fatal for the stage.
    A wait ends with the batch, or when the engine calls its failure callback, since a broken executor may
    never finish it. Nothing else interrupts it: a message or a shutdown that arrives meanwhile waits for the
    oldest batch, so keep batches short against `shutdown_timeout_s`.

    The config names a callable that builds the engine. Either a subclass:

        class MyEngine(BatchQueue):
            def __init__(self, model: str, depth: int = 2) -> None:
                super().__init__(MyBatchEngine(model), depth)

    or a function, named as `package.module:my_engine`:

        def my_engine(model: str) -> BatchQueue:
            return BatchQueue(MyBatchEngine(model))

    Args:
        engine: what forms, executes and takes in batches.
        depth: the most batches in flight, at least 1. With 2 one batch waits while another is executed.
    """

    def __init__(self, engine: BatchEngine, depth: int = 2) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth must be a whole number of at least 1, not {depth!r}")
        self._engine = engine
        self._depth = depth
        self._in_flight: deque[tuple[Any, Future[Any]]] = deque()
        self._starved = False
        self._failed: Future[None] = Future()

    def has_work(self) -> bool:
        """True while a batch is in flight or may be scheduled.

        False, too, after `schedule` returned None with nothing in flight, until the next message: a loop that
        stepped on would only burn CPU.
        """
        return bool(self._in_flight) or (not self._starved and self._engine.has_work())

    def add(self, request_id: str, data: Any) -> None:
        """Hand a request to the engine."""
        self._starved = False
        self._engine.add(request_id, data)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Hand an abort to the engine, also for requests in flight."""
        self._starved = False
        self._engine.abort(request_ids)

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Hand a call to the engine."""
        self._starved = False
        return self._engine.utility(name, args)

    def step(self) -> Iterable[Output]:
        """Schedule a batch, or wait for the oldest, or update from it.

        If nothing can be scheduled, it goes on to the oldest batch at once.

        Raises:
            BaseException: what the execution of the oldest batch raised.
        """
        if self._schedule() or not self._in_flight:
            return ()
        batch, future = self._in_flight[0]
        if not future.done():
            self._wait_for(future)
            return ()
        result = future.result()
        self._in_flight.popleft()
        return self._engine.update(batch, result)

    def set_failure_callback(self, callback: Callable[[str], None]) -> None:
        """Pass the callback on to the engine, if it takes one, and let it end a wait as well."""
        set_failure_callback = getattr(self._engine, "set_failure_callback", None)
        if set_failure_callback is not None:
            set_failure_callback(_waking(callback, self._failed))

    def shutdown(self) -> None:
        """Cancel and forget what is in flight, then shut the engine down, if it has a `shutdown`."""
        while self._in_flight:
            _, future = self._in_flight.popleft()
            future.cancel()
        shutdown = getattr(self._engine, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _schedule(self) -> bool:
        if len(self._in_flight) >= self._depth or not self._engine.has_work():
            return False
        batch = self._engine.schedule()
        self._starved = batch is None and not self._in_flight
        if batch is None:
            return False
        self._in_flight.append((batch, self._engine.execute(batch)))
        return True

    def _wait_for(self, future: Future[Any]) -> None:
        wait((future, self._failed), return_when=FIRST_COMPLETED)
        if future.done():
            future.result()  # Fail now: the next step might hand one more batch to a broken executor.


def _waking(callback: Callable[[str], None], failed: Future[None]) -> Callable[[str], None]:
    def call_and_wake(reason: str) -> None:
        # First the message, then the end of the wait: the loop must find EXECUTOR_FAILED before it steps on.
        callback(reason)
        with contextlib.suppress(InvalidStateError):  # Only the first failure has a wait to end.
            failed.set_result(None)

    return call_and_wake
