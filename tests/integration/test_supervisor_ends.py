"""However the supervisor ends, no process of ours outlives it: scripts without a `__main__` guard, and their ends."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from harness import watching
from scripts import Script, assert_gone, run_directory_stays

if TYPE_CHECKING:
    from collections.abc import Callable

WAITS = {
    "in result": "pipeline.submit(['x']).result()",
    "in iteration": "next(iter(pipeline.submit(['x'])))",
    "in submit": "[pipeline.submit(['x']) for _ in range(3)]",
    "in run": "list(pipeline.run([Request('r1', ['x'])]))",
    "in run, source blocks": "list(pipeline.run(iter(threading.Event().wait, None)))",
    "in utility": "pipeline.utility('gate', 'open', (pipeline.submit('x') and 0,)); pipeline.submit('y').result()",
    "elsewhere": "threading.Event().wait()",
}


@pytest.mark.parametrize("where", WAITS)
def test_sigint(script: Callable[[str], Script], where: str) -> None:
    """SIGINT, sent to the whole group as a terminal does, ends the script by KeyboardInterrupt, wherever it waits."""
    running = script(f"with Pipeline(gate(max_in_flight=2)) as pipeline:\n    ready(pipeline)\n    {WAITS[where]}\n")
    with watching(*running.pids()) as wait_gone:
        os.killpg(running.process.pid, signal.SIGINT)
        status, output = running.end()
        wait_gone()
    assert (status, output.count("KeyboardInterrupt")) == (-signal.SIGINT, 1)


def test_second_sigint_is_immediate(script: Callable[[str], Script]) -> None:
    """A second SIGINT while the stages are being stopped kills them at once."""
    running = script(
        "config = pipeline_config(fault('shutdown', 'block', announce=FIFO), shutdown_timeout_s=1000)\n"
        "with Pipeline(config) as pipeline:\n    ready(pipeline)\n    threading.Event().wait()\n"
    )
    with watching(*running.pids()) as wait_gone:
        running.process.send_signal(signal.SIGINT)
        assert running.announcements.wait().startswith("shutdown")
        running.process.send_signal(signal.SIGINT)
        status, _ = running.end()
        wait_gone()
    assert status == -signal.SIGINT


def test_sigint_during_the_start(script: Callable[[str], Script]) -> None:
    """SIGINT while an engine is being built ends the script by KeyboardInterrupt, and the stages are gone."""
    running = script(
        "with Pipeline(pipeline_config(stage('fine'), fault('init', 'block', announce=FIFO))):\n    print('it runs')\n"
    )
    pid = int(running.announcements.wait().removeprefix("init "))
    with watching(pid) as wait_gone:
        running.process.send_signal(signal.SIGINT)
        status, output = running.end()
        wait_gone()
    assert status == -signal.SIGINT
    assert "it runs" not in output


def test_sigterm_with_the_default_action(script: Callable[[str], Script]) -> None:
    """SIGTERM that nobody handles ends the supervisor without any clean-up, and the stages notice."""
    running = script("with Pipeline(gate()) as pipeline:\n    ready(pipeline)\n    threading.Event().wait()\n")
    with watching(*running.pids()) as wait_gone, run_directory_stays():
        running.process.terminate()
        assert running.end()[0] == -signal.SIGTERM
        wait_gone()


def test_sigterm_with_a_handler(script: Callable[[str], Script]) -> None:
    """SIGTERM whose handler exits leaves the block in order."""
    running = script(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "with Pipeline(gate()) as pipeline:\n    ready(pipeline)\n    pipeline.submit('x').result()\n"
    )
    with watching(*running.pids()) as wait_gone:
        running.process.terminate()
        assert running.end() == (7, "")
        wait_gone()


@pytest.mark.parametrize("where", ["idle", "in a step", "in init", "stopped"])
def test_sigkill(script: Callable[[str], Script], where: str) -> None:
    """After SIGKILL of the supervisor its stages are gone, whatever they are doing, and all that they have started."""
    point = {"idle": "never", "in init": "init"}.get(where, "step")
    action = "sigstop" if where == "stopped" else "block"
    running = script(
        f"config = pipeline_config(fault({point!r}, {action!r}, announce=FIFO, also='sleeper'), stage('other'))\n"
        "with Pipeline(config) as pipeline:\n"
        "    ready(pipeline)\n    pipeline.submit('x')\n    threading.Event().wait()\n"
    )
    pids = [int(running.announcements.wait().removeprefix("sleeper "))]
    if where == "in init":
        pids.append(int(running.announcements.wait().removeprefix("init ")))
    else:
        pids += running.pids()
    if point == "step":
        assert running.announcements.wait().startswith("step")
    with watching(*pids) as wait_gone, run_directory_stays():
        running.process.kill()
        assert running.end()[0] == -signal.SIGKILL
        wait_gone()


def test_os_exit(script: Callable[[str], Script]) -> None:
    """`os._exit` runs no finalizer; the stages notice."""
    running = script("pipeline = Pipeline(gate())\npipeline.start()\nready(pipeline)\nos._exit(5)\n")
    with run_directory_stays():
        pids = running.pids()
        assert running.end()[0] == 5
        assert_gone(pids)


@pytest.mark.parametrize(
    ("last", "status"), [("", 0), ("sys.exit(3)", 3), ("raise LookupError", 1), ("handle.abort(); del handle", 0)]
)
def test_exit_without_close(script: Callable[[str], Script], last: str, status: int) -> None:
    """An interpreter that exits while a pipeline is open stops its stages first, and keeps its own status."""
    running = script(
        "pipeline = Pipeline(gate())\npipeline.start()\nhandle = pipeline.submit(['x'])\n"
        f"events = pipeline.run(iter(threading.Event().wait, None))\nready(pipeline)\n{last}\n"
    )
    pids = running.pids()
    assert status == running.end()[0]
    assert_gone(pids)


def test_manager_without_close(script: Callable[[str], Script]) -> None:
    """A manager that is never closed stops its processes when the interpreter exits."""
    running = script(
        "manager = StageProcManager(gate())\nmanager.start()\n"
        "announce(FIFO, ' '.join(str(proc.pid) for proc in manager.procs))\n"
    )
    pids = running.pids()
    assert running.end() == (0, "")
    assert_gone(pids)


def test_no_guard_is_needed(script: Callable[[str], Script]) -> None:
    """A stage never runs the script that started it."""
    running = script(
        "print('once', __name__)\n"
        "with Pipeline(pipeline_config(stage('a'), stage('b'))) as pipeline:\n"
        "    print(data_of(pipeline.submit('x').result(HANG_S)), pipeline.utility('a', 'main'))\n"
    )
    assert running.end() == (0, "once __main__\n['x'] None\n")


def test_forked_copy(script: Callable[[str], Script]) -> None:
    """A forked copy of the supervisor stops nothing when it exits, closes or collects; the original goes on."""
    running = script(
        "pipeline = Pipeline(gate())\npipeline.start()\nready(pipeline)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    pipeline.close()\n    del pipeline\n    sys.exit(9)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "pipeline.utility('gate', 'open', (1,))\n"
        "print(data_of(pipeline.submit(['x']).result(HANG_S)), pipeline.died)\n"
        "pipeline.close()\n"
    )
    pids = running.pids()
    status, output = running.end()
    assert (status, output) == (0, "9\n['x'] None\n")
    assert_gone(pids)


def test_sigchld_ignored(script: Callable[[str], Script]) -> None:
    """With SIGCHLD ignored the kernel keeps no exit status: a death is seen all the same, its status unknown."""
    running = script(
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "with Pipeline(gate()) as pipeline:\n"
        "    ready(pipeline)\n"
        "    handle = pipeline.submit(['x'], 'r1')\n"
        "    os.kill(pid_of(pipeline, 'gate'), signal.SIGKILL)\n"
        "    try:\n        handle.result(HANG_S)\n"
        "    except Exception as exc:\n        print(exc.report.exit_code, exc.report.requests_lost)\n"
    )
    with run_directory_stays():
        pids = running.pids()
        status, output = running.end()
        assert_gone(pids)
    assert status == 0
    assert "None ['r1']" in output.splitlines()
