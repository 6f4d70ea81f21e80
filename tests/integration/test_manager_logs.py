"""The logs of a process that died are kept, also if nobody has asked about it."""

from __future__ import annotations

import os
import signal

from harness import pipeline_config, readable, stage

from supervisor import StageProcManager


def test_death_that_nobody_has_looked_at(logs_may_stay: None) -> None:
    """A manager that is closed before anybody has noticed the death keeps its directory, with nothing but logs."""
    manager = StageProcManager(pipeline_config(stage("only")))
    manager.start()
    (proc,) = manager.procs
    os.kill(proc.pid, signal.SIGKILL)
    assert readable(proc.pidfd)
    manager.close()
    assert [path for path in manager.run_dir.path.iterdir() if path.suffix != ".log"] == []
