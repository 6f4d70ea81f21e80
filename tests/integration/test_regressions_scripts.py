"""Bugs that were mended once and show in a fresh interpreter only: its first process, its streams, its exit."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from harness import HANG_S, TESTS, watching

IMPORTS = """
import os, sys
from harness import HANG_S, data_of, pipeline_config, stage
from supervisor import Pipeline, StageProcManager
"""


def run_script(body: str, *, launcher: str = 'exec "$@"') -> str:
    """Run a script in an interpreter of its own, started by this line of shell; it must succeed."""
    done = subprocess.run(
        ["/bin/sh", "-c", launcher, "sh", sys.executable, "-c", body],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("holder", ["Pipeline", "StageProcManager"])
def test_exit_after_an_early_finalizer(holder: str) -> None:
    """An interpreter with a finalizer older than multiprocessing's hooks stops the stages at its exit, and ends."""
    output = run_script(
        "import sys, weakref\n"
        "class Thing: pass\n"
        "thing = Thing()\n"
        "weakref.finalize(thing, bool)\n"
        "assert 'multiprocessing.util' not in sys.modules\n"
        f"{IMPORTS}"
        f"holder = {holder}(pipeline_config(stage('only')))\n"
        "holder.start()\n"
        "print(*[proc.pid for proc in getattr(holder, 'stages', None) or holder.procs])\n"
    )
    with suppress(ProcessLookupError), watching(int(output)) as wait_gone:
        wait_gone()


def test_first_manager_that_is_closed_at_once() -> None:
    """The very first stage of a process already waits with its signals: an early close ends it in order."""
    output = run_script(
        f"{IMPORTS}"
        "manager = StageProcManager(pipeline_config(stage('only')))\n"
        "manager.start()\n"
        "manager.close()\n"
        "print(manager.finished_procs())\n"
    )
    assert output == "{'stage:only/0': 0}\n"


def test_closed_standard_streams() -> None:
    """A program that was started without standard streams can run a pipeline."""
    run_script(
        f"{IMPORTS}"
        "with Pipeline(pipeline_config(stage('a'), stage('b'))) as pipeline:\n"
        "    answer = data_of(pipeline.submit('x').result(HANG_S))\n"
        "sys.exit(answer != ['x'])\n",
        launcher='exec "$@" <&- >&- 2>&-',
    )
