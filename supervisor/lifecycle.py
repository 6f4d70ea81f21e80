"""The states of a stage process as the supervisor sees them (pure), and the one function that changes them."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a stage process is in its life; its own black box tells the phase within STARTING."""

    SPAWNED = "spawned"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


class Event(Enum):
    """What can happen to a stage process."""

    HELLO = "HELLO"
    READY = "READY"
    STOP = "stop asked for"
    EXIT = "exit"


_MOVES: dict[tuple[State, Event], State] = {
    (State.SPAWNED, Event.HELLO): State.STARTING,
    (State.STARTING, Event.READY): State.READY,
    (State.SPAWNED, Event.STOP): State.STOPPING,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.READY, Event.STOP): State.STOPPING,
    (State.SPAWNED, Event.EXIT): State.DEAD,
    (State.STARTING, Event.EXIT): State.DEAD,
    (State.READY, Event.EXIT): State.DEAD,
    (State.STOPPING, Event.EXIT): State.DEAD,
    # Stopping what is stopping or dead changes nothing.
    (State.STOPPING, Event.STOP): State.STOPPING,
    (State.DEAD, Event.STOP): State.DEAD,
}


class IllegalMoveError(Exception):
    """An event that cannot happen in this state: a protocol error of the stage, or of ours."""


def advance(state: State, event: Event) -> State:
    """The state that follows.

    Raises:
        IllegalMoveError: the event cannot happen in this state.
    """
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalMoveError(f"a stage that is {state.value} cannot get {event.value}") from None
