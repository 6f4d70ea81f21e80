"""From tokens to text."""

from __future__ import annotations

import pytest

from stage.engines.whisper_tokens import text_of


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ""),
        (["ĠSide", ",", "Ġleft", "."], "Side, left."),
        (["Ġ"], ""),
        (["ĠcafÃ", "©", "ĠâĤ¬", "5"], "café €5"),
        (["Ġbroken", "Ã"], "broken\ufffd"),
        (["<|startoftranscript|>", "<|0.00|>", "ĠHello", "<|endoftext|>"], "Hello"),
        (["a", "Ċ", "b"], "a\nb"),
        (["Ġ<", "|", ">"], "<|>"),
    ],
)
def test_text(tokens: list[str], expected: str) -> None:
    """Tokens are bytes in disguise; marks are left out, and broken UTF-8 does no harm."""
    assert expected == text_of(tokens)
