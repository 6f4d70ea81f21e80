"""Payloads: data becomes a body and frames, and comes back."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from stage.codec import INLINE_LIMIT, EncodeError, decode, encode

LARGE = INLINE_LIMIT + 1

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([b"x" * LARGE, "ü" * LARGE])
)
arrays = npst.arrays(
    dtype=npst.boolean_dtypes()
    | npst.integer_dtypes()
    | npst.unsigned_integer_dtypes()
    | npst.floating_dtypes(sizes=(16, 32, 64))
    | npst.complex_number_dtypes(sizes=(64, 128))
    | npst.datetime64_dtypes()
    | npst.unicode_string_dtypes(max_len=4)
    | npst.byte_string_dtypes(max_len=4),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
large_arrays = st.builds(np.full, st.integers(LARGE, LARGE + 10), st.integers(0, 255), st.just(np.uint8))
nested = st.recursive(
    scalars | arrays | large_arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=4),
    max_leaves=12,
)


def through(data: Any) -> Any:
    """Encode, carry over a wire as frames of bytes, decode."""
    payload = encode(data)
    body, frames = payload.body, payload.frames
    # As it is part of a header there.
    carried: bytes = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=bytes)
    return decode(carried, [memoryview(bytes(frame)) for frame in frames])


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, arrays with their dtypes and shapes, NaN equal to itself."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and np.ascontiguousarray(one).tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and math.copysign(1, one * 0 + one) != 0)
    return bool(one == other)


@settings(max_examples=150, deadline=None)
@given(nested)
def test_round_trip(data: Any) -> None:
    """Any nesting of plain data and arrays comes back the same."""
    assert same(data, through(data))


@pytest.mark.parametrize(
    ("data", "back"),
    [
        ((1, (2,)), [1, [2]]),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (np.float32(0.5), 0.5),
        ([np.int8(-3), np.bool_(False), np.str_("s")], [-3, False, "s"]),
    ],
)
def test_near_relatives(data: Any, back: Any) -> None:
    """Tuples become lists, buffers bytes, numpy's numbers Python's."""
    assert same(back, through(data))


@pytest.mark.parametrize("order", ["C", "F"])
def test_array_that_is_not_contiguous(order: Any) -> None:
    """Slices, transposed and reversed arrays come back as what they look like."""
    whole = np.asarray(np.arange(40_000).reshape(200, 200), order=order)
    for view in (whole[::2, 1:], whole.T, whole[::-1, ::-3], whole[:0]):
        assert same(view, through(view))


@pytest.mark.parametrize(
    "dtype",
    [
        [("n", "<i4"), ("x", "<f8", (2, 3))],
        [("inner", [("a", "u1"), ("b", ">i2")]), ("s", "U3")],
        np.dtype([("a", "u1"), ("b", "<i8")], align=True),
    ],
)
def test_structured_array(dtype: Any) -> None:
    """Records keep the names, types and offsets of their fields."""
    array = np.zeros(5, dtype=dtype)
    assert same(array, through(array))


@pytest.mark.parametrize("data", [np.zeros(LARGE, dtype=np.uint8), b"x" * LARGE])
def test_large_buffers_are_not_copied(data: Any) -> None:
    """A large array, and large bytes at the top, travel as a frame that is the very memory."""
    (frame,) = encode(data).frames
    assert np.shares_memory(np.frombuffer(frame, np.uint8), np.frombuffer(data, np.uint8))


def test_decoded_arrays_are_views() -> None:
    """A large array is a view of its frame, and read-only as that is."""
    payload = encode(np.arange(LARGE))
    body, frames = payload.body, payload.frames
    carried = bytes(frames[0])
    back = decode(body, [carried])
    assert np.shares_memory(back, np.frombuffer(carried, np.uint8))
    assert not back.flags.writeable


def test_large_data_stays_out_of_the_header() -> None:
    """Whatever the data, a body is small: what is large is a frame."""
    for data in (["y" * LARGE], list(range(LARGE)), [np.zeros(LARGE, np.uint8)], b"x" * LARGE, [b"x" * LARGE]):
        payload = encode(data)
        body, frames = payload.body, payload.frames
        assert len(body) <= INLINE_LIMIT
        assert frames


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (object(), r"builtins\.object"),
        ({"k": [print]}, "builtin_function_or_method"),
        (2**64, r"2\*\*64"),
        (-(2**63) - 1, r"2\*\*63"),
        (1j, "complex"),
        (np.array([None]), "dtype object"),
        (np.array([(1, None)], dtype=[("a", "i4"), ("o", "O")]), "Python objects"),
    ],
)
def test_what_cannot_travel(data: Any, named: str) -> None:
    """Other data raises EncodeError, a TypeError, which names what is in the way."""
    with pytest.raises(EncodeError, match=named) as caught:
        encode(data)
    assert isinstance(caught.value, TypeError)


def test_endless_nesting() -> None:
    """A list that holds itself is no data either."""
    data: list[Any] = []
    data.append(data)
    with pytest.raises(EncodeError):
        encode(data)


@given(st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3))
def test_junk(body: bytes, frames: list[bytes]) -> None:
    """Junk raises an ordinary exception, whatever it is, or is data by chance."""
    with suppress(Exception):
        decode(body, frames)
