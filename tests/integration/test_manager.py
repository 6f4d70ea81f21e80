"""`StageProcManager` alone: it owns processes, with or without a pipeline round it."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import tempfile
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import HANG_S, Events, data_of, ended, in_thread, pipeline_config, readable, stage, until, watching

from stage.black_box import read_black_box
from supervisor import Pipeline, StageProcManager
from supervisor.errors import SpawnError

if TYPE_CHECKING:
    from collections.abc import Iterator


def manager_of(count: int, **limits: Any) -> StageProcManager:
    return StageProcManager(pipeline_config(*(stage(f"s{number}") for number in range(count)), **limits))


def is_in_hello(box: Path) -> bool:
    return read_black_box(box).phase == "hello"


def pids_of(manager: StageProcManager) -> list[int]:
    return [proc.pid for proc in manager.procs]


def test_start_and_close() -> None:
    """Processes are there after `start` and gone after `close`, with a status for each."""
    manager = manager_of(3)
    assert manager.sentinels() == []
    assert manager.finished_procs() == {}
    manager.start()
    assert len(set(manager.sentinels())) == 3
    assert manager.finished_procs() == {}
    with watching(*pids_of(manager)) as wait_gone:
        manager.close()
        wait_gone()
    assert {"stage:s0/0", "stage:s1/0", "stage:s2/0"} == set(manager.finished_procs())
    assert manager.sentinels() == []


def test_close_is_idempotent() -> None:
    """Closing twice, on another thread, or without a start does nothing more."""
    unused = manager_of(1)
    unused.close()
    unused.close()
    manager = manager_of(1)
    manager.start()
    closers = [in_thread(manager.close) for _ in range(3)]
    assert all(ended(closer) for closer in closers)
    manager.close()
    manager.hurry()


def test_context_manager() -> None:
    """The block starts the processes, and its end takes them down, also when it raises."""
    manager = manager_of(2)

    def use() -> None:
        with manager:
            assert len(pids_of(manager)) == 2
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        use()
    assert len(manager.finished_procs()) == 2


@pytest.mark.usefixtures("logs_may_stay")
def test_finished_procs_is_never_empty_after_a_death() -> None:
    """As soon as a sentinel tells an end, the exit code is known, for each of several deaths."""
    with manager_of(6) as manager:
        finished = {}
        for proc, sentinel in zip(list(manager.procs), manager.sentinels(), strict=True):
            os.kill(proc.pid, signal.SIGKILL)
            assert readable(sentinel)
            finished[proc.process_name] = -9
            assert finished == manager.finished_procs()


@pytest.mark.usefixtures("logs_may_stay")
def test_log_of_a_process_that_died_stays() -> None:
    """After a death the logs are kept, and nothing else; after an end in order nothing is."""
    with manager_of(1) as manager:
        os.kill(manager.procs[0].pid, signal.SIGKILL)
        assert readable(manager.sentinels()[0])
        manager.finished_procs()
    assert all(path.suffix == ".log" for path in manager.run_dir.path.iterdir())


@pytest.mark.parametrize("when", ["at once", "while they wait"])
def test_dropped_without_close(when: str) -> None:
    """A manager that nobody holds any more takes its processes down, in every phase of their start."""
    manager = manager_of(2)
    manager.start()
    gone = weakref.ref(manager)
    if when == "while they wait":
        for proc in manager.procs:
            until(partial(is_in_hello, proc.box), "it waits")
        del proc
    with watching(*pids_of(manager)) as wait_gone:
        del manager
        gc.collect()
        assert gone() is None
        wait_gone()


def test_start_that_is_interrupted(events: Events) -> None:
    """A KeyboardInterrupt half-way through the start takes down what has been started."""

    def interrupt(event: dict[str, Any]) -> None:
        if event["stage"] == "s1":
            raise KeyboardInterrupt

    events.react("stage_spawned", interrupt)
    manager = manager_of(3)
    with pytest.raises(KeyboardInterrupt):
        manager.start()
    assert {"stage:s0/0", "stage:s1/0"} == set(manager.finished_procs())


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave this process so many descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = [fd for fd in range(len(used) + count + 1) if fd not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_start_without_descriptors() -> None:
    """Whichever descriptor is the first that is missing, the start fails and leaves no process and no descriptor."""
    manager_of(1).close()
    for count in range(2, 40):
        with free_descriptors(count):
            try:
                manager = manager_of(2)
                manager.start()
            except (SpawnError, OSError) as exc:
                failure = str(exc)
                continue
            manager.close()
            break
    # A directory cannot be emptied without a descriptor either.
    for path in Path(tempfile.gettempdir()).glob("stages-*"):
        shutil.rmtree(path)
    assert "Too many open files" in failure
    assert len(manager.finished_procs()) == 2


def test_long_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A temporary directory whose path is too long for a socket does not matter."""
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
    assert list(long.iterdir()) == []


def test_run_directory_is_private() -> None:
    """Nobody else may reach the sockets."""
    with manager_of(1) as manager:
        assert manager.run_dir.path.stat().st_mode & 0o777 == 0o700
