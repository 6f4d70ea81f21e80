"""The hang watch over black boxes with made-up cells, at made-up times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from stage.black_box import (
    CALL,
    CALL_SINCE,
    CALLS,
    HANDLED,
    IN_HAND,
    STEPS,
    BlackBox,
    create_black_box,
)
from supervisor.hang_watch import LATE_S, HangWatch, StageWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 10.0
SETTING = "(step_timeout_s: 10)"


@dataclass
class Watched:
    """A stage's black box, and the watch on it."""

    box: BlackBox
    watch: StageWatch

    def close(self) -> None:
        """Give back what pytest would hold on to until after the test."""
        self.watch.close()
        self.box.cells.release()
        self.box._map.close()

    def is_in(self, call: str, since_s: float) -> None:
        self.box.cells[CALL_SINCE] = int(since_s * 1e9)
        self.box.cells[CALL] = CALLS.index(call)

    def has(self, **cells: int) -> None:
        for name, value in cells.items():
            self.box.cells[{"handled": HANDLED, "steps": STEPS, "in_hand": IN_HAND}[name]] = value


def make(path: Path, timeout_s: float = TIMEOUT_S) -> Watched:
    create_black_box(path)
    proc: Any = SimpleNamespace(box=path, is_stopped=lambda: False)
    return Watched(BlackBox(path), StageWatch(proc, timeout_s))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = make(tmp_path / "a-0.box")
    yield made
    made.close()


def test_idle(watched: Watched) -> None:
    """Without work there is nothing to wait for, however long it lasts."""
    assert [watched.watch.look(now, 0.0) for now in (1.0, 1000.0)] == [None, None]
    assert (watched.watch.at_rest, watched.watch.finding) == (True, None)


@pytest.mark.parametrize("call", ["add", "abort", "step"])
def test_long_call(watched: Watched, call: str) -> None:
    """A call is stuck once it has run for the whole time, counted from its begin."""
    watched.is_in(call, 100.0)
    assert watched.watch.look(103.0, 0.0) == pytest.approx(7.0)
    assert watched.watch.finding is None
    assert not watched.watch.at_rest
    assert watched.watch.look(110.5, 0.0) == pytest.approx(-0.5)
    assert watched.watch.finding == f"{call}() has run for 10.5 s (step_timeout_s: 10)"


@pytest.mark.parametrize(("in_hand", "words"), [(1, ", with 1 request in hand"), (3, ", with 3 requests in hand")])
def test_in_hand(watched: Watched, in_hand: int, words: str) -> None:
    """The finding says how many requests the engine had."""
    watched.has(in_hand=in_hand)
    watched.is_in("step", 100.0)
    watched.watch.look(111.0, 0.0)
    assert words in str(watched.watch.finding)


def test_utility(watched: Watched) -> None:
    """A utility may last, with messages behind it; the wait of those begins after it."""
    watched.watch.sent = 3
    watched.has(handled=1)
    watched.is_in("utility", 100.0)
    assert watched.watch.look(1000.0, 0.0) == TIMEOUT_S
    watched.is_in("", 0)
    assert watched.watch.look(1001.0, 0.0) == TIMEOUT_S
    assert watched.watch.look(1005.0, 0.0) == pytest.approx(6.0)
    assert watched.watch.finding is None
    watched.watch.look(1011.5, 0.0)
    assert watched.watch.finding == "2 messages have not been handled for 10.5 s (step_timeout_s: 10)"


@pytest.mark.parametrize("progress", ["handled", "steps"])
def test_unhandled(watched: Watched, progress: str) -> None:
    """A message that waits is stuck once nothing at all has moved for the whole time."""
    watched.watch.sent = 5
    assert watched.watch.look(100.0, 0.0) == TIMEOUT_S
    assert watched.watch.look(109.0, 0.0) == pytest.approx(1.0)
    watched.has(**{progress: 1})
    assert watched.watch.look(109.5, 0.0) == TIMEOUT_S
    assert watched.watch.look(118.0, 0.0) == pytest.approx(1.5)
    watched.has(handled=5)
    assert watched.watch.look(200.0, 0.0) is None
    assert watched.watch.finding is None


def test_held_requests(watched: Watched) -> None:
    """Requests in hand, without a call, are no hang; it is looked at again, since a step may begin."""
    watched.watch.sent = 1
    watched.has(handled=1, in_hand=1)
    assert [watched.watch.look(now, 0.0) for now in (1.0, 1000.0)] == [TIMEOUT_S, TIMEOUT_S]
    assert (watched.watch.at_rest, watched.watch.finding) == (False, None)


