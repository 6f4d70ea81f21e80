"""What the tests of the library share: configs in one line, ways to hear from a stage, and waits that cannot hang."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from supervisor import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from supervisor import Pipeline, Result

HANG_S = 30.0
"""Longer than anything takes; a wait that reaches it has found a hang."""

TESTS = Path(__file__).parent


def stage(name: str, engine: str = "Echo", *, args: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A stage of a config; `engine` is a class in `engines_for_tests`, or a whole import path."""
    path = engine if ":" in engine else f"engines_for_tests:{engine}"
    return {"name": name, "engine": path, "args": args or {}, **keys}


def fault(point: str, action: str, name: str = "faulty", **args: Any) -> dict[str, Any]:
    """A stage with a `FaultEngine`."""
    return stage(name, "FaultEngine", args={"point": point, "action": action, **args})


def pipeline_config(*stages: dict[str, Any], **limits: Any) -> PipelineConfig:
    """A config of these stages, with bounds that only a hang reaches."""
    raw = {"startup_timeout_s": HANG_S, "shutdown_timeout_s": 10, **limits, "stages": list(stages)}
    return PipelineConfig.from_dict(raw, TESTS)


def data_of(results: Iterable[Result]) -> list[Any]:
    """The data alone, in the order in which one process would have produced it."""
    return [result.data for result in sorted(results, key=lambda result: result.part)]


def pid_of(pipeline: Pipeline, name: str) -> int:
    """The pid of a stage."""
    return next(stage.pid for stage in pipeline.stages if stage.name == name)


class Events(logging.Handler):
    """The library's log events, and functions to call at once when one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []
        self._reactions: list[tuple[str, Callable[[dict[str, Any]], object]]] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] = getattr(record, "event_dict", {})
        for name, react in self._reactions:
            if name == event.get("event"):
                react(event)
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def react(self, name: str, react: Callable[[dict[str, Any]], object]) -> None:
        """Call `react(event)` whenever the event `name` is logged, on the thread that logs it."""
        self._reactions.append((name, react))

    def of(self, name: str) -> list[dict[str, Any]]:
        """All events of this name so far."""
        return [event for event in self.seen if event.get("event") == name]

    def wait(self, name: str) -> dict[str, Any]:
        """Wait for the first event of this name."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.of(name), HANG_S), f"no {name} came"
        return self.of(name)[0]


class Announcements:
    """A FIFO on which engines say which point they have reached, a line at a time."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._rest = b""

    def __enter__(self) -> Self:
        os.mkfifo(self.path)
        # Also for writing: so it never comes to an end, and a writer never waits for a reader.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        Path(self.path).unlink()

    def wait(self) -> str:
        """The next line."""
        while b"\n" not in self._rest:
            assert readable(self._fd), "nothing was announced"
            self._rest += os.read(self._fd, 4096)
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    def nothing_left(self) -> bool:
        """True if everything that has been written was read."""
        return not self._rest and not readable(self._fd, 0)


def readable(fd: int, timeout_s: float = HANG_S) -> bool:
    """Wait until `fd` can be read; False if it cannot in this time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


@contextmanager
def watching(*pids: int) -> Iterator[Callable[[], None]]:
    """Hold on to processes that are no children of ours; the yielded function waits until all of them are gone."""
    fds = [os.pidfd_open(pid) for pid in pids]

    def wait_all_gone() -> None:
        for pid, fd in zip(pids, fds, strict=True):
            assert readable(fd), f"process {pid} is still there"

    try:
        yield wait_all_gone
    finally:
        for fd in fds:
            os.close(fd)


def until(ready: Callable[[], object], what: str) -> None:
    """Look again and again, for a state of a process that no event tells."""
    deadline = time.monotonic() + HANG_S
    while not ready():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        threading.Event().wait(0.002)


def in_thread(target: Callable[[], object]) -> threading.Thread:
    """Start a thread; join it with `ended`."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    """Wait for the end of a thread."""
    thread.join(HANG_S)
    return not thread.is_alive()


def is_asleep(thread: threading.Thread) -> bool:
    """True if the thread waits for something at this moment."""
    # A thread that has only just been started has no number yet.
    if thread.native_id is None:
        return False
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"
