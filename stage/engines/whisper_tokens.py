"""Turns the tokens that Whisper writes into text.

Its vocabulary is that of GPT-2: a token is a run of bytes, each byte spelled as one printable character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# An English-only model is told neither language nor task.
PROMPT = ("<|startoftranscript|>", "<|notimestamps|>")


def _bytes_by_character() -> dict[str, int]:
    """Printable Latin-1 characters spell themselves; the other bytes, in order, the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _bytes_by_character()


def text_of(tokens: Iterable[str]) -> str:
    """Join tokens into text, without marks such as `<|endoftext|>` and without blanks at its ends.

    Bytes that are no UTF-8, as a transcript that was cut off may have, become U+FFFD.
    """
    words = "".join(token for token in tokens if not (token.startswith("<|") and token.endswith("|>")))
    return bytes(_BYTES[character] for character in words).decode("utf-8", "replace").strip()
