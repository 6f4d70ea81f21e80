"""The kernel's out-of-memory killer is told from other senders of SIGKILL, by the counter of the memory cgroup."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import until
from scripts import Script, run_directory_stays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_BYTES = 256 * 1024 * 1024

SCRIPT = """\
with open({procs!r}, "w") as procs:
    procs.write(str(os.getpid()))
with Pipeline(pipeline_config(stage("eater", "engines_that_hang:{engine}"), stage("other"))) as pipeline:
    handle = pipeline.submit("x", "r1")
    {then}
    try:
        handle.result(HANG_S)
    except Exception as exc:
        report = exc.report
        print(report.stage, report.cause, report.signal, report.oom_killed)
        print(report.summary())
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """The `cgroup.procs` of a memory cgroup of our own, with little memory and no swap."""
    with _made() as directory:
        yield directory / "cgroup.procs"


@contextmanager
def _made() -> Iterator[Path]:
    directory, limit, swap = _place()
    try:
        directory.mkdir()
        (directory / limit).write_text(str(LIMIT_BYTES))
    except OSError as exc:
        if directory.is_dir():
            directory.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {exc}")
    if (directory / swap).exists():
        (directory / swap).write_text(str(LIMIT_BYTES if "memsw" in swap else 0))
    try:
        yield directory
    finally:
        until(lambda: not (directory / "cgroup.procs").read_text(), "the cgroup is empty")
        directory.rmdir()


def _place() -> tuple[Path, str, str]:
    name = f"stages-test-{os.getpid()}"
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    if "memory" in paths:
        return (
            Path("/sys/fs/cgroup/memory") / paths["memory"] / name,
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
        )
    return Path("/sys/fs/cgroup") / paths[""] / name, "memory.max", "memory.swap.max"


@pytest.mark.parametrize(
    ("then", "told", "why"),
    [
        ("pass", "True", "by the kernel: out of memory"),
        ("os.kill(pid_of(pipeline, 'eater'), signal.SIGKILL)", "False", "no oom_kill recorded"),
    ],
    ids=["out of memory", "kill -9"],
)
def test_oom_killed(script: Callable[[str], Script], cgroup: Path, then: str, told: str, why: str) -> None:
    """A stage that the kernel has killed for lack of memory says so; one that somebody else has killed does not."""
    engine = "Eater" if told == "True" else "Gate"
    running = script(SCRIPT.format(procs=str(cgroup), engine=engine, then=then))
    with run_directory_stays():
        status, output = running.end()
    assert f"eater signal SIGKILL {told}\n" in output
    assert why in output
    assert status == 0
