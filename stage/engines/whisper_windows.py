"""Turns the data of a request into the windows of at most 30 seconds that Whisper takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stage.engine import RequestError
from stage.engines.audio import RATES, SAMPLE_RATE, path_of, read_wav
from stage.engines.log_mel import WINDOW_SAMPLES
from stage.engines.resample import resample

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Audio that is longer than a window is cut in the quietest tenth of a second of the window's last five seconds.
_CUT_WITHIN = 5 * SAMPLE_RATE
_CUT_BLOCK = SAMPLE_RATE // 10


class Window(NamedTuple):
    """A piece of a request's audio: samples at 16 kHz, and where it begins."""

    start_s: float
    audio: NDArray[np.float32]

    @property
    def end_s(self) -> float:
        """Where it ends, in seconds."""
        return self.start_s + len(self.audio) / SAMPLE_RATE


def windows_of(data: Any, max_audio_s: float) -> list[Window]:
    """Return the windows of a request, in order.

    Args:
        data: `{"path"}`, or `{"audio", "sample_rate", "start"}` as the stage before sends it: float samples of
            shape (n,), their rate (16 kHz if missing), and the seconds at which they begin (0 if missing).
        max_audio_s: more audio than this is refused.

    Raises:
        RequestError: the data has another shape, or its file cannot be read.
    """
    if not isinstance(data, dict) or "audio" not in data:
        return _cut(read_wav(path_of(data), max_audio_s), 0.0)
    start_s = data.get("start", 0.0)
    if isinstance(start_s, bool) or not isinstance(start_s, int | float) or not np.isfinite(start_s):
        raise RequestError(f'"start" must be a number of seconds, not {start_s!r:.100}')
    audio = _checked(data["audio"])
    rate_hz = data.get("sample_rate", SAMPLE_RATE)
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int) or rate_hz not in RATES:
        raise RequestError(f'"sample_rate" must be a whole number of hertz, {RATES[0]} to {RATES[-1]}')
    if len(audio) > max_audio_s * rate_hz:
        raise RequestError(f'"audio" is longer than {max_audio_s:g} s (the engine\'s argument max_audio_s)')
    return _cut(resample(audio, rate_hz, SAMPLE_RATE), start_s)


def _checked(audio: Any) -> NDArray[np.float32]:
    if not isinstance(audio, np.ndarray) or audio.ndim != 1 or audio.dtype.kind != "f":
        kind = f"{audio.dtype} of shape {audio.shape}" if isinstance(audio, np.ndarray) else type(audio).__name__
        raise RequestError(f'"audio" must be a numpy array of floats of shape (n,), not {kind}')
    if not len(audio) or not np.isfinite(audio).all():
        raise RequestError(f'"audio" must hold samples, and finite ones; it has {len(audio)}')
    return audio.astype(np.float32, copy=False)


def _cut(audio: NDArray[np.float32], start_s: float) -> list[Window]:
    windows = []
    first = 0
    while len(audio) - first > WINDOW_SAMPLES:
        end = first + WINDOW_SAMPLES
        end += _quietest(audio[end - _CUT_WITHIN : end]) - _CUT_WITHIN
        windows.append(Window(start_s + first / SAMPLE_RATE, audio[first:end]))
        first = end
    return [*windows, Window(start_s + first / SAMPLE_RATE, audio[first:])]


def _quietest(audio: NDArray[np.float32]) -> int:
    """The middle of the quietest block."""
    energy = np.square(audio.reshape(-1, _CUT_BLOCK)).sum(axis=1)
    return int(energy.argmin()) * _CUT_BLOCK + _CUT_BLOCK // 2
