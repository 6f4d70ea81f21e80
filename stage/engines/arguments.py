"""Checks the numbers that an engine's constructor is given; the messages name the argument and its range."""

from __future__ import annotations

from typing import Any


def number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a float.

    Raises:
        ValueError: `value` is no number, or lies outside [low, high].
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, not {value!r:.100}")
    return float(value)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """Return `value`, a whole number.

    Raises:
        ValueError: `value` is no whole number, or lies outside [low, high].
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, not {value!r:.100}")
    return value
