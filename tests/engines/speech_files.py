"""The WAV files that the tests of the speech engines hear, and what those tests need to be installed."""

from __future__ import annotations

import importlib
import os
import struct
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stage import Output

SAMPLE = Path(__file__).parents[2] / "samples" / "lighthouse.wav"
SENTENCES = [
    "The lighthouse keeper counted seven ships.",
    "Each one carried salt and letters.",
    "Every letter was answered the same evening.",
]
ALSA = Path("/usr/share/sounds/alsa")


def import_or_skip(name: str) -> Any:
    """Import a module that needs the extra `speech`; CI never skips."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error), allow_module_level=True)


def alsa_file(name: str) -> str:
    """The path of one of the recordings in Debian's alsa-utils; CI never skips."""
    path = ALSA / name
    if not path.exists() and "CI" not in os.environ:
        pytest.skip(f"{path} is missing: install Debian's alsa-utils")
    return str(path)


def drain(engine: Any) -> list[Output]:
    """Step until nothing is left to do."""
    outputs: list[Output] = []
    while engine.has_work():
        outputs += engine.step()
    return outputs


def sine(hz: float, rate_hz: int, seconds: float = 1.0, amplitude: float = 0.5) -> NDArray[np.float64]:
    return amplitude * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)


def to_pcm(samples: NDArray[Any], width: int) -> bytes:
    """Spell samples in [-1, 1), of shape (n,) or (n, channels), as WAV files do."""
    whole = np.round(samples * 2.0 ** (8 * width - 1)).astype(np.int64).ravel()
    if width == 1:
        whole += 128
    return whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def write_wav(path: Path, samples: NDArray[Any], rate_hz: int = 16_000, width: int = 2) -> str:
    """Write samples in [-1, 1), of shape (n,) or (n, channels)."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(to_pcm(samples, width))
    return str(path)


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body + bytes(len(body) % 2)


def fmt(tag: int = 1, channels: int = 1, rate_hz: int = 16_000, bits: int = 16) -> bytes:
    frame_bytes = channels * bits // 8
    return struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * frame_bytes, frame_bytes, bits)


def extensible(subformat: int, rate_hz: int = 16_000, bits: int = 16) -> bytes:
    guid = struct.pack("<H", subformat) + bytes.fromhex("000000001000800000aa00389b71")
    return fmt(0xFFFE, 1, rate_hz, bits) + struct.pack("<HHI", 22, bits, 4) + guid


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body
