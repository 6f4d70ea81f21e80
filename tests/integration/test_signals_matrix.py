"""Signals at a script that uses the library: whenever they come, and however often, its stages are gone after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import HANG_S, TESTS, Announcements, ended, in_thread, pipeline_config, stage, watching

from supervisor import Pipeline, StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator

PRELUDE = """
import os, signal, sys, threading
from engines_for_tests import announce
from harness import HANG_S, data_of, fault, pipeline_config, stage
from supervisor import Pipeline
FIFO = sys.argv[1]
def ready(pipeline):
    announce(FIFO, " ".join(str(info.pid) for info in pipeline.stages))
"""

MOMENTS = {
    "starting": "with Pipeline(pipeline_config(stage('fine'), fault('init', 'block', announce=FIFO))): pass\n",
    "running": "with Pipeline(pipeline_config(stage('gate', 'Gate'), stage('fine'))) as pipeline:\n"
    "    ready(pipeline)\n    pipeline.submit(['x']).result()\n",
    "stopping": "with Pipeline(pipeline_config(stage('fine'), fault('shutdown', 'block', announce=FIFO),\n"
    "                              shutdown_timeout_s=2)): pass\n",
}
HANDLERS = {
    "SIGINT": (signal.SIGINT, "", -signal.SIGINT),
    "SIGTERM": (signal.SIGTERM, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n", 7),
}


@contextmanager
def script(body: str, announcements: Announcements) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a process group of its own; it is killed when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body, announcements.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        process_group=0,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_signal_to_the_group(announcements: Announcements, moment: str, handler: str, times: int) -> None:
    """A signal to the group of a script ends it as its handler says, and its stages with it, be it sent twice."""
    signum, install, status = HANDLERS[handler]
    with script(install + MOMENTS[moment], announcements) as process:
        pids = [int(word) for word in announcements.wait().split() if word.isdecimal()]
        with watching(*pids) as wait_gone:
            for _ in range(times):
                os.killpg(process.pid, signum)
            process.communicate(timeout=HANG_S)
            wait_gone()
    assert process.returncode == status


def test_terminal_interrupt_reaches_no_stage_at_work(announcements: Announcements) -> None:
    """A script that takes SIGINT as it likes and goes on keeps its stages, though the terminal tells the group."""
    body = (
        "seen = threading.Event()\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.set())\n"
        "with Pipeline(pipeline_config(stage('a'), stage('b'))) as pipeline:\n"
        "    ready(pipeline)\n"
        "    while not seen.is_set(): data_of(pipeline.submit('x').result(HANG_S))\n"
        "    print(data_of(pipeline.submit('y').result(HANG_S)), pipeline.died)\n"
    )
    with script(body, announcements) as process:
        announcements.wait()
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (0, "['y'] None\n")


def test_second_signal_does_not_cut_off_the_clean_up_of_a_start(announcements: Announcements) -> None:
    """An engine whose building is cut off by one signal cleans up, though another one comes."""
    trigger = Path(f"{announcements.path}.trigger")
    os.mkfifo(trigger)
    fifos = {"announce_to": announcements.path, "trigger": str(trigger)}

    def strike() -> None:
        pid = int(announcements.wait().removeprefix("building "))
        os.kill(pid, signal.SIGTERM)
        assert announcements.wait() == "cleaning"
        os.kill(pid, signal.SIGINT)
        trigger.write_bytes(b"")

    striker = in_thread(strike)
    cleaner = stage("cleaner", "troublesome_engines:Cleaner", args=fifos)
    with pytest.raises(StartupError, match=r"SIGTERM|SIGINT"), Pipeline(pipeline_config(cleaner)):
        pytest.fail("it became ready")
    trigger.unlink()
    assert ended(striker)
    assert announcements.wait() == "cleaned"


def test_terminal_interrupt_reaches_no_stage_that_starts(announcements: Announcements) -> None:
    """Nor does it reach a stage that has no process group of its own yet."""
    body = (
        "import logging\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "class Strike(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        if record.event_dict['event'] == 'stage_spawned':\n"
        "            os.killpg(0, signal.SIGINT)\n"
        "logging.getLogger('supervisor').addHandler(Strike())\n"
        "logging.getLogger('supervisor').setLevel(logging.INFO)\n"
        "with Pipeline(pipeline_config(stage('a'), stage('b'))) as pipeline:\n"
        "    print(data_of(pipeline.submit('y').result(HANG_S)), pipeline.died)\n"
    )
    with script(body, announcements) as process:
        output, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (0, "['y'] None\n")
