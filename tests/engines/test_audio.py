"""WAV files of all kinds, and what is said about files that are none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from speech_files import chunk, extensible, fmt, riff, sine, to_pcm, write_wav

from stage import RequestError
from stage.engines.audio import path_of, read_wav

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

EDGE = 400  # samples at the ends, where the filter hears the silence outside
PCM = to_pcm(sine(440, 16_000), 2)


def read(path: str, max_audio_s: float = 60) -> NDArray[np.float32]:
    return read_wav(path, max_audio_s)


def error_bound(width: int) -> float:
    """2 % of the amplitude, and the steps of 8-bit samples."""
    return 0.01 + (2**-7 if width == 1 else 0)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 44_099, 48_000, 96_000])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sine_survives(tmp_path: Path, rate_hz: int, width: int) -> None:
    """A tone of 440 Hz keeps its pitch, phase and amplitude, whatever the rate and the width of its samples."""
    path = write_wav(tmp_path / "tone.wav", sine(440, rate_hz), rate_hz, width)

    audio = read(path)

    expected = sine(440, 16_000)
    assert (np.dtype(np.float32), expected.shape) == (audio.dtype, audio.shape)
    assert np.abs(audio - expected)[EDGE:-EDGE].max() < error_bound(width)


@pytest.mark.parametrize("rate_hz", [11_025, 44_100, 48_000])
def test_resampling_is_clean(tmp_path: Path, rate_hz: int) -> None:
    """What resampling adds to a tone is 70 dB below it."""
    audio = read(write_wav(tmp_path / "tone.wav", sine(1_000, rate_hz), rate_hz, width=4))

    assert np.abs(audio - sine(1_000, 16_000))[EDGE:-EDGE].max() < 0.5 * 10 ** (-70 / 20)


@pytest.mark.parametrize("hz", [8_100, 9_000, 12_345, 20_000])
@pytest.mark.parametrize("rate_hz", [44_100, 48_000])
def test_no_aliasing(tmp_path: Path, rate_hz: int, hz: int) -> None:
    """A tone above half the new rate vanishes, 60 dB down, and does not come back as a lower one."""
    audio = read(write_wav(tmp_path / "tone.wav", sine(hz, rate_hz), rate_hz, width=4))

    assert np.abs(audio[EDGE:-EDGE]).max() < 0.5 * 10 ** (-60 / 20)


def test_channels_are_mixed(tmp_path: Path) -> None:
    """The result is the mean of all channels."""
    channels = np.stack([sine(440, 16_000), np.zeros(16_000), sine(880, 16_000)], axis=1)

    audio = read(write_wav(tmp_path / "three.wav", channels, width=3))

    np.testing.assert_allclose(audio, channels.mean(axis=1), atol=1e-5)


def test_long_files_are_read_in_blocks(tmp_path: Path) -> None:
    """Nothing is lost or doubled where one block ends and the next begins."""
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (1_100_000, 2))

    audio = read(write_wav(tmp_path / "long.wav", samples), max_audio_s=100)

    np.testing.assert_allclose(audio, samples.mean(axis=1), atol=1e-4)


@pytest.mark.parametrize(
    "content",
    [
        riff(chunk(b"fmt ", extensible(1)), chunk(b"data", PCM)),
        riff(chunk(b"LIST", b"odd"), chunk(b"fmt ", fmt()), chunk(b"fact", bytes(4)), chunk(b"data", PCM)),
        riff(chunk(b"fmt ", fmt()), chunk(b"data", PCM, size=0xFFFFFFFF)),
        riff(chunk(b"fmt ", fmt()), chunk(b"data", PCM), chunk(b"LIST", b"after")),
        riff(chunk(b"fmt ", fmt()), chunk(b"data", PCM, size=len(PCM) + 1000)) + b"\0",
    ],
    ids=["extensible", "other chunks first", "size unknown", "other chunks last", "cut short, in mid-sample"],
)
def test_headers(tmp_path: Path, content: bytes) -> None:
    """The audio is found in every kind of WAV file that real programs write."""
    path = tmp_path / "tone.wav"
    path.write_bytes(content)

    np.testing.assert_allclose(read(str(path)), sine(440, 16_000), atol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"RIFF", "is no WAV file"),
        (b"ID3\x04 some music, not speech", "is no WAV file: it begins with b'ID3"),
        (riff(), "damaged WAV file: it has no fmt chunk"),
        (riff(chunk(b"data", PCM)), "damaged WAV file: it has no fmt chunk"),
        (riff(chunk(b"fmt ", fmt())), "damaged WAV file: it has no data chunk"),
        (riff(chunk(b"fmt ", fmt()[:10])), "damaged WAV file: its fmt chunk has 10 bytes"),
        (riff(chunk(b"fmt ", fmt(channels=0)), chunk(b"data", PCM)), "has 0 channels at 16000 Hz: at least 1 channel"),
        (
            riff(chunk(b"fmt ", fmt(rate_hz=0)), chunk(b"data", PCM)),
            "has 1 channels at 0 Hz: at least 1 channel and 1000 to 192000 Hz",
        ),
        (riff(chunk(b"fmt ", fmt()), chunk(b"data", b"")), "holds no audio"),
        (riff(chunk(b"fmt ", fmt(3, bits=32)), chunk(b"data", PCM)), "is IEEE float, 32 bits: only PCM"),
        (riff(chunk(b"fmt ", extensible(3, bits=32)), chunk(b"data", PCM)), "is IEEE float, 32 bits: only PCM"),
        (riff(chunk(b"fmt ", fmt(7, bits=8)), chunk(b"data", PCM)), "is mu-law, 8 bits: only PCM"),
        (riff(chunk(b"fmt ", fmt(0x1234)), chunk(b"data", PCM)), "is format 4660, 16 bits: only PCM"),
        (riff(chunk(b"fmt ", fmt(bits=64)), chunk(b"data", PCM)), "is 64-bit PCM: only PCM of 8, 16, 24 or 32 bits"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that cannot be read is refused with its name and the reason."""
    path = tmp_path / "odd.wav"
    path.write_bytes(content)

    with pytest.raises(RequestError, match=message) as caught:
        read(str(path))

    assert repr(str(path)) in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is refused; for a relative one the message tells where it was looked for."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RequestError, match=r"there is no such file$"):
        read(str(tmp_path / "none.wav"))
    with pytest.raises(RequestError, match=f"'none.wav': there is no such file in '{tmp_path}'$"):
        read("none.wav")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory is refused, and so is a pipe, which would block the stage for ever."""
    os.mkfifo(tmp_path / "pipe.wav")

    with pytest.raises(RequestError, match="it is a directory"):
        read(str(tmp_path))
    with pytest.raises(RequestError, match="it is not a regular file"):
        read(str(tmp_path / "pipe.wav"))


def test_what_the_system_refuses_is_refused() -> None:
    """An error of the operating system fails the request with the system's reason."""
    with pytest.raises(RequestError, match="File name too long"):
        read("/tmp/" + "a" * 300)  # noqa: S108


def test_too_long_file_is_refused(tmp_path: Path) -> None:
    """A file above the limit is refused before it is read; the message names the limit's argument."""
    path = write_wav(tmp_path / "tone.wav", sine(440, 16_000, seconds=3))

    with pytest.raises(RequestError, match=r"is 3 s long; at most 2 s are read \(the engine's argument max_audio_s\)"):
        read(path, max_audio_s=2)


def test_path_is_taken_from_data() -> None:
    """The data of a request names the file."""
    assert path_of({"path": "a.wav", "start": 1}) == "a.wav"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a.wav", 'the data must be like {"path": "speech.wav"}, not \'a.wav\''),
        (None, "the data must be like"),
        ({"file": "a.wav"}, r"must have a \"path\", the name of a WAV file; it has \['file'\]"),
        ({"path": 5}, '"path" must be the name of a WAV file, not 5'),
        ({"path": ""}, '"path" must be the name of a WAV file'),
        ({"path": "a\0.wav"}, '"path" must be the name of a WAV file'),
    ],
)
def test_other_data_is_refused(data: Any, message: str) -> None:
    """Data of another shape is refused; the message tells what was found."""
    with pytest.raises(RequestError, match=message):
        path_of(data)
