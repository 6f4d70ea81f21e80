"""Batches in flight: what one step does, and what the busy loop makes of it."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage.batch_queue import BatchEngine, BatchQueue
from stage.busy_loop import BusyLoop
from stage.engine import Engine, Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HANG_S = 30.0


class AnnouncedFuture(Future[Any]):
    """Runs `when_not_done` on another thread as soon as somebody found it not done, so is about to wait."""

    def __init__(self, when_not_done: Callable[[], object]) -> None:
        super().__init__()
        self.thread = threading.Thread(target=when_not_done)

    def done(self) -> bool:
        done = super().done()
        if not done and self.thread.ident is None:
            self.thread.start()
        return done


class Batches:
    """One request a batch; data is the batch's result, given when the test completes its future."""

    def __init__(self) -> None:
        self.waiting: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self.futures: dict[str, Future[Any]] = {}
        self.events: list[str] = []
        self.scheduled = threading.Semaphore(0)
        self.new_future: Callable[[str], Future[Any]] = lambda _: Future()

    def has_work(self) -> bool:
        return bool(self.waiting)

    def add(self, request_id: str, data: Any) -> None:
        if data == "refuse":
            raise RequestError("no")
        self.waiting[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        self.events.append(f"abort {' '.join(request_ids)}")
        for request_id in request_ids:
            self.waiting.pop(request_id, None)
            self.running.pop(request_id, None)

    def schedule(self) -> str | None:
        self.events.append("schedule")
        request_id = next(iter(self.waiting), None)
        if request_id is not None:
            self.running[request_id] = self.waiting.pop(request_id)
        return request_id

    def execute(self, batch: str) -> Future[Any]:
        self.events.append(f"execute {batch}")
        self.futures[batch] = self.new_future(batch)
        self.scheduled.release()
        return self.futures[batch]

    def update(self, batch: str, result: Any) -> list[Output]:
        self.events.append(f"update {batch}")
        return [Output(batch, result, True)] if self.running.pop(batch, None) is not None else []

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        return name, args


def queued(*request_ids: str, depth: int = 2) -> tuple[BatchQueue, Batches]:
    engine = Batches()
    batches = BatchQueue(engine, depth)
    for request_id in request_ids:
        batches.add(request_id, f"data of {request_id}")
    return batches, engine


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(HANG_S)
    assert set(threading.enumerate()) <= before


@contextlib.contextmanager
def running(batches: BatchQueue) -> Iterator[tuple[BusyLoop, Any, Any, threading.Thread]]:
    """Run a busy loop over the batches; yield it with its input queue, its emits and its thread."""
    input_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
    emits: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop = BusyLoop(batches, input_queue, emits.put)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop, input_queue, emits, thread
    finally:
        loop.request_shutdown()
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_both_ends_have_their_shape() -> None:
    """The queue is an Engine, what it takes a BatchEngine."""
    batches, engine = queued()
    assert isinstance(batches, Engine)
    assert isinstance(engine, BatchEngine)


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, None])
def test_a_depth_without_sense_is_refused(depth: Any) -> None:
    """The message tells the allowed values."""
    with pytest.raises(ValueError, match="depth must be a whole number of at least 1, not"):
        BatchQueue(Batches(), depth)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_queue_is_filled_before_it_is_drained(depth: int) -> None:
    """As many batches as the depth are under way before the first update, done or not."""
    batches, engine = queued("a", "b", "c", "d", depth=depth)
    for request_id in "abcd"[:depth]:
        assert list(batches.step()) == []
        engine.futures[request_id].set_result("done")
    assert engine.events == [event for request_id in "abcd"[:depth] for event in ("schedule", f"execute {request_id}")]
    assert list(batches.step()) == [Output("a", "done", True)]


def test_the_oldest_batch_comes_first() -> None:
    """A younger batch that is done earlier is updated later."""
    batches, engine = queued("a", "b")
    batches.step()
    batches.step()
    engine.futures["b"].set_result("B")
    engine.futures["a"].set_result("A")
    assert [out.data for _ in range(2) for out in batches.step()] == ["A", "B"]


def test_a_step_that_waited_returns_nothing() -> None:
    """The update is left to the next step."""
    batches, engine = queued("a")
    engine.new_future = lambda _: AnnouncedFuture(lambda: engine.futures["a"].set_result("A"))
    batches.step()
    assert list(batches.step()) == []
    assert "update a" not in engine.events
    assert list(batches.step()) == [Output("a", "A", True)]


def test_a_batch_that_is_done_is_not_waited_for() -> None:
    """It is updated in the step that finds it done."""
    batches, engine = queued("a")
    batches.step()
    engine.futures["a"].set_result("A")
    assert list(batches.step()) == [Output("a", "A", True)]


