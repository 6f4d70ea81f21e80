"""The busy loop, driven through its two ends: the input queue and what it emits."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage.busy_loop import BusyLoop
from stage.engine import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HANG_S = 30.0


class Toy:
    """`add(rid, k)` runs k more steps; a step returns `(rid, left)` for each; data "refuse" is refused."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.has_work_calls = 0
        self.steps = 0
        self.on_step: Callable[[], object] = bool

    def has_work(self) -> bool:
        self.has_work_calls += 1
        return bool(self.left)

    def add(self, request_id: str, data: Any) -> None:
        if data == "refuse":
            raise RequestError(f"no {request_id}")
        self.left[request_id] = data + 0

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.left.pop(request_id, None)

    def step(self) -> list[Any]:
        self.steps += 1
        self.on_step()
        self.left = {request_id: left - 1 for request_id, left in self.left.items()}
        outputs = list(self.left.items())
        self.left = {request_id: left for request_id, left in self.left.items() if left}
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        assert (name, type(args)) == ("div", tuple)
        dividend, divisor = args
        return dividend / divisor


class House:
    """A busy loop over a toy, with its queue and what it emitted."""

    def __init__(self, engine: Any = None, input_queue: Any = None) -> None:
        self.engine: Any = engine or Toy()
        self.queue: Any = input_queue or queue.SimpleQueue()
        self.emitted: list[tuple[Any, ...]] = []
        self.emits: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.loop = BusyLoop(self.engine, self.queue, self.emit)

    def emit(self, item: tuple[Any, ...]) -> None:
        self.emitted.append(item)
        self.emits.put(item)

    def put(self, *messages: tuple[str, Any]) -> House:
        for message in messages:
            self.queue.put(message)
        return self

    def run(self) -> list[tuple[Any, ...]]:
        self.loop.run()
        return self.emitted

    def run_to_shutdown(self) -> list[tuple[Any, ...]]:
        """Apply what is queued, take no step, end."""
        self.loop.request_shutdown()
        return self.run()

    @contextlib.contextmanager
    def running(self) -> Iterator[threading.Thread]:
        thread = threading.Thread(target=self.loop.run)
        thread.start()
        try:
            yield thread
        finally:
            self.loop.request_shutdown()
            thread.join(HANG_S)
            assert not thread.is_alive()


@pytest.fixture(params=[queue.SimpleQueue, queue.Queue])
def house(request: pytest.FixtureRequest) -> House:
    return House(input_queue=request.param())


QUEUED_BEFOREHAND = [
    ("ADD", ("a", 2)),
    ("ADD", ("b", 1)),
    ("UTILITY", (7, "div", (1, 0))),
    ("ABORT", ["b"]),
    ("UTILITY", (8, "div", (6, 3))),
]


def test_a_worked_example(house: House) -> None:
    """Messages queued beforehand, one that wakes the idle loop, a shutdown."""
    house.put(*QUEUED_BEFOREHAND)
    with house.running():
        time.sleep(0.2)
        house.put(("ADD", ("c", 1)))
        time.sleep(0.2)
    assert house.emitted == [
        ("utility", 7, None, "ZeroDivisionError('division by zero')"),
        ("utility", 8, 2.0, None),
        ("output", ("a", 1)),
        ("output", ("a", 0)),
        ("output", ("c", 0)),
        ("shutdown",),
    ]
    assert house.engine.has_work_calls < 10
    assert house.loop.error is None


def test_a_worked_example_with_a_failing_step(house: House) -> None:
    """The second step raises: the rest is never touched, and no shutdown is emitted."""
    error = RuntimeError("NCCL timeout")

    def fail_in_the_second_step() -> None:
        if house.engine.steps == 2:
            raise error

    house.engine.on_step = fail_in_the_second_step
    house.put(*QUEUED_BEFOREHAND)
    with house.running() as thread:
        time.sleep(0.2)
        house.put(("ADD", ("c", 1)))
        time.sleep(0.2)
        assert not thread.is_alive()
    assert house.emitted == [
        ("utility", 7, None, "ZeroDivisionError('division by zero')"),
        ("utility", 8, 2.0, None),
        ("output", ("a", 1)),
        ("fatal", "RuntimeError('NCCL timeout')"),
    ]
    assert house.loop.error is error
    assert house.queue.get_nowait() == ("ADD", ("c", 1))


