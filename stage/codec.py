"""Payloads: what users send and engines return, as msgpack and frames (pure).

A payload is a msgpack body and the large buffers that the body names by index, each a frame of its own. A body above
`INLINE_LIMIT` is a frame as well, ahead of the others, and nil stands in its place: so a header frame stays small, and
whoever passes a payload on copies no large buffer.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

INLINE_LIMIT = 16 * 1024
"""Bytes from which on a buffer travels as a frame of its own."""

_ARRAY, _BYTES = 1, 2
_NIL = b"\xc0"


class EncodeError(TypeError):
    """This data cannot travel between processes; the text names the type that is in the way."""


class TooLargeError(ValueError):
    """This data is larger than one request may be."""


class Payload(msgspec.Struct, gc=False):
    """Encoded data: `body` goes into a header, `frames` follow it.

    The body is bytes to the header, never a part of its structure: how deeply the data nests cannot hurt whoever
    decodes the header.
    """

    body: bytes
    frames: Sequence[Any]


def encode(data: Any) -> Payload:
    """Encode `data`: bytes, text, numbers, lists, dicts and numpy arrays, nested as you like.

    Large arrays, and large bytes at the top level, are not copied: they must not change until they are sent.

    Raises:
        EncodeError: a part of it is of another type, or an integer exceeds 64 bits.
    """
    if type(data) is bytes:
        if len(data) <= INLINE_LIMIT:
            return Payload(_encode_plain(data), ())
        return Payload(_encode_plain(msgspec.msgpack.Ext(_BYTES, b"")), [data])
    if isinstance(data, msgspec.Raw):
        raise EncodeError("cannot be encoded: msgspec.Raw is taken for encoded already, and would not be checked")
    frames: list[Any] = []
    try:
        body = msgspec.msgpack.encode(data, enc_hook=partial(_encode_special, frames))
    except (TypeError, ValueError, OverflowError, RecursionError, BufferError) as exc:
        raise EncodeError(f"cannot be encoded: {exc}") from exc
    if len(body) > INLINE_LIMIT:
        frames.insert(0, body)
        return Payload(_NIL, frames)
    return Payload(body, frames)


def check_size(payload: Payload, max_bytes: int, what: str) -> None:
    """See that a payload is no larger than `max_bytes`.

    Args:
        payload: the encoded data.
        max_bytes: the config's `max_request_bytes`.
        what: names the data.

    Raises:
        TooLargeError: it is.
    """
    size = len(payload.body)
    for frame in payload.frames:
        size += memoryview(frame).nbytes
    if size > max_bytes:
        raise TooLargeError(f"{what} takes {size} bytes, more than max_request_bytes ({max_bytes})")


def decode(body: bytes, frames: Sequence[Any]) -> Any:
    """Decode a payload; arrays are views of their frames.

    Raises:
        msgspec.DecodeError: it is no payload of ours.
        ModuleNotFoundError: it holds an array and numpy is not installed.
        MemoryError: it is too large.
    """
    try:
        if not frames:
            return _inline_decoder.decode(body)
        if body == _NIL:
            body, frames = frames[0], frames[1:]
        return msgspec.msgpack.decode(body, ext_hook=partial(_decode_special, frames))
    except (msgspec.DecodeError, ModuleNotFoundError, MemoryError):
        raise
    except Exception as exc:  # numpy raises what it likes for a dtype that is none
        raise msgspec.DecodeError(f"no payload of ours: {exc!r}") from exc


_encode_plain = msgspec.msgpack.Encoder().encode


def _encode_special(frames: list[Any], obj: Any) -> Any:
    """Encode numpy's types; numpy is only looked up, since who has an array has imported it."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(obj, numpy.ndarray):
            return _encode_array(frames, obj)
        if isinstance(obj, numpy.generic):
            return obj.item()
    kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
    raise TypeError(f"{kind} is no data: use bytes, text, numbers, lists, dicts or arrays")


def _encode_array(frames: list[Any], array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype {array.dtype} holds Python objects, which cannot be sent")
    # Flattened to bytes, since dates and structured types do not support the buffer protocol.
    flat = array.ravel()  # copies only what is not contiguous
    raw = flat.view("u1").data if flat.nbytes else memoryview(b"")
    if raw.nbytes <= INLINE_LIMIT:
        content: Any = raw.tobytes()
    else:
        content = len(frames)
        frames.append(raw)
    return msgspec.msgpack.Ext(_ARRAY, _encode_plain((_describe(array.dtype), array.shape, content)))


def _describe(dtype: np.dtype[Any]) -> Any:
    """Spell a dtype as plain data. Records keep their offsets, which `dtype.descr` turns into fields of their own."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_describe(base), shape]
    if dtype.fields is None:
        return dtype.str
    fields = [(name, *dtype.fields[name][:2]) for name in dtype.names or ()]
    return [dtype.itemsize, *((name, _describe(kind), offset) for name, kind, offset in fields)]


def _decode_special(frames: Sequence[Any], code: int, data: memoryview) -> Any:
    if code == _BYTES:
        return bytes(frames[0])
    if code != _ARRAY:
        raise ValueError(f"unknown extension {code}")
    import numpy as np  # noqa: PLC0415 (an optional package)

    descr, shape, content = msgspec.msgpack.decode(data)
    dtype = np.dtype(descr) if isinstance(descr, str) else _structured(np.dtype, descr)
    raw = content if isinstance(content, bytes) else frames[content]
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _structured(make: Any, descr: Any) -> Any:
    """Undo `_describe`."""
    if isinstance(descr, str):
        return make(descr)
    if not isinstance(descr[0], int):
        base, shape = descr
        return make((_structured(make, base), tuple(shape)))
    itemsize, *fields = descr
    names = [name for name, _, _ in fields]
    formats = [_structured(make, kind) for _, kind, _ in fields]
    return make({"names": names, "formats": formats, "offsets": [at for _, _, at in fields], "itemsize": itemsize})


_inline_decoder = msgspec.msgpack.Decoder(ext_hook=partial(_decode_special, ()))
