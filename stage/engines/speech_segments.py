"""Turns the probability of speech in each window of a recording into segments of speech; pure, no audio in it."""

from __future__ import annotations

from typing import NamedTuple

# Speech goes on until its probability has fallen this far below the threshold, so that it does not flicker.
_HYSTERESIS = 0.15


class Span(NamedTuple):
    """A stretch of a recording, in samples."""

    start: int
    end: int


class SegmentRules(NamedTuple):
    """When speech begins, ends and is cut; lengths in samples.

    Args:
        threshold: the probability at which speech begins.
        min_speech: shorter speech is dropped.
        min_silence: a shorter silence does not end a segment.
        pad: how much is kept before and after the speech.
        max_speech: no segment is longer, its padding included; at least two windows.
        window: how much each probability stands for.
    """

    threshold: float
    min_speech: int
    min_silence: int
    pad: int
    max_speech: int
    window: int


class SpeechSegmenter:
    """Follow one recording, window by window.

    Segments come in order, never overlap, and lie within the recording.

    Args:
        rules: what makes a segment.
        length: samples in the recording; its last window may be a part of one.
    """

    def __init__(self, rules: SegmentRules, length: int) -> None:
        self._rules = rules
        self._length = length
        self._seen = 0
        self._floor = 0  # the end of the last segment
        self._start: int | None = None  # of the open segment, with its padding
        self._voice_from = 0
        self._voice_to = 0
        self._scores: list[float] = []  # of each window since the open segment was opened or cut

    def feed(self, score: float) -> Span | None:
        """Take the probability of speech in the next window; return the segment that has thereby ended."""
        rules = self._rules
        at, self._seen = self._seen, self._seen + rules.window
        if self._start is None:
            if score >= rules.threshold:
                self._open(at, score)
            return None
        self._scores.append(score)
        if score >= rules.threshold - _HYSTERESIS:
            self._voice_to = self._seen
        elif self._seen - self._voice_to >= rules.min_silence:
            return self._close(self._start, min(self._seen, self._length))
        if self._seen + rules.window - self._start > rules.max_speech:
            return self._cut(self._start)
        return None

    def finish(self) -> Span | None:
        """Return the segment that was still open at the end of the recording."""
        return None if self._start is None else self._close(self._start, self._length)

    def _open(self, at: int, score: float) -> None:
        room = self._rules.max_speech - 2 * self._rules.window  # for padding, so that the next window fits as well
        self._start = max(self._floor, at - min(self._rules.pad, room))
        self._voice_from, self._voice_to = at, self._seen
        self._scores = [score]

    def _close(self, start: int, limit: int) -> Span | None:
        self._start = None
        if min(self._voice_to, limit) - self._voice_from < self._rules.min_speech:
            return None
        self._floor = min(self._voice_to + self._rules.pad, limit)
        return Span(start, self._floor)

    def _cut(self, start: int) -> Span:
        """End a segment that is too long where speech was least likely, in its later half."""
        later = self._scores[len(self._scores) // 2 :]
        kept = len(later) - min(range(len(later)), key=lambda i: (later[i], -i))
        self._floor = self._seen - kept * self._rules.window
        self._scores = self._scores[-kept:]
        # What follows the cut belongs to speech that was long enough, so `_voice_from` stays.
        self._start = self._floor if self._voice_to > self._floor else None
        return Span(start, self._floor)
