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
_ZERO_CROSSINGS = 64
_KAISER_BETA = 8.0
_CUTOFF = 0.96

# How much input is filtered at a time: it bounds the memory, which is about a hundred times as much at 48 kHz.
_BLOCK = 1 << 15


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
    result = np.empty(-(-len(audio) * up // down), np.float32)
    # After each `up` outputs and `down` inputs everything repeats, so that blocks of whole periods are independent.
    periods = max(16, _BLOCK // down)
    for block in range(-(-len(audio) // (periods * down))):
        piece = _piece(audio, block * periods * down, periods * down, taps.shape[1] // 2)
        _filter(piece, taps, down, result[block * periods * up :][: periods * up])
    return result


def _piece(audio: NDArray[np.float32], first: int, length: int, reach: int) -> NDArray[np.float32]:
    """A block of audio and its surroundings on both sides, with silence where the audio ends."""
    piece = np.zeros(length + 2 * reach, np.float32)
    start, end = max(0, first - reach), min(len(audio), first + length + reach)
    piece[start - first + reach :][: end - start] = audio[start:end]
    return piece


def _filter(piece: NDArray[np.float32], taps: NDArray[np.float32], down: int, result: NDArray[np.float32]) -> None:
    windows = np.lib.stride_tricks.sliding_window_view(piece, taps.shape[1])
    up = len(taps)
    # Output n lies at input n * down / up: each output `up` further on has the same fraction, hence the same taps.
    for phase in range(min(up, len(result))):
        outputs = result[phase::up]
        rows = windows[phase * down // up :: down][: len(outputs)]
        outputs[:] = np.ascontiguousarray(rows) @ taps[phase]  # BLAS takes no rows that overlap


@lru_cache(maxsize=1)
def _taps(up: int, down: int) -> NDArray[np.float32]:
    """The filter of each of the `up` fractions that an output's place can have, shape (up, taps)."""
    scale = _CUTOFF * min(1.0, up / down)
    reach = math.ceil(_ZERO_CROSSINGS / min(1.0, up / down))
    taps = np.empty((up, 2 * reach + 1), np.float32)
    for phase in range(up):
        distance = np.arange(-reach, reach + 1) - phase * down % up / up
        inside = np.clip(1 - (distance / (reach + 1)) ** 2, 0, None)
        weights = np.sinc(scale * distance) * np.i0(_KAISER_BETA * np.sqrt(inside))
        taps[phase] = weights / weights.sum()
    return taps
