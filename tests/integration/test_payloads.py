"""Data arrives as it was sent, small and large, and what cannot be sent fails alone."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from harness import HANG_S, data_of, pipeline_config, stage

from stage.codec import EncodeError
from supervisor import Outcome, Pipeline, Request, RequestFailedError, StageDiedError, UtilityError

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1 << 20

PLAIN = [
    b"",
    b"\x00\xff",
    b"x" * (16 * 1024 - 1),
    b"x" * (16 * 1024 + 1),
    bytes(8 * MB),
    "",
    "grüße, 世界 🚢\0",
    "long " * 10_000,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    -0.0,
    math.inf,
    True,
    [],
    {},
    [None, [1, [2.5, {"k": b"v"}]]],
    {"a": {"b": [1, "two", b"three"]}, "": ""},
    {1: "an integer as a key"},
    [b"y" * (1 * MB), "z" * (1 * MB)],
    list(range(20_000)),
]

ARRAYS: list[np.ndarray[Any, Any]] = [
    np.arange(12, dtype=np.int64).reshape(3, 4),
    np.zeros((0, 5), dtype=np.float32),
    np.array(7.5),
    np.array([True, False]),
    np.array(["ab", "c"]),
    np.array([1 + 2j]),
    np.array(["2024-01-01"], dtype="datetime64[D]"),
    np.arange(MB, dtype=np.float64),
    np.arange(MB, dtype=np.uint8).reshape(1024, 1024)[::2, ::3],
    np.asfortranarray(np.arange(90_000, dtype=np.float32).reshape(300, 300)),
    np.array([(1, 2.5)], dtype=[("n", "<i4"), ("x", "<f8")]),
    np.arange(10, dtype=">i2"),
]


@pytest.fixture
def pipeline(clean_slate: object) -> Iterator[Pipeline]:
    with Pipeline(pipeline_config(stage("first"), stage("second"))) as opened:
        yield opened


def test_plain_data(pipeline: Pipeline) -> None:
    """Bytes, text, numbers, lists and dicts come out equal and of the same type, after two stages."""
    handles = [pipeline.submit(data) for data in PLAIN]
    for data, handle in zip(PLAIN, handles, strict=True):
        (result,) = handle.result(HANG_S)
        assert (type(data), repr(data)) == (type(result.data), repr(result.data))


def test_arrays(pipeline: Pipeline) -> None:
    """Arrays of every shape and kind come out equal, with their dtype, after two stages."""
    handles = [pipeline.submit(data) for data in ARRAYS]
    for data, handle in zip(ARRAYS, handles, strict=True):
        (result,) = handle.result(HANG_S)
        assert (data.dtype, data.shape) == (result.data.dtype, result.data.shape)
        np.testing.assert_array_equal(data, result.data)


def test_deep_nesting(pipeline: Pipeline) -> None:
    """Data that nests too deeply for somebody's stack is refused there, and hurts nothing else."""
    data: list[Any] = []
    for depth in range(1000):
        data = [data]
        if depth < 900:
            continue
        with suppress(EncodeError, RequestFailedError, msgspec.DecodeError):
            (result,) = pipeline.submit(data).result(HANG_S)
            assert repr(data) == repr(result.data)
    assert pipeline.died is None


@pytest.mark.parametrize("junk", [b"\xc1", b"\x92\x01", b"\x01\x02"])
def test_junk_that_is_taken_for_encoded(pipeline: Pipeline, junk: bytes) -> None:
    """msgspec.Raw within the data is not looked into by the encoder: its request fails, alone."""
    bad, good = pipeline.submit([msgspec.Raw(junk)]), pipeline.submit("good")
    with pytest.raises(RequestFailedError, match="cannot be decoded"):
        bad.result(HANG_S)
    assert data_of(good.result(HANG_S)) == ["good"]


def test_nested_arrays(pipeline: Pipeline) -> None:
    """Small and large arrays, nested in lists and dicts, find their places again."""
    large, small = np.arange(MB, dtype=np.float64), np.arange(3)
    (result,) = pipeline.submit({"l": [large, {"s": small}], "again": large[::-1], "b": b"x" * MB}).result(HANG_S)
    np.testing.assert_array_equal(large, result.data["l"][0])
    np.testing.assert_array_equal(small, result.data["l"][1]["s"])
    np.testing.assert_array_equal(large[::-1], result.data["again"])
    assert result.data["b"] == b"x" * MB


