"""The supervisor's process ends in some way that runs nothing of ours: all that it has started is gone."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from harness import until, watching
from scripts import Script, assert_gone, run_directory_stays

from stage.black_box import read_black_box

if TYPE_CHECKING:
    from collections.abc import Callable

HANGS = """\
def hangs(point, action, **args):
    return {**fault(point, action, announce=FIFO, **args), "engine": "engines_that_hang:FaultEngine"}
"""
OPEN = HANGS + "pipeline = Pipeline(gate())\npipeline.start()\nready(pipeline)\n"

ENDS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "os._exit": ("os._exit(5)", 5),
    "crash": ("import faulthandler\nfaulthandler._sigsegv()", -signal.SIGSEGV),
    "abort": ("os.abort()", -signal.SIGABRT),
    "exit in a thread": ("threading.Thread(target=os._exit, args=(5,)).start()\nthreading.Event().wait()", 5),
}


@pytest.mark.parametrize("end", ENDS)
def test_ends(script: Callable[[str], Script], end: str) -> None:
    """However the supervisor's process ends, its stages end too."""
    code, status = ENDS[end]
    running = script(OPEN + "sys.stdin.read()\n" + code + "\n")
    with watching(*running.pids()) as wait_gone, run_directory_stays():
        assert running.end()[0] == status
        wait_gone()


def test_another_program(script: Callable[[str], Script]) -> None:
    """A supervisor that becomes another program takes its stages down, though the process lives on."""
    running = script(OPEN + "os.execv('/bin/sleep', ['sleep', '1000'])\n")
    with watching(*running.pids()) as wait_gone, run_directory_stays():
        wait_gone()
        assert running.process.poll() is None


def test_spawning_thread_ends(script: Callable[[str], Script]) -> None:
    """Stages belong to the process, not to the thread that started them."""
    running = script(
        "pipelines = [Pipeline(gate())]\n"
        "thread = threading.Thread(target=pipelines[0].start)\nthread.start()\nthread.join()\n"
        "ready(pipelines[0])\n"
        "pipelines[0].utility('gate', 'open', (1,))\n"
        "print(data_of(pipelines[0].submit(['x']).result(HANG_S)))\n"
        "pipelines[0].close()\n"
    )
    pids = running.pids()
    assert running.end() == (0, "['x']\n")
    assert_gone(pids)


STATES = ["block", "spin_in_python", "match_for_ever", "sleep_with_the_lock", "sigstop", "ignore_sigterm", "fork"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("where", ["step", "init"])
def test_states(script: Callable[[str], Script], where: str, state: str) -> None:
    """Whatever a stage is doing, it is gone with its supervisor, and so is what it has started."""
    running = script(
        HANGS + f"config = pipeline_config(hangs({where!r}, {state!r}, also='sleeper'))\n"
        "with Pipeline(config) as pipeline:\n    pipeline.submit(['x'])\n    threading.Event().wait()\n"
    )
    pids = [int(running.announcements.wait().split()[-1]) for _ in range(3 if state == "fork" else 2)]
    if state == "sigstop":
        until(lambda: psutil.Process(pids[1]).status() == psutil.STATUS_STOPPED, "it is stopped")
    with watching(*pids) as wait_gone, run_directory_stays():
        running.process.kill()
        running.process.wait()
        wait_gone()


@pytest.mark.parametrize("action", ["block", "sigstop"])
def test_importing(script: Callable[[str], Script], action: str) -> None:
    """A stage that is still importing its engine is gone with its supervisor."""
    running = script(
        f"config = pipeline_config(stage('late', 'fault_on_import:FaultEngine', env={{'FAULT': {action!r}}}))\n"
        "import logging\n"
        "class Tell(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        if record.event_dict['event'] == 'stage_spawned':\n"
        "            announce(FIFO, str(record.event_dict['pid']))\n"
        "logging.basicConfig(level='INFO', handlers=[Tell()])\n"
        "Pipeline(config).start()\n"
    )
    (pid,) = running.pids()
    with watching(pid) as wait_gone, run_directory_stays():
        until(lambda: _phase() == "import" and _is_asleep(pid), "it imports")
        running.process.kill()
        running.process.wait()
        wait_gone()


def _phase() -> str:
    for path in Path(tempfile.gettempdir()).glob("stages-*/late-0.box"):
        return read_black_box(path).phase
    return ""


def _is_asleep(pid: int) -> bool:
    return psutil.Process(pid).status() in {psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED}


def test_spawning(script: Callable[[str], Script]) -> None:
    """Stages that have only just been spawned are gone with their supervisor."""
    running = script(
        "manager = StageProcManager(gate())\nmanager.start()\n"
        "announce(FIFO, ' '.join(str(proc.pid) for proc in manager.procs))\nos._exit(5)\n"
    )
    with run_directory_stays():
        pids = running.pids()
        assert running.end()[0] == 5
        assert_gone(pids)


def test_forked_copy_lives(script: Callable[[str], Script]) -> None:
    """A forked copy of the supervisor that outlives it does not keep its stages alive."""
    running = script(
        OPEN + "if os.fork() == 0:\n    announce(FIFO, str(os.getpid()))\n    threading.Event().wait()\n"
        "threading.Event().wait()\n"
    )
    pids, (copy,) = running.pids(), running.pids()
    with watching(*pids) as wait_gone, watching(copy) as wait_copy_gone, run_directory_stays():
        running.process.kill()
        wait_gone()
        assert psutil.Process(copy).status() == psutil.STATUS_SLEEPING
        os.kill(copy, signal.SIGKILL)
        wait_copy_gone()


def test_subprocess_lives(script: Callable[[str], Script]) -> None:
    """A program that the supervisor has started, with all of its descriptors, does not keep its stages alive."""
    running = script(
        OPEN + "import subprocess\n"
        "other = subprocess.Popen(['sleep', '1000'], close_fds=False)\nannounce(FIFO, str(other.pid))\n"
        "threading.Event().wait()\n"
    )
    pids, (other,) = running.pids(), running.pids()
    with watching(*pids) as wait_gone, watching(other) as wait_other_gone, run_directory_stays():
        running.process.kill()
        wait_gone()
        os.kill(other, signal.SIGKILL)
        wait_other_gone()
