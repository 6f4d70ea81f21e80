"""Reads the audio that a request names: WAV files of any rate, as 16 kHz mono.

The RIFF chunks are read here and not with `wave`, which refuses WAVE_FORMAT_EXTENSIBLE files on Python 3.11.
Whatever is wrong with a file is a `RequestError`, so that it fails that request only.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from stage.engine import RequestError
from stage.engines.resample import resample

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000

_PCM = 0x0001
_EXTENSIBLE = 0xFFFE
_PCM_SUBFORMAT = bytes.fromhex("0100000000001000800000aa00389b71")
_FORMAT_NAMES = {2: "ADPCM", 3: "IEEE float", 6: "A-law", 7: "mu-law", 0x55: "MP3"}
RATES = range(1_000, 192_001)
_BLOCK_FRAMES = 1 << 20


class _Format(NamedTuple):
    channels: int
    rate_hz: int
    width: int  # bytes a sample

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.width


def path_of(data: Any) -> str:
    """Return the path in the data of a request, `{"path": "speech.wav"}`.

    Raises:
        RequestError: the data has another shape.
    """
    if not isinstance(data, dict):
        raise RequestError(f'the data must be like {{"path": "speech.wav"}}, not {data!r:.100}')
    if "path" not in data:
        raise RequestError(f'the data must have a "path", the name of a WAV file; it has {list(data)!r:.100}')
    path = data["path"]
    if not isinstance(path, str) or not path or "\0" in path:
        raise RequestError(f'"path" must be the name of a WAV file, not {path!r:.100}')
    return path


def read_wav(path: str, max_audio_s: float) -> NDArray[np.float32]:
    """Read a WAV file of 8, 16, 24 or 32-bit PCM, of any rate and number of channels.

    Args:
        path: a relative one starts at the current directory.
        max_audio_s: a longer file is refused, since all of it is held in memory.

    Returns:
        Samples at 16 kHz in [-1, 1], the mean of the channels, shape (n,).

    Raises:
        RequestError: there is no such file, or it holds something else.
    """
    try:
        # A pipe or a device could block the stage for ever.
        if not Path(path).is_file():
            raise RequestError(f"cannot read {path!r}: {_why_no_file(Path(path))}")
        with Path(path).open("rb") as file:
            return _read(file, path, max_audio_s)
    except OSError as error:
        raise RequestError(f"cannot read {path!r}: {error.strerror or error}") from error


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return "it is a directory, not a WAV file"
    if path.exists():
        return "it is not a regular file"
    if path.is_absolute():
        return "there is no such file"
    return f"there is no such file in {str(Path.cwd())!r}"


def _read(file: BinaryIO, path: str, max_audio_s: float) -> NDArray[np.float32]:
    layout, size = _find_audio(file, path)
    # A writer that could not seek back left a size that is far too large: the file's end counts as well.
    size = min(size, Path(path).stat().st_size - file.tell())
    frames = size // layout.frame_bytes
    if frames <= 0:
        raise RequestError(f"{path!r} holds no audio")
    if frames > max_audio_s * layout.rate_hz:
        raise RequestError(
            f"{path!r} is {frames / layout.rate_hz:.0f} s long; "
            f"at most {max_audio_s:g} s are read (the engine's argument max_audio_s)"
        )
    return resample(_read_mono(file, layout, frames), layout.rate_hz, SAMPLE_RATE)


def _find_audio(file: BinaryIO, path: str) -> tuple[_Format, int]:
    """Leave `file` at the first sample; return the format and the number of bytes that the header tells."""
    head = file.read(12)
    if not head:
        raise RequestError(f"{path!r} is empty")
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise RequestError(f"{path!r} is no WAV file: it begins with {head!r}")
    layout = None
    while len(chunk := file.read(8)) == 8:
        name, size = struct.unpack("<4sI", chunk)
        if name == b"data" and layout is not None:
            return layout, size
        end = file.tell() + size + size % 2  # chunks begin at even places
        if name == b"fmt ":
            layout = _parse_format(file.read(min(size, 40)), path)
        file.seek(end)
    raise RequestError(f"{path!r} is a damaged WAV file: it has no {'data' if layout else 'fmt'} chunk")


def _parse_format(chunk: bytes, path: str) -> _Format:
    if len(chunk) < 16:
        raise RequestError(f"{path!r} is a damaged WAV file: its fmt chunk has {len(chunk)} bytes")
    tag, channels, rate_hz, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
    if tag == _EXTENSIBLE and len(chunk) == 40:
        subformat = chunk[24:]
        tag = _PCM if subformat == _PCM_SUBFORMAT else int.from_bytes(subformat[:2], "little")
    if tag != _PCM or not 1 <= bits <= 32:
        kind = f"{_FORMAT_NAMES.get(tag, f'format {tag}')}, {bits} bits" if tag != _PCM else f"{bits}-bit PCM"
        raise RequestError(f"{path!r} is {kind}: only PCM of 8, 16, 24 or 32 bits can be read")
    if not channels or rate_hz not in RATES:
        raise RequestError(
            f"{path!r} has {channels} channels at {rate_hz} Hz: "
            f"at least 1 channel and {RATES[0]} to {RATES[-1]} Hz can be read"
        )
    return _Format(channels, rate_hz, (bits + 7) // 8)


def _read_mono(file: BinaryIO, layout: _Format, frames: int) -> NDArray[np.float32]:
    """Read block by block, so that a long file with many channels is never held as a whole."""
    mono = np.zeros(frames, np.float32)
    for first in range(0, frames, _BLOCK_FRAMES):
        count = min(_BLOCK_FRAMES, frames - first)
        raw = file.read(count * layout.frame_bytes)
        block = _to_float(raw[: len(raw) // layout.frame_bytes * layout.frame_bytes], layout.width)
        block.reshape(-1, layout.channels).mean(axis=1, out=mono[first : first + len(block) // layout.channels])
    return mono


def _to_float(raw: bytes, width: int) -> NDArray[np.float32]:
    """Scale little-endian PCM, `width` bytes a sample, to [-1, 1)."""
    samples = np.frombuffer(raw, np.uint8).reshape(-1, width)
    wide = np.zeros((len(samples), 4), np.uint8)
    wide[:, 4 - width :] = samples
    if width == 1:
        wide[:, 3] ^= 0x80  # 8-bit samples alone are unsigned
    return wide.view("<i4")[:, 0].astype(np.float32) * np.float32(2.0**-31)
