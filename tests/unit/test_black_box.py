"""What a stage writes into its black box, the supervisor reads, whatever state the file is in."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from stage.black_box import CALL, CALL_SINCE, CALLS, HANDLED, IN_HAND, BlackBox, create_black_box, read_black_box
from stage.engine import Output, RequestError
from stage.recorded_engine import RecordedEngine, WatchedEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class Probe:
    """An engine that looks at its own black box from within each call.

    Args:
        path: the black box.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[str, int, int]] = []
        self.outputs: Any = []
        self.error: BaseException | None = None

    def look(self) -> None:
        box = read_black_box(self.path)
        self.seen.append((box.call, box.in_hand, box.handled))
        if self.error is not None:
            raise self.error

    def has_work(self) -> bool:
        return True

    def add(self, request_id: str, data: Any) -> None:
        self.look()

    def abort(self, request_ids: Sequence[str]) -> None:
        self.look()

    def step(self) -> Iterable[Any]:
        self.look()
        return self.outputs  # type: ignore[no-any-return]

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        self.look()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_black_box(tmp_path / "a-0.box")
    return tmp_path / "a-0.box"


def test_new(path: Path) -> None:
    """A new box tells of a stage that has not begun."""
    box = read_black_box(path)
    assert (box.phase, box.steps, box.signal, box.error, box.call, box.in_hand) == ("spawned", 0, 0, None, "", 0)


def test_watched_calls(path: Path) -> None:
    """Each call of a watched engine is recorded while it runs, and every message of the supervisor's is counted."""
    probe, box = Probe(path), BlackBox(path)
    engine = WatchedEngine(probe, box, None)
    engine.add("r1", 1)
    engine.add("r2", 2)
    engine.utility("x", ())
    probe.outputs = [Output("r1", 1, True)]
    assert list(engine.step()) == probe.outputs
    engine.abort(["r2"])
    engine.abort(("r3",))  # asked for by the output thread: no message
    engine.abort([])  # what could not be decoded
    assert probe.seen == [
        ("add", 0, 1),
        ("add", 1, 2),
        ("utility", 2, 3),
        ("step", 2, 3),
        ("abort", 1, 4),
        ("abort", 0, 4),
    ]
    after = read_black_box(path)
    assert (after.call, after.in_hand, after.handled, after.steps) == ("", 0, 5, 1)


@pytest.mark.parametrize("call", ["add", "abort", "utility"])
def test_watched_calls_that_raise(path: Path, call: str) -> None:
    """A call that raises has ended, and what it refused is not in hand."""
    probe = Probe(path)
    engine = WatchedEngine(probe, BlackBox(path), None)
    probe.error = RequestError("no")
    arguments: dict[str, tuple[Any, ...]] = {"add": ("r", 1), "abort": (["r"],), "utility": ("u", ())}
    with pytest.raises(RequestError):
        getattr(engine, call)(*arguments[call])
    after = read_black_box(path)
    assert (after.call, after.in_hand, after.handled) == ("", 0, 1)


@pytest.mark.parametrize("kind", [RecordedEngine, WatchedEngine])
def test_step_that_raises(path: Path, kind: type[RecordedEngine]) -> None:
    """A step that raised is where the engine was last, with what it had in hand."""
    probe = Probe(path)
    engine = kind(probe, BlackBox(path), None)
    engine.add("r1", 1)
    probe.error = RuntimeError("boom")
    with pytest.raises(RuntimeError):
        engine.step()
    after = read_black_box(path)
    assert (after.call, after.in_hand, after.steps) == ("step", 1, 1)
    assert after.call_since > 0


@pytest.mark.parametrize("kind", [RecordedEngine, WatchedEngine])
def test_lazy_step(path: Path, kind: type[RecordedEngine]) -> None:
    """A generator's work is part of the step."""
    probe = Probe(path)

    def lazily() -> Iterable[Output]:
        for number in range(2):
            probe.look()
            yield Output("r1", number, number == 1)

    probe.outputs = lazily()
    engine = kind(probe, BlackBox(path), None)
    engine.add("r1", 1)
    assert len(list(engine.step())) == 2
    assert [call for call, _, _ in probe.seen][-2:] == ["step", "step"]
    assert (read_black_box(path).call, read_black_box(path).in_hand) == ("", 0)


def test_nothing_to_abort_is_not_the_engines_business(path: Path) -> None:
    """A message that could not be decoded does not reach the engine, watched or not."""
    for kind in (RecordedEngine, WatchedEngine):
        probe = Probe(path)
        kind(probe, BlackBox(path), None).abort([])
        assert probe.seen == []


def test_first_error_stays(path: Path) -> None:
    """The first failure is the cause."""
    box = BlackBox(path)
    box.enter("ready")
    box.record_error("fatal", RuntimeError("first"))
    at = read_black_box(path).error_at
    assert box.record_error("io_thread", RuntimeError("second")).message == "first"
    after = read_black_box(path)
    assert after.error is not None
    assert (after.error.message, after.error_at, at > 0) == ("first", at, True)


@pytest.mark.parametrize("cell", range(9))
@pytest.mark.parametrize("value", [-(2**63), -1, 99, 2**62])
def test_garbage(path: Path, cell: int, value: int) -> None:
    """A cell that was overwritten reads as something, or raises what `StageProc.read_box` expects."""
    content = bytearray(path.read_bytes())
    struct.pack_into("q", content, 8 * cell, value)
    path.write_bytes(content)
    try:
        read_black_box(path)
    except (OSError, ValueError, IndexError):
        assert cell in {0, 3}


def test_garbage_in_a_call_hides_no_error(path: Path) -> None:
    """What an engine's native code writes over the number of the call costs no other field."""
    box = BlackBox(path)
    box.record_error("fatal", RuntimeError("first"))
    box.cells[CALL] = 99
    after = read_black_box(path)
    assert after.error is not None
    assert (after.call, after.error.message) == ("", "first")


def test_cells_are_apart() -> None:
    """Each cell has its own place."""
    assert len({CALL, CALL_SINCE, IN_HAND, HANDLED}) == 4
    assert CALLS[0] == ""
