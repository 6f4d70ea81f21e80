"""Owns an engine and drives it: messages in from one queue, outputs out through one function.

Every method of the engine is called on the thread that calls `run`, one at a time, and everything that was
queued before a step is applied, in order of arrival, before that step. The loop knows nothing of sockets or
processes.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, TypeAlias

from stage.engine import RequestError
from stage.errors_text import safe_repr, safe_str

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stage.engine import Engine

Message: TypeAlias = tuple[str, Any]
InputQueue: TypeAlias = "queue.SimpleQueue[Message] | queue.Queue[Message]"
Emit: TypeAlias = "Callable[[tuple[Any, ...]], object]"


class BusyLoop:
    """Run an engine until it fails or a shutdown is asked for.

    Messages are `(kind, payload)`:

    | kind                | payload                 | what it does                                 |
    |---------------------|-------------------------|----------------------------------------------|
    | `"ADD"`             | `(request_id, data)`    | `engine.add(request_id, data)`               |
    | `"ABORT"`           | `[request_id, ...]`     | `engine.abort(request_ids)`                  |
    | `"UTILITY"`         | `(call_id, name, args)` | `engine.utility(name, args)`, args a tuple   |
    | `"WAKEUP"`          | `None`                  | nothing                                      |
    | `"EXECUTOR_FAILED"` | reason                  | ends the loop: "Executor failed: <reason>"   |

    Emits are `("output", out)` for each element that `step` returned, `("utility", call_id, result, None)`,
    `("utility", call_id, None, repr(exc))`, `("refused", request_id, str(exc))`, and as the last one either
    `("shutdown",)` or `("fatal", repr(exc))`, never both.

    An engine with `set_failure_callback` is given a callback that queues EXECUTOR_FAILED from any thread.
    The split into a loop and its IO follows vLLM's `EngineCoreProc`.

    Args:
        engine: what to run; its outputs may be any objects.
        input_queue: where messages arrive. Use a `queue.SimpleQueue` if a signal handler calls
            `request_shutdown`: its `put` is reentrant, while that of a `queue.Queue` deadlocks when the
            signal interrupts another `put` or a `get`.
        emit: called on the thread of `run` with each emit. If it raises, the loop ends as if the engine had
            failed.

    Attributes:
        error: what ended the loop, or None while it runs and after a shutdown.
    """

    def __init__(self, engine: Engine, input_queue: InputQueue, emit: Emit) -> None:
        self.error: BaseException | None = None
        self._engine = engine
        self._input_queue = input_queue
        self._emit = emit
        self._shutdown_requested = False
        set_failure_callback = getattr(engine, "set_failure_callback", None)
        if set_failure_callback is not None:
            set_failure_callback(_failure_callback(input_queue))

    def request_shutdown(self) -> None:
        """Ask the loop to end before its next step; call it from any thread or from a signal handler."""
        # In this order: who takes the WAKEUP must see the flag.
        self._shutdown_requested = True
        self._input_queue.put(("WAKEUP", None))

    def run(self) -> None:
        """Drive the engine; return after the last emit, with the failure, if any, in `error`."""
        last: tuple[Any, ...] = ("shutdown",)
        try:
            self._loop()
        except BaseException as exc:
            self.error = exc
            last = ("fatal", safe_repr(exc))
        try:
            self._emit(last)
        except BaseException as exc:
            # The first failure is the cause; an emit that fails after it is collateral.
            if self.error is None:
                self.error = exc

    def _loop(self) -> None:
        engine, input_queue, emit = self._engine, self._input_queue, self._emit
        while True:
            self._drain()
            if self._shutdown_requested:
                return
            if engine.has_work():
                for output in engine.step():
                    emit(("output", output))
            else:
                self._handle(input_queue.get())

    def _drain(self) -> None:
        get_nowait = self._input_queue.get_nowait
        while True:
            # Only the get stands in the try: an Empty that escapes from the engine is a failure like others.
            try:
                message = get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: Message) -> None:
        kind, payload = message
        match kind:
            case "ADD":
                self._add(payload)
            case "ABORT":
                self._engine.abort(payload)
            case "UTILITY":
                self._utility(payload)
            case "WAKEUP":
                pass
            case "EXECUTOR_FAILED":
                raise RuntimeError(f"Executor failed: {safe_str(payload)}")
            case _:
                raise ValueError(
                    f"the busy loop got a message of unknown kind {safe_repr(kind)}:"
                    " use 'ADD', 'ABORT', 'UTILITY', 'WAKEUP' or 'EXECUTOR_FAILED'"
                )

    def _add(self, payload: tuple[str, Any]) -> None:
        request_id, data = payload
        try:
            self._engine.add(request_id, data)
        except RequestError as exc:
            self._emit(("refused", request_id, safe_str(exc)))

    def _utility(self, payload: tuple[Any, str, Sequence[Any]]) -> None:
        call_id, name, args = payload
        answer: tuple[Any, ...]
        try:
            result = self._engine.utility(name, tuple(args))
        except BaseException as exc:
            answer = ("utility", call_id, None, safe_repr(exc))
        else:
            answer = ("utility", call_id, result, None)
        # Outside the try: an emit that fails is no failure of the call, and must not be answered twice.
        self._emit(answer)


def _failure_callback(input_queue: InputQueue) -> Callable[[str], None]:
    # A closure over the queue alone: the engine's helpers may outlive the loop and must not keep it alive.
    def callback(reason: str) -> None:
        input_queue.put(("EXECUTOR_FAILED", reason))

    return callback
