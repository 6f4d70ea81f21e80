"""Turns an exception into text that is safe to log, to send and to store, whatever the exception does.

Every function returns text that encodes as UTF-8, in at most 64 KiB unless told otherwise, and raises
nothing: an exception whose own `__repr__` or `__str__` raises, or builds ten megabytes, must not hide the
death that it should explain.
"""

from __future__ import annotations

import traceback

TEXT_LIMIT = 64 * 1024

# Read past the metaclass, which may override `__qualname__` with code that raises.
_qualname_of = type.__dict__["__qualname__"].__get__


def safe_repr(exc: object) -> str:
    """Return `repr(exc)`, or a text that names the type if that raises."""
    try:
        text = repr(exc)
    except BaseException as raised:
        text = _unprintable(exc, "repr", raised)
    return fit_text(text)


def safe_str(exc: object) -> str:
    """Return `str(exc)`, or a text that names the type if that raises."""
    try:
        text = str(exc)
    except BaseException as raised:
        text = _unprintable(exc, "str", raised)
    return fit_text(text)


def traceback_text(exc: BaseException, limit: int = TEXT_LIMIT) -> str:
    """Format an exception with its whole chain of causes, as the interpreter would print it.

    Args:
        exc: the exception; causes and contexts come first, as in every Python traceback.
        limit: the most UTF-8 bytes to return. A longer text keeps its head, where the first cause is, and its
            tail, where the last error is.
    """
    try:
        text = "".join(traceback.format_exception(exc))
    except BaseException as raised:
        text = f"{safe_repr(exc)}\n({_unprintable(exc, 'traceback', raised)})\n"
    return fit_text(text, limit)


def _unprintable(value: object, what: str, raised: BaseException) -> str:
    return f"<{_qualname_of(type(value))}: its {what} raised {_qualname_of(type(raised))}>"


def fit_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Replace lone surrogates by their escapes; cut the middle out of a text of more than `limit` bytes."""
    # `str.encode` by name: `text` may be of a subclass with an `encode` of its own.
    encoded = str.encode(text, "utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded.decode()
    marker = f" [... {len(encoded) - limit} bytes and more cut out ...] "
    room = limit - len(marker)
    if room < 0:
        return _decode_cut(encoded[:limit])
    tail = room // 2
    return _decode_cut(encoded[: room - tail]) + marker + _decode_cut(encoded[len(encoded) - tail :])


def _decode_cut(encoded: bytes) -> str:
    # The cut may have split a character: drop the rest of it.
    return encoded.decode("utf-8", "ignore")
