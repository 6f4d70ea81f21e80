"""What a stage has started, and what has left its process group since, is gone when the stages are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Announcements, Events, fault, pid_of, pipeline_config, stage, watching
from scripts import PRELUDE, Script, assert_gone, run_directory_stays

from supervisor import Pipeline, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ["fork_away", "fork_twice_away", "fork_renamed", "popen_away"]


def escape(way: str, fifo: str, point: str = "never", action: str = "raise") -> dict[str, Any]:
    """A stage whose helper leaves its process group."""
    return {
        **fault(point, action, announce=fifo, also=way),
        "engine": "engines_that_hang:FaultEngine",
    }


def helper_of(announcements: Announcements) -> int:
    while not (line := announcements.wait()).startswith("sleeper"):
        pass
    return int(line.removeprefix("sleeper "))


@pytest.mark.parametrize("way", WAYS)
def test_after_close(announcements: Announcements, way: str) -> None:
    """A helper in a session of its own is gone once the pipeline is closed."""
    with (
        Pipeline(pipeline_config(escape(way, announcements.path))) as pipeline,
        watching(helper_of(announcements)) as wait_gone,
    ):
        assert pipeline.died is None
        pipeline.close()
        wait_gone()


@pytest.mark.parametrize("way", WAYS)
def test_after_a_death(announcements: Announcements, events: Events, way: str) -> None:
    """It is gone after its stage's death."""
    with (
        Pipeline(pipeline_config(escape(way, announcements.path))) as pipeline,
        watching(helper_of(announcements)) as wait_gone,
    ):
        os.kill(pid_of(pipeline, "faulty"), signal.SIGKILL)
        wait_gone()
    assert len(events.of("stage_died")) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("action", ["raise", "sigkill"])
def test_after_a_failed_start(announcements: Announcements, way: str, action: str) -> None:
    """It is gone after a stage did not start."""
    config = pipeline_config(escape(way, announcements.path, "init", action))
    with pytest.raises(StartupError):
        Pipeline(config).start()
    assert_gone([helper_of(announcements)])


def test_after_sigterm(script: Callable[[str], Script]) -> None:
    """It is gone after an orderly end that SIGTERM asks for."""
    running = script(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "config = pipeline_config({**fault('never', 'raise', announce=FIFO, also='fork_twice_away'),\n"
        "    'engine': 'engines_that_hang:FaultEngine'})\n"
        "with Pipeline(config) as pipeline:\n    threading.Event().wait()\n"
    )
    with watching(helper_of(running.announcements)) as wait_gone:
        running.process.terminate()
        assert running.end()[0] == 7
        wait_gone()


def test_others_are_left_alone(events: Events) -> None:
    """What the user's own program starts while the stages start, or later, is none of ours."""
    others: list[subprocess.Popen[bytes]] = []

    def start_other(_event: dict[str, Any]) -> None:
        others.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))  # noqa: S607

    events.react("stage_spawned", start_other)
    events.react("stage_ready", start_other)
    try:
        with Pipeline(pipeline_config(stage("a"), stage("b"))):
            assert len(others) == 4
        assert [other.poll() for other in others] == [None] * 4
    finally:
        for other in others:
            other.kill()
            other.wait(HANG_S)


HOST = """\
pipeline = Pipeline(pipeline_config(stage("echo", step_timeout_s=5)))
pipeline.start()
copy = os.fork()
if copy == 0:
    signal.pause()
pipeline.close()
try:
    os.kill(copy, signal.SIGKILL)
    announce(FIFO, "the copy lives")
    os.waitpid(copy, 0)
except ProcessLookupError:
    announce(FIFO, "the copy is gone")
"""


def _host(fifo: str) -> None:
    """A supervisor in a process that multiprocessing has spawned."""
    sys.argv = ["host", fifo]
    exec(PRELUDE + HOST, {"__name__": "host"})  # noqa: S102 (as a script would run it)


def test_copies_of_a_spawned_supervisor(announcements: Announcements) -> None:
    """A forked copy of a supervisor that was itself spawned by multiprocessing is none of a stage's helpers."""
    process = multiprocessing.get_context("spawn").Process(target=_host, args=(announcements.path,))
    process.start()
    lines = [announcements.wait(), announcements.wait()]
    process.join(HANG_S)
    assert (lines, process.exitcode) == (["run", "the copy lives"], 0)
    process.close()


def test_after_sigkill_of_the_supervisor(script: Callable[[str], Script]) -> None:
    """After SIGKILL of the supervisor the helpers that have left the group may stay; the next start finds them."""
    running = script(
        "config = pipeline_config({**fault('never', 'raise', announce=FIFO, also='popen_away'),\n"
        "    'engine': 'engines_that_hang:FaultEngine'})\n"
        "with Pipeline(config) as pipeline:\n    threading.Event().wait()\n"
    )
    with watching(helper_of(running.announcements)) as wait_helper_gone, run_directory_stays():
        running.process.kill()
        running.process.wait(HANG_S)
        with Pipeline(pipeline_config(stage("echo"))):
            wait_helper_gone()
