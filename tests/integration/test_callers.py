"""What the callers of a pipeline may do: many at once, bounded by `max_in_flight`, from any thread."""

from __future__ import annotations

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from harness import HANG_S, Announcements, data_of, ended, fault, in_thread, pipeline_config, stage

from supervisor import Pipeline, RequestAbortedError, UtilityError


def test_max_in_flight_blocks_and_unblocks() -> None:
    """`submit` waits while `max_in_flight` requests are under way, however many parts they have."""
    submitted = threading.Event()
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=2)) as pipeline:
        first, second = pipeline.submit(["a"] * 5), pipeline.submit(["b"])
        results = []

        def submit_third() -> None:
            third = pipeline.submit(["c"])
            submitted.set()
            results.extend(third.result(HANG_S))

        thread = in_thread(submit_third)
        assert not submitted.wait(0.1)
        assert pipeline.in_flight == 2
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        assert data_of(second.result(HANG_S)) == ["b"]
        assert submitted.wait(HANG_S)
        pipeline.utility("gate", "open", (10,), timeout_s=HANG_S)
        assert ended(thread)
        assert data_of(results) == ["c"]
        assert data_of(first.result(HANG_S)) == ["a"] * 5


def test_abort_frees_a_slot() -> None:
    """An aborted request makes room for one that waits."""
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=1)) as pipeline:
        first = pipeline.submit("a")
        thread = in_thread(lambda: pipeline.submit("b"))
        first.abort()
        assert ended(thread)


def test_close_ends_a_submit_that_waits() -> None:
    """A thread that waits for a slot hears of the close, instead of waiting for ever."""
    errors = []
    with Pipeline(pipeline_config(stage("gate", "Gate"), max_in_flight=1)) as pipeline:
        handle = pipeline.submit("a")

        def submit() -> None:
            with pytest.raises(RuntimeError) as caught:
                pipeline.submit("b")
            errors.append(str(caught.value))

        thread = in_thread(submit)
    assert ended(thread)
    assert errors
    assert "closed" in errors[0]
    with pytest.raises(RequestAbortedError):
        handle.result(HANG_S)


@pytest.mark.parametrize("max_in_flight", [1, 3, 64])
def test_many_threads(max_in_flight: int) -> None:
    """8 threads that submit 50 requests each get their own results, whatever the bound."""
    config = pipeline_config(stage("split", "Split"), stage("echo"), max_in_flight=max_in_flight)

    def work(thread: int) -> list[list[str]]:
        return [data_of(pipeline.submit([f"{thread}", f"{number}"]).result(HANG_S)) for number in range(50)]

    with Pipeline(config) as pipeline, ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(8)))
    assert [[[f"{thread}", f"{number}"] for number in range(50)] for thread in range(8)] == seen


def test_threads_that_do_everything_at_once() -> None:
    """Submits, waits, aborts and utility calls from many threads all come to their end."""
    config = pipeline_config(stage("split", "Split"), stage("echo"), max_in_flight=5)

    def work(thread: int) -> list[str]:
        seen = []
        for number in range(40):
            handle = pipeline.submit([thread, number])
            if (thread + number) % 3 == 0:
                handle.abort()
            if (thread + number) % 4 == 0:
                assert [number] == pipeline.utility("echo", "echo", (number,), timeout_s=HANG_S)
            try:
                assert [thread, number] == data_of(handle.result(HANG_S))
                seen.append("finished")
            except RequestAbortedError:
                seen.append("aborted")
        return seen

    with Pipeline(config) as pipeline, ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(8)))
        assert pipeline.in_flight == 0
    assert all(len(outcomes) == 40 for outcomes in seen)


def test_submit_on_one_thread_and_wait_on_another() -> None:
    """A handle may be waited for by a thread that did not submit it, while others wait as well."""
    with Pipeline(pipeline_config(stage("only"), max_in_flight=200)) as pipeline, ThreadPoolExecutor(4) as pool:
        handles = [pipeline.submit(number) for number in range(200)]
        seen = list(pool.map(lambda handle: data_of(handle.result(HANG_S)), handles))
    assert [[number] for number in range(200)] == seen


