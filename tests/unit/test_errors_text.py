"""Text of exceptions that do their best to have none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage.errors_text import TEXT_LIMIT, safe_repr, safe_str, traceback_text


class HostileError(Exception):
    """Raises what it was given, wherever it is asked for text."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised

    def __repr__(self) -> str:
        raise self.raised

    def __str__(self) -> str:
        raise self.raised


class OpaqueError(Exception):
    """Cannot be looked into at all."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class BadMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class NamelessError(Exception, metaclass=BadMeta):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class OwnEncode(str):
    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        raise RuntimeError("no bytes")


class OwnEncodeError(Exception):
    def __repr__(self) -> str:
        return OwnEncode("fine")


def size(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize("exc", [ValueError("no"), KeyError("k"), SystemExit(3), KeyboardInterrupt()])
def test_harmless_exceptions_are_as_python_says(exc: BaseException) -> None:
    """Nothing is added to what repr() and str() return."""
    assert (repr(exc), str(exc)) == (safe_repr(exc), safe_str(exc))


@pytest.mark.parametrize("raised", [RuntimeError(), RecursionError(), SystemExit(1), KeyboardInterrupt()])
def test_a_repr_that_raises_is_replaced_by_both_types(raised: BaseException) -> None:
    """The text names the exception and what its repr or str raised."""
    name = type(raised).__name__
    assert safe_repr(HostileError(raised)) == f"<HostileError: its repr raised {name}>"
    assert safe_str(HostileError(raised)) == f"<HostileError: its str raised {name}>"


def test_a_metaclass_that_hides_the_name_does_not_matter() -> None:
    """The real name is found."""
    assert safe_repr(NamelessError()) == "<NamelessError: its repr raised RuntimeError>"


def test_a_text_of_a_hostile_subclass_becomes_a_plain_one() -> None:
    """Nothing of the exception's own stays in the text."""
    text = safe_repr(OwnEncodeError())
    assert (type(text), text) == (str, "fine")


def test_ten_megabytes_are_cut_in_the_middle() -> None:
    """Head and tail are kept, and the text says that it was cut."""
    exc = ValueError("head" + "x" * 10_000_000 + "tail")
    for text in (safe_repr(exc), safe_str(exc), traceback_text(exc)):
        assert size(text) <= TEXT_LIMIT
        assert "head" in text
        assert "tail" in text
        assert "cut out" in text


def test_a_lone_surrogate_becomes_its_escape() -> None:
    """All three functions return text that encodes."""
    exc = ValueError("a\ud800b")
    assert safe_str(exc) == "a\\ud800b"
    assert size(safe_repr(exc)) > 0
    assert size(traceback_text(exc)) > 0


def raise_chained() -> None:
    try:
        raise LookupError("first cause")
    except LookupError as exc:
        raise RuntimeError("last error") from exc


def test_a_traceback_tells_the_whole_chain() -> None:
    """The cause, the link and the last error are there, in this order."""
    with pytest.raises(RuntimeError) as caught:
        raise_chained()
    text = traceback_text(caught.value)
    at = [text.index(part) for part in ("LookupError: first cause", "direct cause", "RuntimeError: last error")]
    assert at == sorted(at)
    assert "in raise_chained" in text


def test_a_capped_traceback_keeps_the_first_cause_and_the_last_error() -> None:
    """A chain of thousands of exceptions is cut in the middle."""
    exc = ValueError("the first")
    for number in range(3_000):
        following = ValueError(f"number {number}")
        following.__cause__ = exc
        exc = following
    text = traceback_text(exc)
    assert size(text) <= TEXT_LIMIT
    assert text.startswith("ValueError: the first\n")
    assert text.endswith("ValueError: number 2999\n")


def test_a_chain_that_bites_its_tail_ends() -> None:
    """A cycle of causes is told once."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert traceback_text(first).count("ValueError: second") == 1


def test_a_hostile_cause_does_not_hide_the_error() -> None:
    """The rest of the chain is told."""
    exc = ValueError("visible")
    exc.__cause__ = HostileError(SystemExit(1))
    text = traceback_text(exc)
    assert "HostileError" in text
    assert "ValueError: visible" in text


def test_an_exception_that_cannot_be_looked_into_gives_its_repr() -> None:
    """Where Python cannot format a traceback, the text says so."""
    text = traceback_text(OpaqueError("inner"))
    assert "OpaqueError('inner')" in text
    assert "its traceback raised RuntimeError" in text


def test_a_group_tells_its_parts() -> None:
    """Exception groups are formatted as Python does."""
    text = traceback_text(ExceptionGroup("several", [ValueError("one"), KeyError("two")]))
    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


def test_a_deep_recursion_has_a_traceback() -> None:
    """The text of a RecursionError is short, since Python folds what repeats."""

    def down() -> None:
        down()

    with pytest.raises(RecursionError) as caught:
        down()
    assert "repeated" in traceback_text(caught.value)


@settings(deadline=None)
@given(st.text(st.characters(), max_size=300), st.integers(0, 300))
def test_any_text_fits_any_limit(message: str, limit: int) -> None:
    """Whatever the message and the limit, the result encodes and fits."""
    assert size(traceback_text(ValueError(message), limit)) <= limit


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_fits_is_not_touched(message: str) -> None:
    """A short message without surrogates comes back as it is."""
    assert safe_str(ValueError(message)) == message