def test_message_to_held_requests(watched: Watched) -> None:
    """A message to a stage that holds requests waits from when it is seen, not from when they came to be held."""
    watched.watch.sent = 1
    watched.has(handled=1, in_hand=1)
    assert watched.watch.look(1.0, 0.0) == TIMEOUT_S
    watched.watch.sent = 2
    assert watched.watch.look(11.0, 0.0) == TIMEOUT_S
    watched.watch.sent = 3
    assert watched.watch.look(15.0, 0.0) == pytest.approx(6.0)
    assert watched.watch.finding is None
    watched.watch.look(21.5, 0.0)
    assert watched.watch.finding == "2 messages have not been handled for 10.5 s, with 1 request in hand " + SETTING


@pytest.mark.parametrize(
    "stopped", [(True, False, True, False), (False, True, False), (False, True, True), (True, True)]
)
def test_stopped_with_held_requests(watched: Watched, stopped: tuple[int, ...]) -> None:
    """Only a stage that is stopped for the whole time may not hold requests."""
    looks = iter(stopped)
    proc: Any = watched.watch.proc
    proc.is_stopped = lambda: bool(next(looks))
    watched.watch.sent = 1
    watched.has(handled=1, in_hand=1)
    times = [1.0 + TIMEOUT_S * count for count in range(len(stopped) + 1)]
    left = [watched.watch.look(now, 0.0) for now in times]
    stays = stopped[-2:] == (1, 1)
    assert left == [TIMEOUT_S] * len(stopped) + [0.0 if stays else TIMEOUT_S]
    finding = f"nothing has moved for 10.0 s, with 1 request in hand {SETTING}"
    assert watched.watch.finding == (finding if stays else None)


def test_handled_before_it_is_counted(watched: Watched) -> None:
    """A stage may be quicker than the count of what was sent to it."""
    watched.has(handled=1)
    assert watched.watch.look(1.0, 0.0) is None
    watched.watch.sent = 1
    assert watched.watch.look(2.0, 0.0) is None


def test_floor(watched: Watched) -> None:
    """No wait counts from before the floor."""
    watched.is_in("step", 100.0)
    assert watched.watch.look(500.0, 499.0) == pytest.approx(9.0)
    watched.is_in("", 0)
    watched.watch.sent = 1
    assert watched.watch.look(500.0, 0.0) == TIMEOUT_S
    assert watched.watch.look(900.0, 899.0) == pytest.approx(9.0)
    assert watched.watch.finding is None


def test_sent_while_it_comes_to_rest(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is sent in the very moment in which the watch rests is not overlooked."""
    real = StageWatch._read

    def read_then_send(watch: StageWatch) -> Any:
        cells = real(watch)
        watch.sent = 1  # the sender does not wake anybody: `at_rest` is not set yet
        return cells

    monkeypatch.setattr(StageWatch, "_read", read_then_send)
    watched.watch.at_rest = False
    assert watched.watch.look(1.0, 0.0) == TIMEOUT_S


@pytest.mark.parametrize("call", [-1, 5, 99, 2**40, -(2**40)])
def test_overwritten(watched: Watched, call: int) -> None:
    """Whatever an engine's native code has written over the cells, the supervisor goes on."""
    watched.box.cells[CALL] = call
    watched.watch.look(1000.0, 0.0)
    watched.box.cells[CALL_SINCE] = -(2**63)
    watched.watch.look(1000.0, 0.0)


def test_limit_of_several(tmp_path: Path) -> None:
    """A poll lasts until the first stage may be stuck, and as long as it was asked to at most."""
    one, other = make(tmp_path / "a-0.box", 10.0), make(tmp_path / "b-0.box", 20.0)
    watch = HangWatch([one.watch, other.watch])
    assert (watch.limit(None), watch.limit(3.0)) == (None, 3.0)
    now = time.monotonic()
    one.is_in("step", now)
    other.is_in("step", now)
    limit = watch.limit(None)
    assert limit is not None
    assert 9.0 < limit <= 10.0
    assert watch.limit(3.0) == 3.0
    other.is_in("step", now - 21.0)
    watch.limit(None)
    assert watch.stuck() == [other.watch.proc]
    assert watch.finding(one.watch.proc) is None
    assert str(watch.finding(other.watch.proc)).startswith("step() has run for 21")
    watch.close()


def test_supervisor_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a look that comes much too late the time begins anew: perhaps the stages were stopped as we were."""
    stuck = make(tmp_path / "a-0.box")
    watch = HangWatch([stuck.watch])
    began = time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stuck.is_in("step", began)
    assert watch.limit(None) == pytest.approx(TIMEOUT_S)
    now = began + TIMEOUT_S + LATE_S + 1000
    assert watch.limit(None) == pytest.approx(TIMEOUT_S)
    assert watch.stuck() == []
    now += TIMEOUT_S + LATE_S / 2
    watch.limit(None)
    assert watch.stuck() == [stuck.watch.proc]
    watch.close()