def test_outputs_go_on_while_nobody_waits(announcements: Announcements) -> None:
    """A request reaches its last stage though no thread waits for it."""
    last = fault("step", "report", announce=announcements.path)
    with Pipeline(pipeline_config(stage("first"), stage("second"), last)) as pipeline:
        handle = pipeline.submit("x")
        assert announcements.wait().startswith("step")
        assert data_of(handle.result(HANG_S)) == ["x"]


def test_utility_answers() -> None:
    """A utility call gets its arguments and gives its answer, nested and large ones too."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        assert pipeline.utility("only", "echo", timeout_s=HANG_S) == []
        args = (1, "two", [3.0, None], {"k": b"v" * 100_000})
        assert list(args) == pipeline.utility("only", "echo", args, timeout_s=HANG_S)


def test_utility_exception() -> None:
    """An engine's exception in a utility call is UtilityError, and the stage goes on."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        with pytest.raises(UtilityError, match=r"'nonsense' of stage 'only/0': LookupError\(.*nonsense"):
            pipeline.utility("only", "nonsense", timeout_s=HANG_S)
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]


@pytest.mark.parametrize("action", ["sys_exit", "keyboard_interrupt", "raise_odd"])
def test_utility_survives_any_exception(action: str) -> None:
    """Whatever a utility call raises answers that call only."""
    faulty = stage("only", "FaultEngine", args={"point": "utility", "action": action})
    with Pipeline(pipeline_config(faulty)) as pipeline:
        with pytest.raises(UtilityError, match=r"SystemExit|KeyboardInterrupt|OddError"):
            pipeline.utility("only", "echo", timeout_s=HANG_S)
        assert pipeline.utility("only", "echo", ("again",), timeout_s=HANG_S) == ["again"]


def test_utility_past_its_time() -> None:
    """A late answer is TimeoutError, which names the knob; it is dropped, and later calls get their own answers."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        for number in range(10):
            with pytest.raises(TimeoutError, match=r"'only/0'.*'echo'.*timeout_s"):
                pipeline.utility("only", "echo", (f"late {number}",), timeout_s=0)
        assert pipeline.utility("only", "echo", ("in time",), timeout_s=HANG_S) == ["in time"]


@pytest.mark.parametrize(("name", "replica"), [("onyl", 0), ("only", 1), ("only", -1)])
def test_utility_of_an_unknown_stage(name: str, replica: int) -> None:
    """A stage process that is not there raises ValueError, which names those that are."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline, pytest.raises(ValueError, match="there are only/0"):
        pipeline.utility(name, "echo", replica=replica, timeout_s=HANG_S)


def test_utility_with_arguments_that_cannot_be_sent() -> None:
    """Arguments that no wire takes raise TypeError at once."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline, pytest.raises(TypeError, match=r"builtins\.object"):
        pipeline.utility("only", "echo", (object(),), timeout_s=HANG_S)


def test_utility_of_a_closed_pipeline() -> None:
    """A utility call after the close raises UtilityError."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        pass
    with pytest.raises(UtilityError, match="closed"):
        pipeline.utility("only", "echo", timeout_s=HANG_S)


class InterruptError(BaseException):
    """What a signal handler raises."""


# Where pyzmq frees a frame an exception cannot rise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_under_load() -> None:
    """Exceptions of a signal handler, at many moments of a busy loop, never make the close hang."""

    def interrupt(*_: object) -> None:
        raise InterruptError

    previous = signal.signal(signal.SIGVTALRM, interrupt)
    moments = random.Random(4711)  # noqa: S311 (no secret)
    try:
        for _ in range(4):
            with Pipeline(pipeline_config(stage("only"))) as pipeline:
                for _ in range(25):
                    # A message that an interrupt has torn closes the pipeline, which is a RuntimeError here.
                    with suppress(InterruptError, RuntimeError, RequestAbortedError):
                        try:
                            signal.setitimer(signal.ITIMER_VIRTUAL, moments.uniform(0.0005, 0.005))
                            for number in range(100):
                                pipeline.submit(number).result(HANG_S)
                        finally:
                            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, previous)