def test_a_worked_example_of_idling(house: House) -> None:
    """An idle loop sleeps, and ends at once when another thread asks."""
    with house.running() as thread:
        time.sleep(1.0)
        assert house.engine.steps == 0
        assert house.engine.has_work_calls in {1, 2}
        asker = threading.Thread(target=house.loop.request_shutdown)
        asker.start()
        thread.join(0.5)
        assert not thread.is_alive()
        asker.join(HANG_S)
    assert house.emitted == [("shutdown",)]


class PatientQueue:
    """Has only what the loop may use, refuses a timeout, and counts the waits."""

    def __init__(self) -> None:
        self.real: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put = self.real.put
        self.get_nowait = self.real.get_nowait
        self.waits: list[int] = []
        self.waiting = threading.Event()

    def get(self, *args: Any) -> Any:
        assert not args
        self.waits.append(self.real.qsize())
        self.waiting.set()
        return self.real.get()


def test_without_work_the_loop_waits_without_a_timeout() -> None:
    """One blocking get for one message while idle, none with work."""
    house = House(input_queue=PatientQueue())
    with house.running():
        assert house.queue.waiting.wait(HANG_S)
        house.put(("ADD", ("a", 3)))
        assert [house.emits.get(timeout=HANG_S) for _ in range(3)][-1] == ("output", ("a", 0))
    assert house.queue.waits[0] == 0
    assert len(house.queue.waits) <= 2


def test_has_work_is_asked_once_before_each_step_and_each_wait() -> None:
    """Three steps, then a wait: four questions, whatever the number of messages."""
    house = House(input_queue=PatientQueue())
    house.put(*[("WAKEUP", None)] * 50, ("ADD", ("a", 3)))
    with house.running():
        assert house.queue.waiting.wait(HANG_S)
        assert (house.engine.steps, house.engine.has_work_calls) == (3, 4)


def test_add_starts_a_request(house: House) -> None:
    """ADD hands id and data to the engine."""
    house.put(("ADD", ("a", 5))).run_to_shutdown()
    assert house.engine.left == {"a": 5}


def test_a_refused_request_is_emitted_and_the_others_go_on(house: House) -> None:
    """A RequestError from add fails that request alone."""
    emitted = house.put(("ADD", ("bad", "refuse")), ("ADD", ("a", 5))).run_to_shutdown()
    assert emitted == [("refused", "bad", "no bad"), ("shutdown",)]
    assert house.engine.left == {"a": 5}


def test_abort_hands_on_the_ids(house: House) -> None:
    """ABORT stops these requests, and unknown ids do not matter."""
    emitted = house.put(("ADD", ("a", 5)), ("ADD", ("b", 5)), ("ABORT", ["a", "unknown"])).run_to_shutdown()
    assert emitted == [("shutdown",)]
    assert house.engine.left == {"b": 5}


def test_utility_answers_by_call_id_with_args_as_one_tuple(house: House) -> None:
    """A list that a codec made of the arguments reaches the engine as a tuple."""
    emitted = house.put(("UTILITY", (1, "div", [6, 3]))).run_to_shutdown()
    assert emitted == [("utility", 1, 2.0, None), ("shutdown",)]


def test_wakeup_does_nothing(house: House) -> None:
    """A WAKEUP alone has no effect on the engine."""
    emitted = house.put(("WAKEUP", None)).run_to_shutdown()
    assert emitted == [("shutdown",)]
    assert house.engine.steps == 0


def test_executor_failed_ends_the_loop(house: House) -> None:
    """EXECUTOR_FAILED is fatal and tells the reason; what follows is not touched."""
    emitted = house.put(("EXECUTOR_FAILED", "worker 3 died"), ("ADD", ("a", 1))).run()
    assert emitted == [("fatal", "RuntimeError('Executor failed: worker 3 died')")]
    assert isinstance(house.loop.error, RuntimeError)
    assert str(house.loop.error) == "Executor failed: worker 3 died"
    assert house.engine.left == {}


def test_an_unknown_kind_is_fatal_and_named(house: House) -> None:
    """A message that nobody understands is a bug, said so."""
    ((kind, text),) = house.put(("RESUME", None)).run()
    assert kind == "fatal"
    assert "unknown kind 'RESUME'" in text


def test_every_output_is_emitted_once_as_the_very_object(house: House) -> None:
    """The loop does not look into outputs; any iterable of any objects will do."""
    outputs: list[Any] = [object(), None, [1]]

    def step() -> Iterator[Any]:
        house.loop.request_shutdown()
        return iter(outputs)

    house.engine.step = step
    emitted = house.put(("ADD", ("a", 1))).run()
    assert [name for name, *_ in emitted] == ["output", "output", "output", "shutdown"]
    assert all(emit[1] is output for emit, output in zip(emitted[:3], outputs, strict=True))


