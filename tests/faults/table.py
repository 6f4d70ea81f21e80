"""What each fault is expected to do: the table behind the sweep.

The cells are `ACTIONS` at `POINTS`. A cell kills its stage, or stalls it until a deadline of ours kills it, or changes
nothing that a user could see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PHASES = {
    "spawned": "spawned",
    "before_hello": "hello",
    "after_hello": "hello",
    "import": "import",
    "init": "init",
    "io": "io",
    "before_ready": "ready",  # entered before it is said
    "add": "ready",
    "abort": "ready",
    "step": "ready",
    "utility": "ready",
    "shutdown": "stopping",
}
"""Every point, and the phase in which a stage is there."""

POINTS = tuple(PHASES)
BOOT_POINTS = POINTS[: POINTS.index("add")]

TIMES = {"add": 3, "step": 4, "utility": 2}
"""How often a point is reached at least, where that is more than once."""


@dataclass(frozen=True)
class Death:
    """What a report must say."""

    cause: str
    exit_code: int
    signal: str | None = None
    error_type: str | None = None
    phase: str = "ready"


@dataclass(frozen=True)
class Expected:
    """What a cell must show.

    Args:
        death: the report, or None if nothing dies before it is asked to.
        at_start: True if the pipeline does not become ready.
        stalls: True if only a deadline of ours ends the stage.
        killed: True if the stage must be killed when the pipeline stops.
        bad_end: the exit code of a stage that ends badly while the pipeline stops, or None.
        utility_fails: True if the utility call at the fault raises, without harm to anything else.
    """

    death: Death | None = None
    at_start: bool = False
    stalls: bool = False
    killed: bool = False
    bad_end: int | None = None
    utility_fails: bool = False


ENDS = {
    "raise": Death("fatal", 1, None, "RuntimeError"),
    "exit0": Death("exit", 0),
    "exit7": Death("exit", 7),
    "sigkill": Death("signal", -9, "SIGKILL"),
    "segv": Death("signal", -11, "SIGSEGV"),
}
STALLS = ("sigstop", "loop", "loop_in_c")
GRANDCHILDREN = ("fork", "sleeper_in_session")
HARMLESS = (*GRANDCHILDREN, "garbage")
ACTIONS = (*ENDS, *STALLS, *HARMLESS, "ignore_sigterm", "close_socket")

SOCKET_CLOSED = "zmq.error.ZMQError"


def expected(point: str, action: str) -> Expected | None:
    """What must come of `action` at `point`; None where there is nothing to act upon."""
    if point == "spawned" and action in GRANDCHILDREN:
        return None  # before the stage's first line of ours: they bear no mark, and are in the supervisor's group
    if action in HARMLESS:
        return Expected()
    if action == "ignore_sigterm":
        # Our handlers are installed after the first point, and are not needed any more at the last one.
        return Expected(killed=point not in {"spawned", "shutdown"})
    if action == "close_socket":
        return _without_socket(point)
    return _stalled(point) if action in STALLS else _ended(point, ENDS[action])


def _ended(point: str, death: Death) -> Expected:
    if point == "shutdown":
        return Expected(bad_end=death.exit_code or None)
    raised = death.error_type is not None
    if point == "utility" and raised:
        return Expected(utility_fails=True)
    if point == "spawned" and raised:
        # There is no black box yet, and the interpreter ends by itself.
        death = Death("exit", 1)
    return Expected(replace(death, phase=PHASES[point]), at_start=point in BOOT_POINTS)


def _stalled(point: str) -> Expected:
    if point in {"utility", "shutdown"}:
        return Expected(stalls=point == "utility", killed=True)
    at_start = point in BOOT_POINTS
    death = Death("startup_timeout" if at_start else "hung", -9, "SIGKILL", phase=PHASES[point])
    return Expected(death, at_start=at_start, stalls=True)


def _without_socket(point: str) -> Expected | None:
    if point in {"spawned", "shutdown"}:
        return None  # there is none yet, or none that anybody goes on to use
    if point in {"before_hello", "after_hello", "import", "init", "io"}:
        # Missed at the next message: READY for all but the first two.
        phase = PHASES[point] if point.endswith("hello") else "ready"
        return Expected(Death("fatal", 1, None, SOCKET_CLOSED, phase), at_start=True)
    return Expected(Death("io_thread", 1, None, SOCKET_CLOSED))
