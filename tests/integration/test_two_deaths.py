"""Several stages that fail at once: one report each, and the first failure is the cause of the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import (
    HANG_S,
    Announcements,
    Events,
    ended,
    fault,
    in_thread,
    pid_of,
    pipeline_config,
    stage,
    until,
    watching,
)

from stage.black_box import BlackBoxRecord, read_black_box
from supervisor import Pipeline, RequestFailedError, StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator


def reports(events: Events) -> list[tuple[str, str, str | None]]:
    return [(event["stage"], event["cause"], event.get("collateral_of")) for event in events.of("stage_died")]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_killed_at_once(events: Events, order: tuple[str, str]) -> None:
    """Both are reported once, whichever is noticed first."""
    with Pipeline(pipeline_config(stage("a"), stage("b"), stage("c"))) as pipeline:
        pids = [pid_of(pipeline, name) for name in order]
        # Under the lock, so that neither can be reported before both are dead.
        with watching(*pids) as wait_gone, pipeline._core.switchboard.lock:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_gone()
        until(lambda: len(events.of("stage_died")) == 2, "both are reported")
    (first, *_), (second, _, collateral) = reports(events)
    assert ({first, second}, collateral) == ({"a", "b"}, f"{first}/0")


@pytest.fixture
def triggers(announcements: Announcements) -> Iterator[list[str]]:
    """A FIFO for each of two stages."""
    paths = [f"{announcements.path}.{number}" for number in range(2)]
    for path in paths:
        os.mkfifo(path)
    yield paths
    for path in paths:
        Path(path).unlink()


@pytest.mark.parametrize("first", [0, 1])
def test_raised_within_one_poll(events: Events, announcements: Announcements, triggers: list[str], first: int) -> None:
    """Of two that have raised before anybody looked, the earlier one is the cause, whatever the config's order."""
    both = [
        {
            **stage(
                f"s{number}",
                "engines_that_hang:RaiseWhenTold",
                args={"trigger_step": trigger, "announce": announcements.path},
            ),
            "inputs": ["split"],
        }
        for number, trigger in enumerate(triggers)
    ]
    with Pipeline(pipeline_config(stage("split"), *both)) as pipeline:
        handle = pipeline.submit("x", "r1")
        for _ in range(2):
            assert announcements.wait().startswith("step")
        pids = [pid_of(pipeline, f"s{number}") for number in (first, 1 - first)]
        # Nothing is applied meanwhile: the messages of both lie ready when it goes on.
        with watching(*pids) as wait_gone, pipeline._core.switchboard.lock:
            for number in (first, 1 - first):
                Path(triggers[number]).write_bytes(b"")
                assert announcements.wait().startswith("shutdown")
            wait_gone()
        with pytest.raises(RequestFailedError) as caught:
            handle.result(HANG_S)
        until(lambda: len(events.of("stage_died")) == 2, "both are reported")
    assert caught.value.report is not None
    assert caught.value.report.stage == f"s{first}"
    assert reports(events) == [(f"s{first}", "fatal", None), (f"s{1 - first}", "fatal", f"s{first}/0")]


@pytest.mark.parametrize("action", ["sigkill", "exit7", "raise"])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_at_the_start(events: Events, announcements: Announcements, action: str, names: tuple[str, str]) -> None:
    """Two that fail while they start are reported once each, and the first is the cause."""
    gates = {name: f"{announcements.path}.{name}" for name in (*names, "ready")}
    for gate in gates.values():
        os.mkfifo(gate)

    def waits(name: str) -> dict[str, Any]:
        args = {"gate": gates[name], "announce_to": announcements.path}
        return stage(
            name, "engines_that_hang:WaitInInit", args={**args, "then": "report" if name == "ready" else action}
        )

    def end_both(_event: dict[str, Any]) -> None:
        # On the supervisor's own thread: it cannot look before both are gone.
        with watching(*(spawned["pid"] for spawned in events.of("stage_spawned")[:2])) as wait_gone:
            for name in names:
                Path(gates[name]).write_bytes(b"")
            wait_gone()

    def let_go() -> None:
        for _ in gates:
            announcements.wait()
        Path(gates["ready"]).write_bytes(b"")

    events.react("stage_ready", end_both)
    letting_go = in_thread(let_go)
    with pytest.raises(StartupError) as caught:
        Pipeline(pipeline_config(*map(waits, gates))).start()
    assert ended(letting_go)
    for gate in gates.values():
        Path(gate).unlink()
    (first, cause, none), (second, _, collateral) = reports(events)
    assert (caught.value.report.stage, {first, second}, none) == (first, set(names), None)
    assert (collateral, cause) == (f"{first}/0", {"sigkill": "signal", "exit7": "exit", "raise": "fatal"}[action])


ENDS = {"sigkill": "signal", "exit7": "exit", "raise": "fatal"}


@pytest.mark.parametrize("action", ENDS)
@pytest.mark.parametrize("watched", [True, False])
def test_black_box_after_a_death(events: Events, action: str, watched: bool) -> None:
    """The black box tells where the stage was, whatever ended it, before anything could be said."""
    boxes: list[BlackBoxRecord] = []
    keys = {"step_timeout_s": 1000} if watched else {}
    with Pipeline(pipeline_config({**fault("step", action, nth=2), **keys})) as pipeline:
        path = pipeline._core.manager.run_dir.black_box("faulty", 0)
        events.react("stage_died", lambda _: boxes.append(read_black_box(path)))
        handles = [pipeline.submit([1, 2, 3]) for _ in range(2)]
        for handle in handles:
            with pytest.raises(RequestFailedError):
                handle.result(HANG_S)
        events.wait("stage_died")
    (box,) = boxes
    assert (box.call, box.steps, box.in_hand >= 1, box.call_since > 0) == ("step", 2, True, True)
    assert (box.error is not None) == (action == "raise")
    assert reports(events) == [("faulty", ENDS[action], None)]