def test_outputs_before_a_generator_fails_are_emitted(house: House) -> None:
    """A step that yields and then raises has told what it had."""

    def step() -> Iterator[str]:
        yield "first"
        raise OSError("gone")

    house.engine.step = step
    assert house.put(("ADD", ("a", 1))).run() == [("output", "first"), ("fatal", "OSError('gone')")]


def test_what_is_queued_while_the_loop_drains_is_applied_before_the_step(house: House) -> None:
    """A message put in by the handling of another one still comes before the step."""
    add = house.engine.add

    def add_and_queue(request_id: str, data: int) -> None:
        add(request_id, data)
        if request_id == "a":
            house.put(("ABORT", ["a"]), ("ADD", ("b", 1)))

    house.engine.add = add_and_queue
    house.engine.on_step = house.loop.request_shutdown
    assert house.put(("ADD", ("a", 1))).run() == [("output", ("b", 0)), ("shutdown",)]


def test_after_a_shutdown_was_asked_for_there_is_no_further_step(house: House) -> None:
    """The step that is under way ends and emits; work that is left is left."""
    house.engine.on_step = house.loop.request_shutdown
    emitted = house.put(("ADD", ("a", 5))).run()
    assert emitted == [("output", ("a", 4)), ("shutdown",)]
    assert house.engine.steps == 1


def test_a_shutdown_before_run_still_applies_what_is_queued(house: House) -> None:
    """Calls that were queued before are answered; no step is taken."""
    emitted = house.put(("ADD", ("a", 5)), ("UTILITY", (1, "div", (4, 2)))).run_to_shutdown()
    assert emitted == [("utility", 1, 2.0, None), ("shutdown",)]
    assert house.engine.steps == 0


def test_request_shutdown_queues_a_wakeup_and_nothing_else(house: House) -> None:
    """It may be called often."""
    house.loop.request_shutdown()
    house.loop.request_shutdown()
    assert [house.queue.get_nowait(), house.queue.get_nowait()] == [("WAKEUP", None)] * 2
    assert house.queue.empty()
    assert house.emitted == []