def test_numpy_numbers(pipeline: Pipeline) -> None:
    """Numbers of numpy arrive as Python's."""
    (result,) = pipeline.submit([np.float32(1.5), np.int64(3), np.bool_(True)]).result(HANG_S)
    assert result.data == [1.5, 3, True]


def test_results_of_many_messages_do_not_mix(pipeline: Pipeline) -> None:
    """Large and small payloads that travel in the same message keep to their own requests."""
    sent = [np.full(5_000 if number % 2 else 5, number, dtype=np.int64) for number in range(50)]
    handles = [pipeline.submit([array, number]) for number, array in enumerate(sent)]
    for number, handle in enumerate(handles):
        (result,) = handle.result(HANG_S)
        assert number == result.data[1]
        np.testing.assert_array_equal(sent[number], result.data[0])


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (object(), "builtins.object"),
        ([{"deep": threading.Lock()}], "lock"),
        (2**64, r"2\*\*64 - 1"),
        (np.array([object()]), "object"),
        (1j, "complex"),
    ],
)
def test_request_that_cannot_be_encoded(pipeline: Pipeline, data: Any, named: str) -> None:
    """Data that cannot be sent raises a TypeError that names what is in the way, and leaves nothing under way."""
    with pytest.raises(TypeError, match=named):
        pipeline.submit(data, "r1")
    assert pipeline.in_flight == 0
    assert data_of(pipeline.submit("fine", "r1").result(HANG_S)) == ["fine"]


def test_request_that_cannot_be_encoded_fails_alone_in_run(pipeline: Pipeline) -> None:
    """In `run` such a request ends as failed, and the others go on."""
    events = list(pipeline.run([Request("bad", [object()]), Request("good", "x")]))
    outcomes = {event.id: event for event in events if isinstance(event, Outcome)}
    assert (outcomes["bad"].outcome, outcomes["good"].outcome) == ("failed", "finished")
    assert "builtins.object" in (outcomes["bad"].error or "")


def test_request_that_could_not_be_read(pipeline: Pipeline) -> None:
    """A request that carries an error ends as failed with that error, and no stage sees it."""
    events = list(pipeline.run([Request("line-3", error="no JSON")]))
    assert [Outcome("line-3", "failed", "no JSON")] == events
    assert pipeline.utility("first", "added", timeout_s=HANG_S) == []


def test_output_that_cannot_be_encoded() -> None:
    """Such an output fails its request alone, and the engine is told to drop it."""
    with Pipeline(pipeline_config(stage("odd", "Unsendable"))) as pipeline:
        bad, good = pipeline.submit("bad", "bad"), pipeline.submit("good", "good")
        with pytest.raises(RequestFailedError, match=r"'bad'.*builtins\.object") as caught:
            bad.result(HANG_S)
        assert caught.value.report is None
        assert data_of(good.result(HANG_S)) == ["good"]
        assert len(pipeline.utility("odd", "aborted", timeout_s=HANG_S)) == 1
        assert data_of(pipeline.submit("again").result(HANG_S)) == ["again"]
        assert pipeline.died is None


def test_utility_result_that_cannot_be_encoded() -> None:
    """A utility's answer that cannot be sent fails that call alone."""
    with Pipeline(pipeline_config(stage("odd", "Unsendable"))) as pipeline:
        with pytest.raises(UtilityError, match=r"builtins\.object"):
            pipeline.utility("odd", "unsendable", timeout_s=HANG_S)
        assert pipeline.utility("odd", "echo", (1, "two"), timeout_s=HANG_S) == [1, "two"]


def test_output_of_another_type_is_fatal() -> None:
    """An element of a step that is no `Output` ends the stage, and the report says so."""
    with Pipeline(pipeline_config(stage("odd", "Unsendable"))) as pipeline:
        handle = pipeline.submit("tuple", "r1")
        with pytest.raises(RequestFailedError, match=r"stage\.Output") as caught:
            handle.result(HANG_S)
        assert caught.value.report is not None
        assert (caught.value.report.cause, caught.value.report.requests_lost) == ("fatal", ["r1"])
        with pytest.raises(StageDiedError):
            pipeline.submit("more")
