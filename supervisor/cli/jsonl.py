"""JSON lines (pure): bytes to requests, results and outcomes to bytes.

A request is `{"id": "r1", "data": …}`. A line without an id, or that cannot be read, goes by the id `line-N`; what
cannot be read becomes a `Request` with an `error`, which names the line.

What JSON cannot say is written thus: an array as nested lists, bytes as base64 text, NaN and infinities as null,
a complex number as `[real, imaginary]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.run import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.handle import Outcome, Result

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is not held in memory: it is skipped, and its request fails."""

_KEYS = frozenset(("id", "data", "session"))
_WANTED = 'wanted {"id": "…", "data": …}'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineSplitter:
    """Cut a stream of chunks into numbered lines.

    Args:
        max_bytes: the longest line that is kept.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()
        self._too_long = False
        self._number = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines that `chunk` completes, with their numbers, counted from 1; None for one too long."""
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            self._grow(end)
            yield self._take()
        self._grow(tail)

    def finish(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the last line, if no newline ended it."""
        if self._tail or self._too_long:
            yield self._take()

    def _grow(self, piece: bytes) -> None:
        if self._too_long or len(self._tail) + len(piece) > self._max_bytes:
            self._too_long = True
            self._tail = bytearray()
        else:
            self._tail += piece

    def _take(self) -> tuple[int, bytes | None]:
        self._number += 1
        line = None if self._too_long else bytes(self._tail)
        self._tail, self._too_long = bytearray(), False
        return self._number, line


def read_request(number: int, line: bytes | None) -> Request | None:
    """Turn a line into a request; None for a blank line.

    Args:
        number: counted from 1.
        line: its bytes; None for a line that was too long to keep.
    """
    if line is None:
        return _unreadable(number, f"it is longer than {MAX_LINE_BYTES} bytes")
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    if not line.strip():
        return None
    try:
        message = msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        return _unreadable(number, f"no valid JSON ({exc}), {_WANTED}")
    except RecursionError:
        return _unreadable(number, "nested too deeply")
    problem = _problem(message)
    if problem is not None:
        return _unreadable(number, problem)
    return Request(message.get("id", _id_of(number)), message["data"], session=message.get("session"))


def _problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return f"a JSON {_kind(message)}, {_WANTED}"
    if "id" in message and not (isinstance(message["id"], str) and message["id"]):
        return f"the id {message['id']!r:.100} is no text, or empty, {_WANTED}"
    if not isinstance(message.get("session", ""), str):
        return f"the session {message['session']!r:.100} is no text, {_WANTED}"
    named = f" (id {message['id']!r:.100})" if "id" in message else ""
    if "data" not in message:
        return f"there is no 'data'{named}, {_WANTED}"
    if unknown := sorted(message.keys() - _KEYS):
        return f"unknown key {', '.join(map(repr, unknown))}{named:.500}, {_WANTED}"
    return None


def _kind(message: Any) -> str:
    names = {list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return names.get(type(message), "null")


def _id_of(number: int) -> str:
    return f"line-{number}"


def _unreadable(number: int, problem: str) -> Request:
    return Request(_id_of(number), error=f"input line {number}: {problem}")


def to_line(event: Result | Outcome) -> bytes:
    """Turn a result or an outcome into a line, with its newline."""
    return _encoder.encode(event) + b"\n"


def _encode_special(obj: Any) -> Any:
    if isinstance(obj, complex):
        return [obj.real, obj.imag]
    if hasattr(obj, "tolist"):
        return obj.tolist()
    return repr(obj)


_encoder = msgspec.json.Encoder(enc_hook=_encode_special)
