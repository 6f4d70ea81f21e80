"""Payloads at the border between header and frames, and what becomes of bytes that are none of ours."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stage.codec import INLINE_LIMIT, Payload, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

AROUND = st.integers(-12, 12).map(lambda more: INLINE_LIMIT + more)
MAKERS: dict[str, Callable[[int], Any]] = {
    "bytes": lambda size: b"b" * size,
    "text": lambda size: "t" * size,
    "list of bytes": lambda size: [b"b" * size],
    "numbers": lambda size: [1] * size,
    "array": lambda size: np.arange(size, dtype=np.uint8),
    "wide array": lambda size: np.arange(size // 8 + 1, dtype=np.int64),
    "array in a mapping": lambda size: {"a": np.zeros(size, np.int8), "b": [np.ones(3)]},
    "two arrays": lambda size: [np.zeros(size, np.int8), np.ones(size, np.int8)],
}
SAMPLES: list[Any] = [
    [{"k": [1, 2.5, None, True, "ü", b"b"]}, np.arange(5)],
    np.zeros(2, [("a", "<i4"), ("b", "<f8", (2, 3))]),
    [np.array(["2020-01-01"], "M8[s]"), np.array(["ab"])],
    [np.zeros(INLINE_LIMIT + 1, np.uint8), "rest"],
    b"x" * (INLINE_LIMIT + 1),
]


def carried(payload: Payload) -> tuple[bytes, list[bytes]]:
    """What arrives of a payload: a body out of a header, and frames."""
    header = msgspec.msgpack.encode(payload.body)
    return msgspec.msgpack.decode(header, type=bytes), [bytes(frame) for frame in payload.frames]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=80)
@given(kind=st.sampled_from(sorted(MAKERS)), size=AROUND)
def test_around_the_limit(kind: str, size: int) -> None:
    """Data of any size about the limit comes back the same; its body never exceeds the limit."""
    data = MAKERS[kind](size)
    payload = encode(data)

    assert len(payload.body) <= INLINE_LIMIT + 5  # top-level bytes of just the limit, and their own head
    assert equal(data, decode(*carried(payload)))


@settings(max_examples=40)
@given(kinds=st.lists(st.sampled_from(sorted(MAKERS)), max_size=4), size=AROUND)
def test_many_frames(kinds: list[str], size: int) -> None:
    """Each large array is a frame of its own, found again whatever stands before it."""
    data = {f"{index} {kind}": MAKERS[kind](size) for index, kind in enumerate(kinds)}

    assert equal(data, decode(*carried(encode(data))))


@settings(max_examples=100)
@given(data=st.data(), sample=st.sampled_from(range(len(SAMPLES))))
def test_damaged_payload(data: st.DataObject, sample: int) -> None:
    """A payload with some bytes changed, cut off or frames lost is data by chance, or raises DecodeError."""
    body, frames = carried(encode(SAMPLES[sample]))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) // 2 + 1]))]
    frames = [frame[: data.draw(st.sampled_from([INLINE_LIMIT * 2, 3]))] for frame in frames]
    frames = frames[: data.draw(st.integers(0, 2))]

    with suppress(msgspec.DecodeError):
        decode(bytes(damaged), frames)


@settings(max_examples=200)
@example(body=b"\xd4\x07x", frames=[])
@given(body=st.binary(max_size=40), frames=st.lists(st.binary(max_size=40), max_size=3))
def test_junk(body: bytes, frames: list[bytes]) -> None:
    """Any bytes are data by chance, or raise DecodeError."""
    with suppress(msgspec.DecodeError):
        decode(body, frames)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc7\x00\x01",  # an array that says nothing
        b"",
        b"\xd4\x07x",  # an extension that is none of ours
        b"\xd4\x02x",  # bytes in a frame that is not there
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|O", [1], b"12345678")))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|u1", [1], 0)))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|u1", [2], b"x")))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|01", [1], b"x")))),
        msgspec.msgpack.encode({1: {}}).replace(b"\x01\x80", b"\x80\x01"),  # a mapping as a key
        b"\x91" * 100_000,  # a list in a list in a list …
    ],
)
def test_crafted(body: bytes) -> None:
    """What looks like a payload and is none raises DecodeError."""
    with pytest.raises(msgspec.DecodeError):
        decode(body, [])
