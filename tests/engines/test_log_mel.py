"""The spectrogram, against what is known about it."""

from __future__ import annotations

import numpy as np
import pytest
from speech_files import sine

from stage.engines.log_mel import FRAMES, MELS, WINDOW_SAMPLES, log_mel, mel_filters


def test_filters_are_those_that_whisper_learnt_with() -> None:
    """The weights of the lowest two frequencies are those that are published with the model."""
    np.testing.assert_allclose(mel_filters()[:3, 1], [0.02486259, 0.00199082, 0], atol=1e-7)
    np.testing.assert_allclose(mel_filters()[:3, 2], [0, 0.02287177, 0.00398164], atol=1e-7)


def test_filters_have_equal_areas() -> None:
    """Each band weighs its share of the spectrum, wide or narrow, so that white noise looks flat."""
    areas = mel_filters()[20:].sum(axis=1) * 40

    np.testing.assert_allclose(areas, 1, atol=0.1)


def test_silence_is_flat() -> None:
    """Silence gives the lowest value everywhere."""
    np.testing.assert_allclose(log_mel(np.zeros(16_000, np.float32)), np.full((MELS, FRAMES), -1.5), rtol=1e-6)


@pytest.mark.parametrize("hz", [300, 1_000, 4_000])
def test_tone_lights_its_band(hz: int) -> None:
    """A tone is loudest in the band whose centre is nearest to it."""
    features = log_mel(sine(hz, 16_000).astype(np.float32))

    loudest = int(features[:, 50].argmax())
    peak_hz = int(mel_filters()[loudest].argmax()) * 40
    assert abs(peak_hz - hz) <= 80
    assert features[:, 2_000].max() == features.min()


@pytest.mark.parametrize("length", [1, 160, 199, 200, 201, 16_000, 479_900, 480_000])
def test_short_audio_is_padded(length: int) -> None:
    """Audio has the same features as the same audio with silence up to 30 s."""
    audio = np.random.default_rng(length).normal(0, 0.1, length).astype(np.float32)
    padded = np.pad(audio, (0, WINDOW_SAMPLES - length))

    np.testing.assert_allclose(log_mel(audio), log_mel(padded), atol=1e-4)
