"""A lockstep group in every order of events: it opens when all listen, steps equally often, tells how busy it is, ends.

`sim_group` says what is real and what is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sim_group import DeadlockError, History

from stage import waves as waves_module
from stage.group import Group
from stage.group_protocol import GroupReady, Loads, StartWave, ToReplicas, Verdict
from stage.replica import LoadMeter
from stage.waves import WaveEngine

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORIES = 2000


def test_histories() -> None:
    """In every order of events all requests end, with equally many steps everywhere, and the group comes to rest."""
    live_through_all()


def live_through_all() -> None:
    """Live through every history, and name the first one that goes wrong."""
    for seed in range(HISTORIES):
        try:
            History(seed).run()
        except (AssertionError, DeadlockError) as exc:
            pytest.fail(f"seed {seed}: {exc!r}")


def ask_never_again(patch: pytest.MonkeyPatch) -> None:
    """A replica that has asked for a wave once never asks again."""
    hear = WaveEngine.hear

    def hear_and_forget(self: WaveEngine, message: ToReplicas) -> None:
        asked = self._has_asked
        hear(self, message)
        self._has_asked = self._has_asked or asked

    patch.setattr(WaveEngine, "hear", hear_and_forget)


def exclude_the_sender(patch: pytest.MonkeyPatch) -> None:
    """The replica that asks for a wave is taken to step already."""
    step_at_once = WaveEngine.has_work

    def has_work(self: WaveEngine) -> bool:
        due = step_at_once(self)
        if not due and self._has_asked and self._phase is waves_module._Phase.PAUSED:
            self._phase = waves_module._Phase.STEPPING
            return True
        return due

    patch.setattr(WaveEngine, "has_work", has_work)


def end_for_the_idle(patch: pytest.MonkeyPatch) -> None:
    """A replica without work does not wait for the verdict: it takes the wave for ended."""
    step = WaveEngine.step

    def step_and_leave(self: WaveEngine) -> Any:
        outputs = step(self)
        if self._phase is waves_module._Phase.VOTING and not self._engine.has_work():
            self.hear(Verdict(self.wave, self._round, goes_on=False))
        return outputs

    patch.setattr(WaveEngine, "step", step_and_leave)


def forget_who_needs_a_wave(patch: pytest.MonkeyPatch) -> None:
    """The coordinator starts the first wave only."""
    start = Group._start_wave
    patch.setattr(Group, "_start_wave", lambda self, wave: None if wave else start(self, wave))


def start_whatever_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The coordinator starts a wave also for a request that an earlier wave has served."""

    def start(self: Group, _wave: int) -> None:
        if not self.is_running:
            self.is_running, self._round = True, 0
            self._publish(StartWave(self.wave))

    patch.setattr(Group, "_start_wave", start)


def open_with_the_first(patch: pytest.MonkeyPatch) -> None:
    """The group opens when anybody listens."""
    patch.setattr(Group, "subscribed", lambda self: self._publish(GroupReady()))


def wait_for_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """The group opens with the first one that subscribes after all have."""

    def subscribed(self: Group) -> None:
        self._listeners += 1
        if self._listeners > len(self.replicas):
            self._publish(GroupReady())

    patch.setattr(Group, "subscribed", subscribed)


def tell_every_load_at_once(patch: pytest.MonkeyPatch) -> None:
    """The coordinator does not wait for its clock."""

    def tell(self: Group, _now: float) -> None:
        if self._loads_changed:
            self._loads_changed = False
            self._tell(Loads(dict(self._loads)))

    patch.setattr(Group, "tell_loads", tell)


def forget_what_is_not_due(patch: pytest.MonkeyPatch) -> None:
    """A load that changes before the clock allows to tell of it is not told later."""
    tell_loads = Group.tell_loads

    def tell(self: Group, now: float) -> None:
        tell_loads(self, now)
        self._loads_changed = False

    patch.setattr(Group, "tell_loads", tell)


def tell_by_the_clock_alone(patch: pytest.MonkeyPatch) -> None:
    """The coordinator tells when it is time, whether something has changed or not."""

    def tell(self: Group, now: float) -> None:
        if now >= self._loads_due:
            self._loads_changed, self._loads_due = False, now + 0.1
            self._tell(Loads(dict(self._loads)))

    patch.setattr(Group, "tell_loads", tell)


def owe_once(patch: pytest.MonkeyPatch) -> None:
    """A replica tells of the first change of its load, and is never woken for another."""
    news = LoadMeter.news

    def news_and_still_owed(self: LoadMeter) -> Any:
        load = news(self)
        self._is_owed = True
        return load

    patch.setattr(LoadMeter, "news", news_and_still_owed)


BUGS = [
    ask_never_again,
    exclude_the_sender,
    end_for_the_idle,
    forget_who_needs_a_wave,
    start_whatever_is_asked_for,
    open_with_the_first,
    wait_for_one_too_many,
    tell_every_load_at_once,
    forget_what_is_not_due,
    tell_by_the_clock_alone,
    owe_once,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_seeded_bug(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these bugs shows in some history."""
    bug(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        live_through_all()
