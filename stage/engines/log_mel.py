"""Computes the features that Whisper hears: a log-mel spectrogram of a window of 30 seconds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000
WINDOW_S = 30
WINDOW_SAMPLES = WINDOW_S * SAMPLE_RATE
MELS = 80
FRAMES = 3000

_FFT = 400
_HOP = WINDOW_SAMPLES // FRAMES
_FLOOR_POWER = 1e-10
_RANGE_LOG10 = 8.0  # what lies further below the loudest value is cut off


def log_mel(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the features of at most 30 s of audio, padded with silence to 30 s.

    As in "Robust Speech Recognition via Large-Scale Weak Supervision" (Radford et al., 2022).

    Args:
        audio: samples at 16 kHz in [-1, 1], shape (n,), n at most 480,000.

    Returns:
        Shape (80, 3000): mel bands, frames of 10 ms; about -1 to 1.5.
    """
    mel = np.full((MELS, FRAMES), _FLOOR_POWER, np.float32)
    # Frames that begin after the end of the audio are all silence: no need to transform them.
    heard = min(FRAMES, (len(audio) + _FFT // 2) // _HOP + 1)
    mel[:, :heard] = mel_filters() @ _power(audio, heard)
    logs = np.log10(np.maximum(mel, _FLOOR_POWER))
    scaled: NDArray[np.float32] = (np.maximum(logs, logs.max() - _RANGE_LOG10) + 4) / 4
    return scaled


def _power(audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """The power spectrum of the first frames, the first one centred on the first sample; shape (201, frames)."""
    padded = np.pad(np.pad(audio, (0, WINDOW_SAMPLES - len(audio))), _FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP][:frames]
    hann = np.hanning(_FFT + 1)[:-1].astype(np.float32)
    spectrum = np.fft.rfft(windows * hann, axis=1)
    return (spectrum.real**2 + spectrum.imag**2).T.astype(np.float32)


@lru_cache(maxsize=1)
def mel_filters() -> NDArray[np.float32]:
    """The triangular filters of the mel bands from 0 to 8 kHz, each of the same area; shape (80, 201)."""
    edges = _hz_of(np.linspace(0, _mel_of(SAMPLE_RATE / 2), MELS + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, _FFT // 2 + 1)
    low, centre, high = (edges[i : MELS + i, None] for i in range(3))
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (high - low)).astype(np.float32)


# Slaney's mel scale ("Auditory Toolbox", 1998): linear up to 1 kHz, then 27 steps for each factor of 6.4.
_LINEAR_HZ = 200 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27


def _mel_of(hz: float) -> float:
    """The mel value of a frequency above 1 kHz."""
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _hz_of(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HZ, above)
