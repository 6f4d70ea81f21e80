"""Scripts that hold a pipeline in a process of their own, so that a test can end it in any way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness import HANG_S, TESTS, Announcements, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRELUDE = """\
import os, signal, sys, threading
from engines_for_tests import announce
from harness import HANG_S, data_of, fault, pid_of, pipeline_config, stage
from supervisor import Pipeline, Request, StageProcManager
FIFO = sys.argv[1]
announce(FIFO, "run")
def ready(pipeline):
    announce(FIFO, " ".join(str(info.pid) for info in pipeline.stages))
def gate(**limits):
    return pipeline_config(stage("gate", "Gate"), stage("echo"), **limits)
"""


class Script(NamedTuple):
    """A script that runs, and what it tells."""

    process: subprocess.Popen[str]
    announcements: Announcements

    def pids(self) -> list[int]:
        """The stages' pids, which it announces."""
        return [int(pid) for pid in self.announcements.wait().split()]

    def end(self) -> tuple[int, str]:
        """Wait for its end: the status, and what it wrote, standard output first."""
        # Apart: on one pipe the log of another thread may fall into the middle of a line.
        output, errors = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, output + errors


@pytest.fixture
def script(announcements: Announcements, tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    """Run a script as a process of its own, in a session of its own; it is killed when the test ends."""
    with_path = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    started = []

    def run(body: str) -> Script:
        file = tmp_path / "script.py"
        file.write_text(PRELUDE + body)
        process = subprocess.Popen(
            [sys.executable, file, announcements.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=with_path,
            start_new_session=True,
        )
        started.append(process)
        assert announcements.wait() == "run"
        return Script(process, announcements)

    yield run
    for process in started:
        process.kill()
        process.wait(HANG_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def run_directory_stays() -> Iterator[None]:
    """For supervisors that nothing can clean up after."""
    yield
    for path in Path(tempfile.gettempdir()).glob("stages-*"):
        shutil.rmtree(path)


def assert_gone(pids: list[int]) -> None:
    """The supervisor has ended, so nothing can be waited for by its handle: the kernel must know no such process."""
    for pid in pids:
        try:
            with watching(pid) as wait_gone:
                wait_gone()
        except ProcessLookupError:
            continue