def test_has_work_while_a_batch_is_in_flight() -> None:
    """Also when the engine has nothing more to schedule."""
    batches, engine = queued("a")
    assert batches.has_work()
    batches.step()
    assert not engine.has_work()
    assert batches.has_work()
    engine.futures["a"].set_result("A")
    batches.step()
    assert not batches.has_work()


class Picky(Batches):
    """Has work, but forms no batch before it may."""

    may = False

    def schedule(self) -> str | None:
        return super().schedule() if self.may else None


@pytest.mark.parametrize(
    "message",
    [
        lambda batches: batches.add("b", "B"),
        lambda batches: batches.abort(["b"]),
        lambda batches: batches.utility("go", ()),
    ],
    ids=["add", "abort", "utility"],
)
def test_an_engine_that_can_schedule_nothing_is_left_alone_until_a_message(
    message: Callable[[BatchQueue], object],
) -> None:
    """With nothing in flight and no batch there is no work, or the loop would spin."""
    engine = Picky()
    batches = BatchQueue(engine)
    batches.add("a", "A")
    assert batches.has_work()
    assert list(batches.step()) == []
    assert not batches.has_work()
    message(batches)
    assert batches.has_work()


def test_scheduling_after_all_brings_the_work_back() -> None:
    """A step that is made without a message forgets that there was nothing to schedule."""
    engine = Picky()
    batches = BatchQueue(engine, depth=1)
    batches.add("a", "A")
    batches.add("b", "B")
    batches.step()
    assert not batches.has_work()
    engine.may = True
    batches.step()
    engine.futures["a"].set_result("A")
    assert list(batches.step()) == [Output("a", "A", True)]
    assert batches.has_work()


def test_nothing_to_schedule_with_a_batch_in_flight_goes_on_to_that_batch() -> None:
    """The engine is asked again after it, since the update may have changed its mind."""
    engine = Picky()
    engine.may = True
    batches = BatchQueue(engine)
    batches.add("a", "A")
    batches.add("b", "B")
    batches.step()
    engine.may = False
    engine.futures["a"].set_result("A")
    assert list(batches.step()) == [Output("a", "A", True)]
    assert batches.has_work()
    engine.may = True
    batches.step()
    assert engine.events[-1] == "execute b"


def test_the_engine_is_not_asked_for_a_batch_without_work() -> None:
    """`schedule` may rely on `has_work`."""
    batches, engine = queued()
    assert list(batches.step()) == []
    assert engine.events == []


def test_an_abort_during_the_wait_is_applied_before_the_update() -> None:
    """The aborted request emits nothing, though its batch was finished."""
    batches, engine = queued()
    with running(batches) as (_, input_queue, emits, _thread):
        input_queue.put(("ADD", ("a", "A")))
        input_queue.put(("ADD", ("b", "B")))
        assert all(engine.scheduled.acquire(timeout=HANG_S) for _ in "ab")
        input_queue.put(("ABORT", ["a"]))
        engine.futures["b"].set_result("B")
        engine.futures["a"].set_result("A")
        assert emits.get(timeout=HANG_S) == ("output", Output("b", "B", True))
    assert engine.events.index("abort a") < engine.events.index("update a")


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), SystemExit(1), MemoryError()], ids=repr)
@pytest.mark.parametrize("waited_for", [True, False])
def test_an_execution_error_raises_from_the_step(error: BaseException, waited_for: bool) -> None:
    """At once after the wait, so that no further batch goes to a broken executor."""
    batches, engine = queued("a", "b", depth=1)
    engine.new_future = lambda _: AnnouncedFuture(lambda: engine.futures["a"].set_exception(error))
    batches.step()
    if not waited_for:
        engine.futures["a"].set_exception(error)
    with pytest.raises(type(error)) as caught:
        batches.step()
    assert caught.value is error
    assert engine.events == ["schedule", "execute a"]


def test_a_cancelled_batch_raises_from_the_step() -> None:
    """Somebody took the executor away."""
    batches, engine = queued("a")
    batches.step()
    engine.futures["a"].cancel()
    with pytest.raises(CancelledError):
        batches.step()


def test_an_execution_error_is_fatal_for_the_loop() -> None:
    """The loop ends with it, and `error` holds it."""
    batches, engine = queued("a", "b")
    error = RuntimeError("CUDA error")
    with running(batches) as (loop, _, emits, thread):
        assert all(engine.scheduled.acquire(timeout=HANG_S) for _ in "ab")
        engine.futures["a"].set_exception(error)
        thread.join(HANG_S)
        assert emits.get_nowait() == ("fatal", "RuntimeError('CUDA error')")
        assert loop.error is error


