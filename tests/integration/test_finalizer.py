"""A pipeline that nobody closes ends right at the exit of its interpreter, whatever else is registered there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from harness import HANG_S, TESTS, Events, pipeline_config, stage, watching

from supervisor import Pipeline, RequestAbortedError, StageProcManager

OPEN = """
import os, sys
from harness import HANG_S, data_of, pipeline_config, stage
from supervisor import Pipeline, StageProcManager
pipeline = Pipeline(pipeline_config(stage('only')))
pipeline.start()
pids = [info.pid for info in pipeline.stages]
def say(*words):  # in one piece, whoever else is just saying something
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""

EXECUTOR = """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import multiprocessing
threads = ThreadPoolExecutor(2)
processes = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('fork'))
assert processes.submit(pow, 2, 3).result() == 8
"""

SCRIPTS = {
    "multiprocessing first": f"import multiprocessing.util, multiprocessing.pool\n{OPEN}",
    "executors first": f"{EXECUTOR}{OPEN}",
    "executors later, at work": f"{OPEN}{EXECUTOR}"
    "for _ in range(20): threads.submit(lambda: pipeline.submit('x').result(HANG_S))\n",
    "a finalizer first": f"import weakref\nclass Thing: pass\nthing = Thing()\nweakref.finalize(thing, id, 1)\n{OPEN}",
    "a handler before, which looks": f"import atexit\natexit.register(lambda: say('end', pipeline.died))\n{OPEN}",
    "a handler after, which works": f"{OPEN}import atexit\n"
    "atexit.register(lambda: say('end', data_of(pipeline.submit('x').result(HANG_S))))\n",
    "a daemon child": f"{OPEN}import multiprocessing, time\n"
    "multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,), daemon=True).start()\n",
    "a thread at work": f"{OPEN}import threading\n"
    "threading.Thread(target=lambda: say('end', data_of(pipeline.submit('x').result(HANG_S)))).start()\n",
    "a generator at work": f"{OPEN}from supervisor import Request\n"
    "events = pipeline.run(iter([Request('r1', 'x')]))\nnext(events)\n",
    "in a cycle": f"{OPEN}pipeline.itself = pipeline\ndel pipeline\n",
    "a manager as well": f"{OPEN}manager = StageProcManager(pipeline_config(stage('other')))\nmanager.start()\n"
    "pids += [proc.pid for proc in manager.procs]\n",
}
TOLD = {
    "a handler before, which looks": "end None",
    "a handler after, which works": "end ['x']",
    "a thread at work": "end ['x']",
}


def run_script(body: str) -> tuple[int, list[str], str]:
    """Run a script in an interpreter of its own: the status, its output, and what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", body],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def assert_gone(pids: str) -> None:
    """The kernel knows no such process, or sees it go."""
    for pid in map(int, pids.split()):
        try:
            with watching(pid) as wait_gone:
                wait_gone()
        except ProcessLookupError:
            continue


@pytest.mark.parametrize("what", SCRIPTS)
def test_exit(what: str) -> None:
    """The stages end in order, without a word, and the interpreter's status is its own."""
    status, output, errors = run_script(f"{SCRIPTS[what]}say(*pids)\nsys.exit(7)\n")
    assert (status, errors) == (7, "")
    pids, *told = sorted(output, key=lambda line: line.startswith("end"))
    assert_gone(pids)
    assert told == ([TOLD[what]] if what in TOLD else [])


def test_exit_of_a_fork_copy_in_which_it_was_being_closed() -> None:
    """A copy that was forked while another thread closed the pipeline ends by itself, and ends no stage."""
    status, output, errors = run_script(
        f"{OPEN}import threading\n"
        "core = pipeline._core\n"
        # The lock that a close holds while it waits for the stages.
        "core._closing.acquire()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    pipeline.close()\n    sys.exit(9)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "core._closing.release()\n"
        "print(status, data_of(pipeline.submit('x').result(HANG_S)), pipeline.died)\n"
        "pipeline.close()\n"
    )
    assert (status, output) == (0, ["9 ['x'] None"]), errors


def test_dropped_with_a_request_under_way(events: Events) -> None:
    """A handle does not keep its pipeline alive: when that is collected, the request ends as aborted."""
    pipeline = Pipeline(pipeline_config(stage("gate", "Gate")))
    pipeline.start()
    handle = pipeline.submit("x")
    with watching(*(info.pid for info in pipeline.stages)) as wait_gone:
        del pipeline
        with pytest.raises(RequestAbortedError):
            handle.result(HANG_S)
        wait_gone()
    events.wait("pipeline_stopped")
    assert events.of("stage_killed") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_exception_half_way_through_the_spawns(events: Events, nth: int, error: type[BaseException]) -> None:
    """Whatever interrupts the start, and after however many spawns, those that were started are gone."""
    pids: list[int] = []

    def interrupt(event: dict[str, object]) -> None:
        pids.append(int(str(event["pid"])))
        if len(pids) == nth:
            raise error

    events.react("stage_spawned", interrupt)
    manager = StageProcManager(pipeline_config(stage("a"), stage("b"), stage("c")))
    with pytest.raises(error):
        manager.start()
    assert len(manager.finished_procs()) == len(pids) == nth
    assert not manager.run_dir.path.exists()
