"""One run of a two-stage pipeline with a fault in one stage: requests, an abort and a utility call are under way."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines_for_tests import HELD
from harness import HANG_S, TESTS, Announcements, Events, ended, fault, in_thread, pipeline_config, readable, stage
from table import BOOT_POINTS, Expected

from supervisor import (
    Outcome,
    Pipeline,
    Request,
    RequestAbortedError,
    RequestFailedError,
    Result,
    StageDeathReport,
    StageDiedError,
    StartupError,
    UtilityError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.handle import Handle

STALL_S = 0.7
"""What ends a stage that stalls: the deadline of its start, of its step, or of our patience with a utility call."""

KILL_AFTER_S = 0.3
"""`shutdown_timeout_s` where a stage must be killed."""


@dataclass(frozen=True)
class Cell:
    """A fault, and what must come of it."""

    point: str
    action: str
    nth: int
    wanted: Expected


@dataclass
class Seen:
    """All that one run has shown."""

    cell: Cell
    events: Events
    shutdown_timeout_s: float
    startup_error: StageDeathReport | None = None
    died: StageDeathReport | None = None
    fired_in: int | None = None
    """Pid of the stage that acted the fault out, None if it was not reached."""
    announced: list[str] = field(default_factory=list)
    grandchildren: list[int] = field(default_factory=list)
    requests: list[Watched] = field(default_factory=list)
    late: list[Result | Outcome] = field(default_factory=list)
    """What `run` has yielded for a request that came last."""
    late_error: StageDiedError | None = None
    refusals: list[StageDeathReport] = field(default_factory=list)
    """The reports in the errors of what was tried after the death."""
    utilities: list[Any] = field(default_factory=list)
    """An answer or an exception for each call."""
    stages: dict[int, str] = field(default_factory=dict)
    """Name by pid of each stage process that was spawned."""
    outlived_death: list[int] = field(default_factory=list)
    outlived_close: list[int] = field(default_factory=list)
    close_s: float = 0.0
    took_s: float = 0.0


class Watched:
    """A request with a thread that waits for its results; `ends` gets its outcome, and the report of a death."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.data: list[Any] = []
        self.ends: list[tuple[str, StageDeathReport | None]] = []
        self.begun = threading.Event()
        self.thread = in_thread(self._collect)

    def _collect(self) -> None:
        try:
            for result in self.handle:
                self.data.append(result.data)
                self.begun.set()
        except RequestFailedError as exc:
            self.ends.append(("failed", exc.report))
        except RequestAbortedError:
            self.ends.append(("aborted", None))
        else:
            self.ends.append(("finished", None))
        self.begun.set()


def act_out(cell: Cell, startup_timeout_s: float, step_timeout_s: float | None) -> Seen:
    """Run the scenario once."""
    stalls_boot = cell.point in BOOT_POINTS and cell.wanted.stalls
    limits = {
        "startup_timeout_s": startup_timeout_s if stalls_boot else HANG_S,
        "shutdown_timeout_s": KILL_AFTER_S if cell.wanted.killed else 10.0,
    }
    began = time.monotonic()
    with ExitStack() as stack:
        seen = Seen(cell, stack.enter_context(_listening()), limits["shutdown_timeout_s"])
        told = stack.enter_context(Announcements(Path(tempfile.gettempdir()) / "announcements"))
        pidfds = stack.enter_context(_watching_stages(seen))
        stages = [stage("other"), _faulty(cell, told.path, step_timeout_s)]
        # The fault is downstream, upstream, downstream, …
        stages = stages if cell.nth % 2 else stages[::-1]
        stack.enter_context(_boot_fault(cell, seen.events, told.path, [one["name"] for one in stages]))
        try:
            pipeline = Pipeline(pipeline_config(*stages, **limits))
            _run(pipeline, seen, told, pidfds)
        except StartupError as exc:
            seen.startup_error = exc.report
        seen.outlived_close = [pid for pid, fd in pidfds.items() if not readable(fd, 0)]
        _hear(seen, told)
        seen.took_s = time.monotonic() - began
    return seen


def _run(pipeline: Pipeline, seen: Seen, told: Announcements, pidfds: dict[int, int]) -> None:
    with pipeline:
        if _send_requests(pipeline, seen):
            _send_late(pipeline, seen)
        _hear(seen, told)
        if seen.cell.wanted.death is not None and seen.fired_in is not None:
            seen.events.wait("stage_died")
            seen.outlived_death = [pid for pid, fd in pidfds.items() if not readable(fd)]
            _try_again(pipeline, seen)
        began = time.monotonic()
        pipeline.close()
        seen.close_s = time.monotonic() - began
    assert all(ended(watched.thread) for watched in seen.requests), "a request has not ended"
    seen.died = pipeline.died


