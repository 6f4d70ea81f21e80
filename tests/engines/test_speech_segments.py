"""From probabilities to segments, without any audio."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stage.engines.speech_segments import SegmentRules, Span, SpeechSegmenter

WINDOW = 10
RULES = SegmentRules(threshold=0.5, min_speech=20, min_silence=30, pad=5, max_speech=1000, window=WINDOW)


def segments(scores: list[float], rules: SegmentRules = RULES, length: int | None = None) -> list[Span]:
    segmenter = SpeechSegmenter(rules, len(scores) * WINDOW if length is None else length)
    spans = [segmenter.feed(score) for score in scores]
    spans.append(segmenter.finish())
    return [span for span in spans if span]


def test_a_pause_separates() -> None:
    """Speech ends with a pause that is long enough; each segment has its padding."""
    assert segments([0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0]) == [Span(5, 35), Span(55, 85)]


def test_a_short_pause_joins() -> None:
    """A pause that is too short belongs to the speech."""
    assert segments([0, 1, 1, 0, 0, 1, 1, 0, 0, 0]) == [Span(5, 75)]


def test_short_speech_is_dropped() -> None:
    """A click is no speech."""
    assert segments([0, 1, 0, 0, 0, 0, 0]) == []


def test_speech_may_weaken() -> None:
    """Speech that has begun goes on until it is well below the threshold; it does not begin there."""
    assert segments([0.4, 0.5, 0.4, 0.4, 0.3, 0.3, 0.3]) == [Span(5, 45)]


def test_a_segment_comes_when_its_end_is_known() -> None:
    """A segment is told with the window that completes the pause after it, not at the end."""
    segmenter = SpeechSegmenter(RULES, 6 * WINDOW)
    told = [segmenter.feed(score) for score in [1, 1, 0, 0, 0, 0]]
    assert told == [None, None, None, None, Span(0, 25), None]


def test_the_end_closes_a_segment() -> None:
    """Speech that goes on to the end ends there, and its padding is no longer than the recording."""
    assert segments([0, 1, 1, 1], length=38) == [Span(5, 38)]


def test_long_speech_is_cut_where_it_is_weakest() -> None:
    """Speech that is too long is cut in its later half, where speech is least likely; nothing is lost."""
    rules = RULES._replace(max_speech=100)
    scores = [0.6, *[0.9] * 5, 0.7, *[0.9] * 8]
    assert segments(scores, rules) == [Span(0, 60), Span(60, 150)]


def test_a_pause_at_the_cut_ends_the_segment() -> None:
    """When the cut falls into a pause that is not over, nothing but silence follows."""
    rules = RULES._replace(max_speech=100)
    assert segments([*[1.0] * 9, 0, 0, 0, 0], rules) == [Span(0, 90)]


rules_strategy = st.builds(
    SegmentRules,
    threshold=st.sampled_from([0.2, 0.5, 0.9]),
    min_speech=st.just(0),
    min_silence=st.integers(0, 60),
    pad=st.integers(0, 60),
    max_speech=st.integers(2 * WINDOW, 300),
    window=st.just(WINDOW),
)


@given(st.lists(st.floats(0, 1), max_size=80), rules_strategy, st.integers(0, WINDOW - 1))
def test_segments_are_sound(scores: list[float], rules: SegmentRules, missing: int) -> None:
    """Segments are in order, apart, inside the recording and not too long; all that is surely speech is in one."""
    length = max(0, len(scores) * WINDOW - missing)
    spans = segments(scores, rules, length)

    assert all(0 <= span.start < span.end <= length for span in spans)
    assert all(span.end - span.start <= rules.max_speech for span in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    voiced = [i * WINDOW for i, score in enumerate(scores) if score >= rules.threshold and i * WINDOW < length]
    assert all(any(span.start <= at < span.end for span in spans) for at in voiced)
