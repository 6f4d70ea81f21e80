"""Changes the sample rate of audio with a polyphase windowed-sinc filter."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Zero crossings of the sinc on each side. With the Kaiser window this gives a stop band 80 dB down that begins at
# the lower of the two Nyquist frequencies, and a pass band up to 92 % of it.
_ZERO_CROSSINGS = 32
_KAISER_BETA = 8.0
_CUTOFF = 0.96

# Rows of the strided view that are made contiguous at a time, so that BLAS can take them.
_ROWS = 8192


def resample(audio: NDArray[np.float32], rate_hz: int, new_rate_hz: int) -> NDArray[np.float32]:
    """Resample mono audio.

    Args:
        audio: samples, shape (n,).
        rate_hz: their rate.
        new_rate_hz: the rate that is wanted.

    Returns:
        Samples of shape (ceil(n * new_rate_hz / rate_hz),), the first at the same instant as the first of `audio`.
    """
    if rate_hz == new_rate_hz:
        return audio
    divisor = math.gcd(rate_hz, new_rate_hz)
    up, down = new_rate_hz // divisor, rate_hz // divisor
    taps = _taps(up, down)
    reach = taps.shape[1] // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(audio, reach), taps.shape[1])
    result = np.empty(-(-len(audio) * up // down), np.float32)
    # Output n lies at input n * down / up: each output `up` further on has the same fraction, hence the same taps.
    for phase in range(min(up, len(result))):
        _filter(windows[phase * down // up :: down], taps[phase], result[phase::up])
    return result


def _filter(windows: NDArray[np.float32], taps: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    for first in range(0, len(result), _ROWS):
        rows = np.ascontiguousarray(windows[first : first + _ROWS])
        result[first : first + _ROWS] = rows[: len(result) - first] @ taps


@lru_cache(maxsize=4)
def _taps(up: int, down: int) -> NDArray[np.float32]:
    """The filter of each of the `up` fractions that an output's place can have, shape (up, taps)."""
    scale = _CUTOFF * min(1.0, up / down)
    reach = math.ceil(_ZERO_CROSSINGS / min(1.0, up / down))
    fraction = (np.arange(up) * down % up) / up
    distance = np.arange(-reach, reach + 1) - fraction[:, None]
    inside = np.clip(1 - (distance / (reach + 1)) ** 2, 0, None)
    taps = np.sinc(scale * distance) * np.i0(_KAISER_BETA * np.sqrt(inside))
    normal: NDArray[np.float32] = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return normal