ENDINGS = [
    RuntimeError("x"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    queue.Empty("theirs"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
@pytest.mark.parametrize("method", ["has_work", "add", "abort", "step"])
def test_any_exception_of_the_engine_ends_the_loop(house: House, method: str, error: BaseException) -> None:
    """It is emitted last, held in `error`, and `run` returns."""

    def fail(*_: Any) -> Any:
        raise error

    setattr(house.engine, method, fail)
    messages = {"abort": ("ABORT", ["a"])}
    house.put(messages.get(method, ("ADD", ("a", 5))), ("UTILITY", (1, "div", (4, 2))))
    assert house.run()[-1] == ("fatal", repr(error))
    assert house.loop.error is error
    assert ("shutdown",) not in house.emitted
    untouched = 0 if method in {"has_work", "step"} else 1
    assert house.queue.qsize() == untouched


@pytest.mark.parametrize("method", ["abort", "step"])
def test_a_request_error_from_elsewhere_than_add_is_fatal(house: House, method: str) -> None:
    """Only add can refuse a request."""

    def fail(*_: Any) -> Any:
        raise RequestError("late")

    setattr(house.engine, method, fail)
    emitted = house.put(("ADD", ("a", 1)), ("ABORT", ["b"])).run()
    assert emitted == [("fatal", "RequestError('late')")]


@pytest.mark.parametrize("error", [*ENDINGS, RequestError("no")], ids=repr)
def test_any_exception_of_a_utility_answers_that_call_only(house: House, error: BaseException) -> None:
    """The loop goes on."""

    def fail(*_: Any) -> Any:
        raise error

    house.engine.utility = fail
    emitted = house.put(("UTILITY", (1, "x", ())), ("ADD", ("a", 5))).run_to_shutdown()
    assert emitted == [("utility", 1, None, repr(error)), ("shutdown",)]
    assert house.engine.left == {"a": 5}
    assert house.loop.error is None


class HostileError(RequestError):
    def __repr__(self) -> str:
        raise SystemExit("repr")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("utility", [("utility", 1, None, "<HostileError: its repr raised SystemExit>"), ("shutdown",)]),
        ("add", [("refused", "a", "<HostileError: its str raised SystemExit>"), ("shutdown",)]),
        ("abort", [("fatal", "<HostileError: its repr raised SystemExit>")]),
    ],
)
def test_an_exception_without_text_breaks_nothing(house: House, method: str, expected: list[tuple[Any, ...]]) -> None:
    """The emit names its type."""

    def fail(*_: Any) -> Any:
        raise HostileError

    setattr(house.engine, method, fail)
    message = {
        "utility": ("UTILITY", (1, "x", ())),
        "add": ("ADD", ("a", 1)),
        "abort": ("ABORT", ["a"]),
    }[method]
    assert house.put(message).run_to_shutdown() == expected


@pytest.mark.parametrize("forbidden", ["output", "utility", "refused", "fatal", "shutdown"])
def test_an_emit_that_raises_ends_the_loop(forbidden: str) -> None:
    """`run` returns with the first error, and never emits both ends."""
    house = House()
    broken = BrokenPipeError("the other end is gone")
    wanted: list[str] = []

    def emit(item: tuple[Any, ...]) -> None:
        wanted.append(item[0])
        if item[0] == forbidden:
            raise broken

    loop = BusyLoop(house.engine, house.queue, emit)
    house.put(
        ("ADD", ("bad", "refuse")),
        ("UTILITY", (1, "div", (1, 1))),
        ("ADD", ("a", 1)),
    )
    if forbidden == "fatal":
        house.put(("EXECUTOR_FAILED", "first"))
    house.engine.on_step = loop.request_shutdown
    loop.run()
    assert str(loop.error) == ("Executor failed: first" if forbidden == "fatal" else str(broken))
    assert wanted.count(forbidden) == 1
    assert wanted[-1] == ("shutdown" if forbidden == "shutdown" else "fatal")
    assert ("shutdown" in wanted) != ("fatal" in wanted)


class Helped(Toy):
    """A toy with helpers, which takes a failure callback."""

    def set_failure_callback(self, callback: Callable[[str], None]) -> None:
        self.callback = callback


def test_a_failure_callback_from_any_thread_ends_the_idle_loop() -> None:
    """The engine's helper tells its reason, and the loop wakes up and ends."""
    house = House(Helped(), PatientQueue())
    with house.running() as thread:
        assert house.queue.waiting.wait(HANG_S)
        helper = threading.Thread(target=house.engine.callback, args=("worker 1 exited with code 9",))
        helper.start()
        helper.join(HANG_S)
        thread.join(HANG_S)
    assert house.emitted == [("fatal", "RuntimeError('Executor failed: worker 1 exited with code 9')")]


def test_a_failure_callback_keeps_only_the_queue_alive() -> None:
    """An engine's helper that outlives the loop holds neither the loop nor the engine."""
    house = House(Helped())
    callback = house.engine.callback
    gone = [weakref.ref(house.loop), weakref.ref(house.engine)]
    del house
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    callback("too late")


def test_a_signal_handler_ends_the_idle_loop() -> None:
    """The signal interrupts the wait of the main thread, without an exception."""
    house = House(input_queue=PatientQueue())
    ended = threading.Event()

    def send_when_idle() -> None:
        house.queue.waiting.wait(HANG_S)
        while not ended.is_set():
            # Again and again: Python heeds one that comes right before the wait begins with the next event only.
            os.kill(os.getpid(), signal.SIGUSR1)
            ended.wait(0.05)

    previous = signal.signal(signal.SIGUSR1, lambda *_: house.loop.request_shutdown())
    sender = threading.Thread(target=send_when_idle)
    try:
        sender.start()
        assert house.run() == [("shutdown",)]
    finally:
        ended.set()
        sender.join(HANG_S)
        signal.signal(signal.SIGUSR1, previous)


def test_a_signal_handler_ends_the_busy_loop_in_the_midst_of_a_flood() -> None:
    """A timer strikes anywhere, also within a put of the same thread: no deadlock, and exactly one end."""
    house = House()

    def refill() -> None:
        house.put(("WAKEUP", None), ("ADD", ("a", 2)))

    house.engine.on_step = refill
    previous = signal.signal(signal.SIGALRM, lambda *_: house.loop.request_shutdown())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
        emitted = house.put(("ADD", ("a", 2))).run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert emitted[-1] == ("shutdown",)
    assert emitted.count(("shutdown",)) == 1
    assert house.loop.error is None


class ScriptedQueue(queue.SimpleQueue[Any]):
    """A queue whose next messages arrive as soon as somebody waits for them."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            self.deliver()
        return super().get(block, timeout)

    def deliver(self) -> None:
        raise NotImplementedError


Script = list[list[tuple[str, Any]]]

IDS = st.sampled_from("abcd")
MESSAGES = st.one_of(
    st.tuples(st.just("ADD"), st.tuples(IDS, st.one_of(st.integers(1, 4), st.just("refuse")))),
    st.tuples(st.just("ABORT"), st.lists(IDS, max_size=3)),
    st.tuples(st.just("UTILITY"), st.tuples(st.integers(), st.just("div"), st.just((6, 3)))),
    st.tuples(st.just("UTILITY"), st.tuples(st.integers(), st.just("div"), st.just((6, 0)))),
    st.just(("WAKEUP", None)),
)
ENDS = st.one_of(
    st.just(("ADD", ("e", "not a number"))),
    st.just(("EXECUTOR_FAILED", "gone")),
    st.just(("SHUTDOWN", None)),
)
SCRIPTS = st.tuples(
    st.lists(st.lists(MESSAGES, max_size=5), max_size=8),
    st.lists(MESSAGES, max_size=3),
    ENDS,
    st.lists(MESSAGES, max_size=3),
)


class Model:
    """What the loop must emit: each batch of messages is applied whole, then comes at most one step."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.emits: list[tuple[Any, ...]] = []
        self.untouched: list[tuple[str, Any]] = []

    def play(self, script: Script) -> None:
        for messages in script:
            if not self.apply(messages):
                return
            self.step()

    def apply(self, messages: list[tuple[str, Any]]) -> bool:
        for at, (kind, payload) in enumerate(messages):
            if self.apply_one(kind, payload):
                self.untouched = [message for message in messages[at + 1 :] if message[0] != "SHUTDOWN"]
                return False
        if ("SHUTDOWN", None) in messages:
            self.emits.append(("shutdown",))
            return False
        return True

    def apply_one(self, kind: str, payload: Any) -> bool:
        """Apply a message; return whether it is the end."""
        match kind, payload:
            case "ADD", (request_id, "refuse"):
                self.emits.append(("refused", request_id, f"no {request_id}"))
            case "ADD", (_, str()):
                self.emits.append(("fatal", repr(TypeError('can only concatenate str (not "int") to str'))))
                return True
            case "ADD", (request_id, count):
                self.left[request_id] = count
            case "ABORT", request_ids:
                self.left = {key: left for key, left in self.left.items() if key not in request_ids}
            case "UTILITY", (call_id, _, (_, 0)):
                self.emits.append(("utility", call_id, None, "ZeroDivisionError('division by zero')"))
            case "UTILITY", (call_id, _, _):
                self.emits.append(("utility", call_id, 2.0, None))
            case "EXECUTOR_FAILED", reason:
                self.emits.append(("fatal", f"RuntimeError('Executor failed: {reason}')"))
                return True
        return False

    def step(self) -> None:
        self.left = {request_id: left - 1 for request_id, left in self.left.items()}
        self.emits += [("output", item) for item in self.left.items()]
        self.left = {request_id: left for request_id, left in self.left.items() if left}


def play_for_real(script: Script) -> House:
    """Run the loop; the next messages arrive during each step, or when it has begun to wait."""
    house = House(input_queue=ScriptedQueue())
    remaining = iter(script)

    def deliver() -> None:
        for kind, payload in next(remaining):
            if kind == "SHUTDOWN":
                house.loop.request_shutdown()
            else:
                house.put((kind, payload))
        house.put(("WAKEUP", None))

    house.queue.deliver = deliver
    house.engine.on_step = deliver
    deliver()
    house.run()
    return house


def drained(house: House) -> list[Any]:
    messages = [house.queue.get_nowait() for _ in range(house.queue.qsize())]
    return [message for message in messages if message[0] != "WAKEUP"]


@settings(deadline=None)
@given(SCRIPTS)
def test_every_history_of_messages_is_emitted_as_the_model_says(
    parts: tuple[Script, list[Any], Any, list[Any]],
) -> None:
    """Whatever arrives when, every emit is the expected one, in order, up to the one end."""
    batches, before, end, after = parts
    script = [*batches, [*before, end, *after]]
    model = Model()
    model.play(script)
    house = play_for_real(script)
    assert house.emitted == model.emits
    assert drained(house) == [message for message in model.untouched if message[0] != "WAKEUP"]
