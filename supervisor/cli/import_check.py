"""Tries the import of every stage's engine, each in a process of its own, so that this one never imports an engine.

There the class is looked at as well: one that lacks an engine's methods is a problem.

Every process leads a group of its own, which is killed when the import has ended or its time is over.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, NamedTuple

from stage.engine import ENGINE_METHODS, LOCKSTEP_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.config import PipelineConfig, StageConfig

# The path of this process comes first, as in a spawned stage: `stage` itself may be found only there.
_BOOT = """\
import json, sys
settings = json.load(sys.stdin)
sys.path[:] = settings.pop("sys_path")
from stage.import_engine import try_import
try_import(**settings)
"""


# poll(2) takes a C int.
_POLL_LIMIT_MS = 2**31 - 1


class _Import(NamedTuple):
    stage: StageConfig
    process: subprocess.Popen[bytes]
    report: IO[bytes]
    pidfd: int


def check_engines(config: PipelineConfig, timeout_s: float) -> tuple[str, ...]:
    """Import the engines of all stages, all at once, and tell which cannot be.

    Args:
        config: the pipeline; the environment and the import path of its stages apply.
        timeout_s: how long the imports may take, in seconds: `startup_timeout_s`, of which they are a part.

    Returns:
        One line a problem, each beginning with the key path, `stages[1].engine: …`.
    """
    with ExitStack() as stack:
        imports = [stack.enter_context(_importing(stage, config.import_path)) for stage in config.stages]
        late = _wait_for_all(imports, time.monotonic() + timeout_s)
        facts = [_late_fact(timeout_s) if one.pidfd in late else _fact(one, config) for one in imports]
    return tuple(
        f"stages[{index}].engine: {one.stage.engine!r}: {fact}"
        for index, (one, fact) in enumerate(zip(imports, facts, strict=True))
        if fact is not None
    )


@contextmanager
def _importing(stage: StageConfig, import_path: tuple[str, ...]) -> Iterator[_Import]:
    with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as settings, _lifeline() as lifeline:
        # Not on the command line, which is for all to see: the environment may hold secrets.
        settings.write(json.dumps(_settings(lifeline, stage, import_path)).encode())
        settings.seek(0)
        process = subprocess.Popen(  # noqa: S603 (our own interpreter and script)
            [sys.executable, "-c", _BOOT],
            stdin=settings,
            stdout=report,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lifeline],
        )
        try:
            with _pidfd(process.pid) as pidfd:
                yield _Import(stage, process, report, pidfd)
        finally:
            _end(process)


@contextmanager
def _lifeline() -> Iterator[int]:
    """The read end of a pipe whose write end is held meanwhile."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        yield reader
    finally:
        os.close(reader)
        os.close(writer)


def _settings(lifeline: int, stage: StageConfig, import_path: tuple[str, ...]) -> dict[str, object]:
    return {
        "sys_path": [str(entry) for entry in sys.path],
        "lifeline": lifeline,
        "engine": stage.engine,
        "env": stage.environment(0, stage.replicas),
        "import_path": import_path,
        "methods": LOCKSTEP_METHODS if stage.lockstep and stage.replicas > 1 else ENGINE_METHODS,
    }


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _wait_for_all(imports: list[_Import], deadline: float) -> set[int]:
    """Wait until all have ended; return the pidfds of those that have not by then."""
    poller = select.poll()
    running = {one.pidfd for one in imports}
    for pidfd in running:
        poller.register(pidfd, select.POLLIN)
    while running and (left_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(min(left_s * 1000, _POLL_LIMIT_MS)):
            poller.unregister(pidfd)
            running.discard(pidfd)
    return running


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of the group; before the reaping, since only a zombie still reserves the group's id."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _late_fact(timeout_s: float) -> str:
    return f"the import took longer than {timeout_s:g} s; see what it waits for, or raise startup_timeout_s"


def _fact(one: _Import, config: PipelineConfig) -> str | None:
    """Say what is wrong with an import that has ended."""
    _end(one.process)
    one.report.seek(0)
    report = one.report.read()
    if not report:
        return _death(one.process.returncode)
    outcome = json.loads(report)
    if outcome["missing"]:
        return f"{outcome['error']}; {_missing_hint(outcome['missing'], one.stage.engine, config)}"
    error: str | None = outcome["error"]
    return error


def _death(returncode: int) -> str:
    if returncode >= 0:
        return f"the import ended its process with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # Real-time signals have no names.
        name = f"signal {-returncode}"
    return f"the import's process died of {name}"


def _missing_hint(missing: str, engine: str, config: PipelineConfig) -> str:
    module = engine.partition(":")[0]
    if f"{module}.".startswith(f"{missing}."):
        return f"looked in {', '.join(config.import_path)} and where Python finds its packages"
    return f"{module} needs it: install the package that has it"
