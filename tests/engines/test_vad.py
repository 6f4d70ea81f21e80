"""The stage that finds speech, driven by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from speech_files import SAMPLE, alsa_file, drain, import_or_skip, write_wav

from stage import Engine, Output, RequestError
from stage.engines.audio import read_wav

if TYPE_CHECKING:
    from pathlib import Path

VoiceActivityEngine = import_or_skip("stage.engines.vad").VoiceActivityEngine

SPANS = [(0.0, 3.1), (3.9, 6.5), (7.3, 10.0)]  # of the sample's sentences
STATS = {"running": 0, "done": 0, "audio_s": 0}


def hear(*paths: Path | str, **args: Any) -> dict[str, list[Output]]:
    """What one engine makes of these files, all at once; the ids are their numbers."""
    engine = VoiceActivityEngine(**args)
    for number, path in enumerate(paths):
        engine.add(str(number), {"path": str(path)})
    outputs = drain(engine)
    return {str(number): [out for out in outputs if out.request_id == str(number)] for number in range(len(paths))}


def spans(outputs: list[Output]) -> list[tuple[float, float]]:
    return [(out.data["start"], out.data["end"]) for out in outputs if out.data is not None]


def test_sentences_are_found() -> None:
    """Each sentence of the sample is a segment, with its times and its samples; only the last one is the end."""
    outputs = hear(SAMPLE)["0"]

    assert [out.finished for out in outputs] == [False, False, True]
    np.testing.assert_allclose(spans(outputs), SPANS, atol=0.15)
    audio = read_wav(str(SAMPLE), 60)
    for out in outputs:
        first, end = (round(out.data[key] * 16_000) for key in ("start", "end"))
        np.testing.assert_array_equal(audio[first:end], out.data["audio"])
        assert (np.float32, 16_000) == (out.data["audio"].dtype, out.data["sample_rate"])


def test_is_an_engine() -> None:
    """It has all methods of the contract."""
    assert isinstance(VoiceActivityEngine(), Engine)


def test_segments_stream() -> None:
    """A segment comes as soon as it has ended, while most of the file is still to be heard."""
    engine = VoiceActivityEngine(audio_per_step_s=1)
    engine.add("a", {"path": str(SAMPLE)})

    counts = []
    while engine.has_work():
        counts.append(len(engine.step()))

    assert [second for second, count in enumerate(counts[:-1], 1) if count] == [4, 7]
    assert counts[-1] == 1


@pytest.mark.parametrize("args", [{}, {"max_streams": 2}, {"audio_per_step_s": 0.1}, {"audio_per_step_s": 60}])
def test_files_do_not_disturb_each_other(tmp_path: Path, args: dict[str, Any]) -> None:
    """Several files at once give the segments that each gives alone, even when they have to wait for a turn."""
    audio = read_wav(str(SAMPLE), 60)
    late = write_wav(tmp_path / "late.wav", np.concatenate([np.zeros(5_000), audio[60_000:]]))
    silent = write_wav(tmp_path / "silent.wav", np.zeros(40_000))
    paths: list[Path | str] = [SAMPLE, late, silent, SAMPLE, late]
    alone = [spans(hear(path)["0"]) for path in paths]

    together = hear(*paths, **args)

    assert alone == [spans(outputs) for outputs in together.values()]
    assert all([out.finished for out in outputs].index(True) == len(outputs) - 1 for outputs in together.values())


def test_a_detector_starts_afresh() -> None:
    """Nothing of a file is left in the detector that the next one gets, nor of one that was aborted."""
    engine = VoiceActivityEngine(max_streams=1)
    engine.add("aborted", {"path": str(SAMPLE)})
    engine.step()
    engine.abort(["aborted"])
    engine.add("a", {"path": str(SAMPLE)})
    engine.add("b", {"path": str(SAMPLE)})

    outputs = drain(engine)

    expected = spans(hear(SAMPLE)["0"])
    assert [expected, expected] == [spans([out for out in outputs if out.request_id == name]) for name in "ab"]


def test_a_long_file_holds_up_nobody(tmp_path: Path) -> None:
    """A short file that comes after a long one ends before it."""
    long = write_wav(tmp_path / "long.wav", np.tile(read_wav(str(SAMPLE), 60), 6))
    engine = VoiceActivityEngine()
    engine.add("long", {"path": long})
    engine.step()
    engine.add("short", {"path": str(SAMPLE)})

    ends = [out.request_id for out in drain(engine) if out.finished]

    assert ends == ["short", "long"]


def test_noise_is_no_speech() -> None:
    """Noise gives no segment, only its end."""
    assert [Output("0", None, True)] == hear(alsa_file("Noise.wav"))["0"]


@pytest.mark.parametrize("samples", [1, 511, 512, 513, 16_000])
def test_short_and_silent_files(tmp_path: Path, samples: int) -> None:
    """A file without speech gives its end, and may be shorter than what a detector hears at a time."""
    path = write_wav(tmp_path / "silent.wav", np.zeros(samples))
    assert [Output("0", None, True)] == hear(path)["0"]


def test_speech_to_the_last_sample(tmp_path: Path) -> None:
    """Speech that the file cuts off ends where the file ends."""
    path = write_wav(tmp_path / "cut.wav", read_wav(str(SAMPLE), 60)[:30_001])
    assert spans(hear(path)["0"])[-1][1] == round(30_001 / 16_000, 3)


def test_long_speech_is_cut(tmp_path: Path) -> None:
    """No segment is longer than allowed, and the pieces of one sentence join without a gap."""
    found = spans(hear(SAMPLE, max_speech_s=2)["0"])

    assert len(found) == 6
    assert all(end - start <= 2 for start, end in found)
    assert [found[i][1] for i in (0, 2, 4)] == [found[i][0] for i in (1, 3, 5)]


def test_abort() -> None:
    """An aborted file gives nothing more, waiting or not; other ids are ignored, and the rest goes on."""
    engine = VoiceActivityEngine(max_streams=2, audio_per_step_s=1)
    for name in "abcd":
        engine.add(name, {"path": str(SAMPLE)})
    engine.step()

    engine.abort(["a", "d", "unknown"])
    outputs = drain(engine)
    engine.abort(["b"])

    assert {"b", "c"} == {out.request_id for out in outputs}
    assert engine.utility("stats", ()) == {**STATS, "done": 2, "audio_s": 20.15}


def test_stats() -> None:
    """`stats` counts; another name is an error of that call."""
    engine = VoiceActivityEngine()
    engine.add("a", {"path": str(SAMPLE)})

    assert engine.utility("stats", ()) == {**STATS, "running": 1}
    with pytest.raises(ValueError, match="unknown utility 'state': use 'stats'"):
        engine.utility("state", ())


def test_a_bad_file_fails_alone() -> None:
    """A request that is refused leaves nothing behind; the others go on."""
    engine = VoiceActivityEngine()
    engine.add("good", {"path": str(SAMPLE)})

    with pytest.raises(RequestError, match="no such file"):
        engine.add("bad", {"path": "/no/such/file.wav"})
    with pytest.raises(RequestError, match="the data must be like"):
        engine.add("worse", 3)

    assert {"good"} == {out.request_id for out in drain(engine)}


def test_shutdown_frees_everything() -> None:
    """After a shutdown nothing is left to do."""
    engine = VoiceActivityEngine()
    engine.add("a", {"path": str(SAMPLE)})
    engine.step()

    engine.shutdown()

    assert not engine.has_work()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("threshold", 1.5, "a number from 0.01 to 0.99, not 1.5"),
        ("threshold", float("nan"), "a number from 0.01 to 0.99, not nan"),
        ("threshold", "0.5", "a number from 0.01 to 0.99, not '0.5'"),
        ("threshold", True, "a number from 0.01 to 0.99, not True"),
        ("min_speech_s", -1, "a number from 0 to 10, not -1"),
        ("min_silence_s", 11, "a number from 0 to 10, not 11"),
        ("pad_s", None, "a number from 0 to 10, not None"),
        ("max_speech_s", 31, "a number from 1 to 30, not 31"),
        ("max_audio_s", 0, "a number from 1 to 86400, not 0"),
        ("max_streams", 1.5, "a whole number from 1 to 1000, not 1.5"),
        ("audio_per_step_s", 0, "a number from 0.1 to 60, not 0"),
    ],
)
def test_bad_arguments(name: str, value: Any, allowed: str) -> None:
    """An argument that is out of range is refused with its name and the range."""
    with pytest.raises(ValueError, match=f"^{name} must be {allowed}$"):
        VoiceActivityEngine(**{name: value})