def test_a_refused_request_and_a_utility_pass_through() -> None:
    """The queue adds nothing to them."""
    batches, _ = queued()
    with running(batches) as (_, input_queue, emits, _thread):
        input_queue.put(("ADD", ("a", "refuse")))
        input_queue.put(("UTILITY", (1, "stats", [2])))
        assert emits.get(timeout=HANG_S) == ("refused", "a", "no")
        assert emits.get(timeout=HANG_S) == ("utility", 1, ("stats", (2,)), None)


class Helped(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.was_shut_down = 0

    def set_failure_callback(self, callback: Callable[[str], None]) -> None:
        self.callback = callback

    def shutdown(self) -> None:
        self.was_shut_down += 1


def test_a_failure_callback_ends_a_wait_that_would_never_end() -> None:
    """The executor is gone, its future stays open, and the loop ends all the same."""
    engine = Helped()

    def fail() -> None:
        engine.callback("worker 2 died")
        engine.callback("worker 3 died")

    engine.new_future = lambda _: AnnouncedFuture(fail)
    with running(BatchQueue(engine)) as (_, input_queue, emits, _thread):
        input_queue.put(("ADD", ("a", "A")))
        assert emits.get(timeout=HANG_S) == ("fatal", "RuntimeError('Executor failed: worker 2 died')")
    assert "update a" not in engine.events


def test_a_failure_callback_keeps_neither_loop_nor_queue_alive() -> None:
    """An engine's helper may hold it for ever."""
    engine = Helped()
    batches = BatchQueue(engine)
    loop = BusyLoop(batches, queue.SimpleQueue(), print)
    gone: list[Any] = [weakref.ref(loop), weakref.ref(batches)]
    del loop, batches
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    engine.callback("too late")


def test_an_engine_without_options_needs_none() -> None:
    """Neither a failure callback nor a shutdown is asked of it."""
    batches, _ = queued("a")
    batches.set_failure_callback(print)
    batches.shutdown()


def test_shutdown_forgets_what_is_in_flight_and_shuts_the_engine_down() -> None:
    """Open futures are cancelled first."""
    engine = Helped()
    batches = BatchQueue(engine)
    batches.add("a", "A")
    batches.step()
    batches.shutdown()
    assert engine.futures["a"].cancelled()
    assert not batches.has_work()
    assert engine.was_shut_down == 1


class Doubling(Batches):
    """Batches of up to three requests, doubled on threads; what `instant` says is done before it is asked for."""

    def __init__(self, executor: ThreadPoolExecutor, instant: list[bool]) -> None:
        super().__init__()
        self.executor = executor
        self.instant = instant
        self.most_in_flight = 0
        self.in_flight = 0

    def schedule(self) -> Any:
        taken = dict(list(self.waiting.items())[:3])
        for request_id in taken:
            self.running[request_id] = self.waiting.pop(request_id)
        return taken or None

    def execute(self, batch: Any) -> Future[Any]:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        future = self.executor.submit(lambda: {key: 2 * value for key, value in batch.items()})
        if self.instant and self.instant.pop():
            future.result(HANG_S)
        return future

    def update(self, batch: Any, result: Any) -> list[Output]:
        self.in_flight -= 1
        return [Output(key, result[key], True) for key in batch if self.running.pop(key, None) is not None]


def play(batches: BatchQueue, history: list[Any]) -> tuple[list[Output], list[Output]]:
    """Return the outputs, and those of all requests that were not aborted before their output."""
    outputs: list[Output] = []
    expected: dict[int, Output] = {}
    added = 0
    for event in history:
        if event == "step":
            outputs += batches.step()
        elif event == "add":
            batches.add(str(added), added)
            expected[added] = Output(str(added), 2 * added, True)
            added += 1
        else:
            batches.abort([str(event)])
            if expected.get(event) not in outputs:
                expected.pop(event, None)
    while batches.has_work():
        outputs += batches.step()
    return outputs, list(expected.values())


@settings(deadline=None)
@given(
    history=st.lists(st.one_of(st.just("step"), st.just("add"), st.integers(0, 20)), max_size=40),
    depth=st.integers(1, 4),
    instant=st.lists(st.booleans(), max_size=20),
)
def test_whatever_the_history_every_request_ends_once_and_in_order(
    history: list[Any], depth: int, instant: list[bool]
) -> None:
    """Outputs come in the order of the requests; what was aborted before its output has none."""
    with ThreadPoolExecutor(3) as executor:
        engine = Doubling(executor, instant)
        outputs, expected = play(BatchQueue(engine, depth), history)
    assert outputs == expected
    assert engine.most_in_flight <= depth