def _send_requests(pipeline: Pipeline, seen: Seen) -> bool:
    """Have requests, an abort and a utility call under way; False if the stage does not answer any more."""
    held = _watch(pipeline, seen, "held", ["x", HELD])
    assert held is None or held.begun.wait(HANG_S), "the first result does not come"
    other = _watch(pipeline, seen, "r1", ["a", "b"])
    call = in_thread(lambda: _call(pipeline, seen))
    if held is not None:
        held.handle.abort()
    assert ended(call), "a utility call has not ended"
    if isinstance(seen.utilities[0], TimeoutError):
        return False
    assert other is None or ended(other.thread), "a request has not ended"
    return True


def _send_late(pipeline: Pipeline, seen: Seen) -> None:
    try:
        for event in pipeline.run([Request("late", "c")]):
            seen.late.append(event)
    except StageDiedError as exc:
        seen.late_error = exc
    _call(pipeline, seen)


def _watch(pipeline: Pipeline, seen: Seen, request_id: str, data: Any) -> Watched | None:
    try:
        watched = Watched(pipeline.submit(data, request_id))
    except StageDiedError as exc:
        seen.refusals.append(exc.report)
        return None
    seen.requests.append(watched)
    return watched


def _call(pipeline: Pipeline, seen: Seen) -> None:
    stalls = seen.cell.point == "utility" and seen.cell.wanted.stalls
    try:
        answer = pipeline.utility("faulty", "echo", (1,), timeout_s=STALL_S if stalls else HANG_S)
    except (UtilityError, TimeoutError) as exc:
        answer = exc
    seen.utilities.append(answer)


def _try_again(pipeline: Pipeline, seen: Seen) -> None:
    """Ask for more after the death."""
    _watch(pipeline, seen, "more", "d")
    try:
        list(pipeline.run([Request("more", "d")]))
    except StageDiedError as exc:
        seen.refusals.append(exc.report)


def _faulty(cell: Cell, announce: str, step_timeout_s: float | None) -> dict[str, Any]:
    keys = {} if step_timeout_s is None else {"step_timeout_s": step_timeout_s}
    if cell.point == "import":
        env = {"FAULT": cell.action, "FAULT_NTH": str(cell.nth), "FAULT_ANNOUNCE": announce}
        return stage("faulty", "fault_on_import:FaultEngine", env=env)
    return fault(cell.point, cell.action, nth=cell.nth, announce=announce) | keys


@contextmanager
def _boot_fault(cell: Cell, events: Events, announce: str, names: list[str]) -> Iterator[None]:
    """Let the variables for a fault at a boot point be there only while the stage that has it is spawned."""
    if cell.point not in {"spawned", "before_hello", "after_hello", "before_ready"}:
        yield
        return
    path = os.pathsep.join(map(str, (TESTS / "boot_fault", TESTS, TESTS.parent)))
    variables = {
        "PYTHONPATH": path,
        "BOOT_FAULT": f"{cell.point} {cell.action} {cell.nth}",
        "BOOT_ANNOUNCE": announce,
    }
    before = {name: os.environ.get(name) for name in variables}
    following = dict(pairwise(names))

    def prepare(name: str | None) -> None:
        for key, value in (variables if name == "faulty" else before).items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})

    events.react("stage_spawned", lambda event: prepare(following.get(event["stage"])))
    prepare(names[0])
    try:
        yield
    finally:
        prepare(None)


@contextmanager
def _listening() -> Iterator[Events]:
    events, logger = Events(), logging.getLogger("supervisor")
    logger.addHandler(events)
    try:
        yield events
    finally:
        logger.removeHandler(events)


@contextmanager
def _watching_stages(seen: Seen) -> Iterator[dict[int, int]]:
    """A pidfd, by pid, of every stage process that is spawned meanwhile."""
    pidfds: dict[int, int] = {}

    def hold(event: dict[str, Any]) -> None:
        pidfds[event["pid"]] = os.pidfd_open(event["pid"])
        seen.stages[event["pid"]] = event["stage"]

    seen.events.react("stage_spawned", hold)
    try:
        yield pidfds
    finally:
        for fd in pidfds.values():
            os.close(fd)


def _hear(seen: Seen, told: Announcements) -> None:
    """Read what the faulty stage has announced."""
    while not told.nothing_left():
        what, pid = told.wait().split()
        if what == "sleeper":
            seen.grandchildren.append(int(pid))
        else:
            seen.announced.append(what)
            # The engine's shutdown is announced whether it is the fault's point or not.
            if seen.announced.count(seen.cell.point) > (seen.cell.point == "shutdown"):
                seen.fired_in = int(pid)
