"""What holds for every test: a private temporary directory, the library's log events at hand, and nothing left behind.

A test fails if a child process, a file descriptor, a thread, a file or shared memory is there after it that was not
there before. Sets are compared, so the failure names the leak.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import zmq
from harness import Announcements, Events
from hypothesis import settings
from scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["script"]

SETTLE_S = 5.0

# No deadline for an example, since the machine may be busy; in CI the same examples each time.
settings.register_profile("ours", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ours")


@pytest.fixture(scope="session", autouse=True)
def _before_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Begin what lives as long as the session, so that no single test seems to leave it behind."""
    # In the real temporary directory, not in the first test's own one.
    tmp_path_factory.getbasetemp()
    resource_tracker.ensure_running()
    # A large frame begins pyzmq's own thread that frees what has been sent.
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://warm-up")
        other.connect("inproc://warm-up")
        one.send(bytes(1 << 20), copy=False)
        other.recv()
    # Its context has two threads, which give themselves their names some time after they have begun.
    until = time.monotonic() + SETTLE_S
    while (
        len([key for key in _everything(tempfile.gettempdir()) if key.startswith("task")]) < 2
        and time.monotonic() < until
    ):
        threading.Event().wait(0.01)


@pytest.fixture(autouse=True)
def clean_slate(request: pytest.FixtureRequest, _before_all: None) -> Iterator[Events]:
    """Give the test a temporary directory of its own, listen to the log, and find what the test leaves behind."""
    # Short, whatever TMPDIR says: the path of a unix socket ends at 107 bytes.
    directory = tempfile.mkdtemp(prefix="t", dir="/tmp")
    before = _everything(directory)
    logger = logging.getLogger("supervisor")
    level = logger.level
    events = Events()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        logger.addHandler(events)
        logger.setLevel(logging.DEBUG)
        try:
            yield events
        finally:
            logger.removeHandler(events)
            logger.setLevel(level)
    logs_may_stay = bool(events.of("stage_died")) or "logs_may_stay" in request.fixturenames
    leaks = _leaks(before, directory, logs_may_stay=logs_may_stay)
    shutil.rmtree(directory)
    assert not leaks, "left behind: " + "; ".join(leaks)


@pytest.fixture
def events(clean_slate: Events) -> Events:
    """The library's log events so far."""
    return clean_slate


@pytest.fixture
def logs_may_stay() -> None:
    """For a test in which a stage dies without a `stage_died` event in this process: its logs are kept."""


@pytest.fixture
def announcements(clean_slate: Events) -> Iterator[Announcements]:
    """What stage processes tell the test."""
    with Announcements(Path(tempfile.gettempdir()) / "announcements") as opened:
        yield opened


def _leaks(before: dict[str, str], directory: str, *, logs_may_stay: bool) -> list[str]:
    """Name what is new; kernel threads and processes get some time, since they go shortly after they were joined."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        new = {key: what for key, what in _everything(directory).items() if before.get(key) != what}
        leaks = [
            what
            for key, what in new.items()
            if not (logs_may_stay and _is_kept_log_dir(key)) and not _is_in_use_elsewhere(key)
        ]
        if not leaks or time.monotonic() > deadline:
            return leaks
        threading.Event().wait(0.02)


def _everything(directory: str) -> dict[str, str]:
    """All that a test could leave behind: a key for each thing, and words that name it."""
    found: dict[str, str] = {}
    found.update(_processes())
    found.update(_descriptors())
    found.update({f"thread {thread.ident}": f"{thread!r}" for thread in threading.enumerate()})
    for task in Path("/proc/self/task").iterdir():
        name = _read(task / "comm")
        if name.startswith("ZMQ"):
            found[f"task {task.name}"] = f"zmq's thread {name} (task {task.name})"
    for place in (directory, "/dev/shm"):  # noqa: S108 (only listed)
        found.update({str(path): f"file {path}" for path in Path(place).iterdir()})
    return found


def _processes() -> dict[str, str]:
    tracker: Any = resource_tracker._resource_tracker
    found = {}
    for process in psutil.Process().children(recursive=True):
        if process.pid != tracker._pid:
            command = _read(Path(f"/proc/{process.pid}/cmdline")).replace("\0", " ")
            found[f"process {process.pid}"] = f"process {process.pid} ({command or 'a zombie'})"
    return found


def _descriptors() -> dict[str, str]:
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[f"fd {link.name}"] = f"fd {link.name} -> {link.readlink()}"
        except OSError:
            continue  # that of the listing itself
    return found


def _is_kept_log_dir(key: str) -> bool:
    path = Path(key)
    return path.name.startswith("stages-") and path.is_dir() and all(log.suffix == ".log" for log in path.iterdir())


def _is_in_use_elsewhere(key: str) -> bool:
    """True for shared memory that a process which is none of ours has mapped: other programs run beside the tests."""
    if not key.startswith("/dev/shm/"):  # noqa: S108 (only looked at)
        return False
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = [path for path in Path("/proc").glob("[0-9]*/maps") if int(path.parent.name) not in ours]
    return any(key in _read(path) for path in others)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
