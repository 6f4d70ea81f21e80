"""Descriptors that tell others that this process lives: a forked copy of it must not hold them."""

from __future__ import annotations

import os

_held: set[int] = set()


def hold(fd: int) -> None:
    """Take note of a descriptor that only this process may have."""
    _held.add(fd)


def let_go(fd: int) -> bool:
    """Forget it before it is closed; False if it is not ours, or not any more."""
    if fd not in _held:
        return False
    _held.discard(fd)
    return True


def _close_in_copy() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_copy)
