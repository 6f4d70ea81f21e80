"""The states of a stage process, and the one function that changes them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.lifecycle import Event, IllegalMoveError, State, advance

ALLOWED = {
    ("spawned", "HELLO"): "starting",
    ("starting", "READY"): "ready",
    **{(state, "stop asked for"): "stopping" for state in ("spawned", "starting", "ready", "stopping")},
    ("dead", "stop asked for"): "dead",
    **{(state, "exit"): "dead" for state in ("spawned", "starting", "ready", "stopping")},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_move(state: State, event: Event) -> None:
    """A move is the one in the table, or it is illegal and the error names the state and the event."""
    expected = ALLOWED.get((state.value, event.value))
    if expected is None:
        with pytest.raises(IllegalMoveError, match=f"{state.value} cannot get {event.value}"):
            advance(state, event)
    else:
        assert advance(state, event).value == expected


@given(st.lists(st.sampled_from(Event)))
def test_no_way_back(events: list[Event]) -> None:
    """Whatever happens, a stage never returns to an earlier state, and no life comes after the death."""
    order = list(State)
    state = State.SPAWNED
    for event in events:
        try:
            after = advance(state, event)
        except IllegalMoveError:
            continue
        assert order.index(after) >= order.index(state)
        state = after
