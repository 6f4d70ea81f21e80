"""What a pipeline costs while it has nothing to do: processor time, context switches and memory of each process.

Measured from outside, so that the supervisor's figures hold nothing of the measurement.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOT_S = 30.0
END_S = 10.0
SETTLE_S = 1.0


class Rest(NamedTuple):
    """One process at rest."""

    cpu_ms: float
    switches: int
    rss_mb: float


def measure_rest(duration_s: float) -> dict[str, Rest]:
    """What the supervisor and each stage process use in `duration_s`, by name."""
    with _resting_pipeline() as pids:
        time.sleep(SETTLE_S)
        before = {name: _usage(pid) for name, pid in pids.items()}
        time.sleep(duration_s)
        after = {name: _usage(pid) for name, pid in pids.items()}
        rss = {name: psutil.Process(pid).memory_info().rss / 1e6 for name, pid in pids.items()}
    return {
        name: Rest(
            cpu_ms=(after[name][0] - before[name][0]) / 1e6,
            switches=after[name][1] - before[name][1],
            rss_mb=rss[name],
        )
        for name in pids
    }


@contextmanager
def _resting_pipeline() -> Iterator[dict[str, int]]:
    command = [sys.executable, str(Path(__file__).with_name("resting_pipeline.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], BOOT_S)[0]:
                raise TimeoutError(f"no pipeline at rest within {BOOT_S} s")
            yield {"supervisor": process.pid, **json.loads(process.stdout.readline())}
            process.stdin.close()
            process.wait(END_S)
        finally:
            # Its stages end with it.
            process.kill()


def _usage(pid: int) -> tuple[int, int]:
    """Nanoseconds on a processor and context switches so far, over all threads."""
    cpu_ns = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Not utime and stime: they count in ticks of 10 ms.
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches:" in line:
                switches += int(line.split()[1])
    return cpu_ns, switches
