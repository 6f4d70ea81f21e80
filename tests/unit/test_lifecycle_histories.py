"""The states of a stage process as a machine: whatever happens in whatever order, the table alone decides."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from supervisor.lifecycle import Event, IllegalMoveError, State, advance

LIVING = set(State) - {State.DEAD}


class Lifecycle(RuleBasedStateMachine):
    """One stage process, and what is known of it from the events that it has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.SPAWNED
        self.taken: list[Event] = []

    def take(self, event: Event) -> None:
        self.state = advance(self.state, event)
        self.taken.append(event)

    @rule(event=st.sampled_from(Event))
    def happen(self, event: Event) -> None:
        """Anything may happen; what cannot be leaves no trace."""
        before = self.state
        if event in self.possible():
            self.take(event)
            return
        with pytest.raises(IllegalMoveError, match=f"{before.value} cannot get {event.value}"):
            self.take(event)
        assert before is self.state

    @rule()
    def exit(self) -> None:
        """A stage may end in any state, once."""
        if self.state is State.DEAD:
            with pytest.raises(IllegalMoveError):
                self.take(Event.EXIT)
        else:
            self.take(Event.EXIT)

    @rule()
    def stop(self) -> None:
        """A stop is legal in any state, and a second one changes nothing."""
        self.take(Event.STOP)
        after = self.state
        self.take(Event.STOP)
        assert after is self.state

    @invariant()
    def dead_is_final(self) -> None:
        """A stage is dead exactly if it has ended, and then no event brings it back."""
        assert (self.state is State.DEAD) is (Event.EXIT in self.taken)
        if self.state is State.DEAD:
            assert {State.DEAD} == set(self.possible().values())

    @invariant()
    def living_can_end(self) -> None:
        """What lives can be stopped and can end."""
        if self.state in LIVING:
            assert self.possible()[Event.STOP] is State.STOPPING
            assert self.possible()[Event.EXIT] is State.DEAD

    @invariant()
    def handshake_comes_once_and_in_order(self) -> None:
        """HELLO and READY come once each, in this order, and neither after a stop."""
        steps = [event for event in self.taken if event in {Event.HELLO, Event.READY}]
        assert [Event.HELLO, Event.READY][: len(steps)] == steps
        ends = [index for index, event in enumerate(self.taken) if event in {Event.STOP, Event.EXIT}]
        if ends:
            assert {Event.STOP, Event.EXIT} >= set(self.taken[ends[0] :])

    def possible(self) -> dict[Event, State]:
        """Every event that is legal now, with what follows."""
        found = {}
        for event in Event:
            try:
                found[event] = advance(self.state, event)
            except IllegalMoveError:
                continue
        return found


def test_any_history() -> None:
    """Any history of one stage process keeps to the rules."""
    run_state_machine_as_test(Lifecycle, settings=settings(max_examples=60, stateful_step_count=12))
