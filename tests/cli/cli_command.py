"""The real command as a subprocess: what it writes, as it comes, and nothing of it left when the test ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_S = 30.0
"""Longer than anything takes; a wait that reaches it has found a hang."""

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COUNTDOWN = ROOT / "configs" / "countdown.yaml"
_MARK = "STAGE_SUPERVISOR_TEST"


class Lines:
    """What a stream brings, read on a thread as it comes.

    Args:
        fd: closed at its end.
    """

    def __init__(self, fd: int) -> None:
        self._content = bytearray()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self._thread.start()

    def _read(self, fd: int) -> None:
        with suppress(OSError):  # a terminal ends with EIO
            while chunk := os.read(fd, 65536):
                with self._changed:
                    self._content += chunk
                    self._changed.notify_all()
        os.close(fd)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def seen(self) -> list[bytes]:
        """The lines so far that have ended."""
        return bytes(self._content).split(b"\n")[:-1]

    def wait(self, wanted: Callable[[bytes], bool]) -> bytes:
        """The first line that is wanted."""

        def found() -> list[bytes]:
            return [line for line in self.seen if wanted(line)]

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, HANG_S)
            assert found(), f"it never came; there was only:\n{self.text()}"
            return found()[0]

    def wait_text(self, text: str) -> None:
        """Wait for a text that no newline may end."""
        with self._changed:
            self._changed.wait_for(lambda: text in self.text() or self._ended, HANG_S)
            assert text in self.text()

    def join(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join(HANG_S)
        assert not self._thread.is_alive(), "somebody still holds the stream open"

    def text(self) -> str:
        """Everything so far."""
        return self._content.decode("utf-8", "replace")


class Command:
    """`run_pipeline.py` with these arguments; a context manager that kills whatever is left of it.

    Args:
        arguments: the command line.
        stdin: what standard input holds; None leaves it open for `send`.
        stdout: a file descriptor, or None to read it here.
        stderr: the same.
        env: variables over those of the test.
        launcher: what runs before the interpreter, as a shell does.
    """

    def __init__(
        self,
        *arguments: str | Path,
        stdin: bytes | None = b"",
        stdout: int | None = None,
        stderr: int | None = None,
        env: dict[str, str] | None = None,
        launcher: tuple[str, ...] = (),
    ) -> None:
        self._mark = uuid.uuid4().hex
        line = [*launcher, sys.executable, str(ROOT / "run_pipeline.py"), *map(str, arguments)]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            env={**os.environ, **(env or {}), _MARK: self._mark},
            cwd=HERE,  # where the engines are
            process_group=0,
        )
        self._out = _lines_of(self.process.stdout)
        self._err = _lines_of(self.process.stderr)
        if stdin is not None:
            with suppress(BrokenPipeError):
                self.send(stdin)
            self.close_stdin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(HANG_S)
        self.close_stdin()
        for stream in (self._out, self._err):
            if stream is not None:
                stream.join()

    @property
    def out(self) -> Lines:
        """Standard output."""
        assert self._out is not None
        return self._out

    @property
    def err(self) -> Lines:
        """Standard error."""
        assert self._err is not None
        return self._err

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_stdin(self) -> None:
        """End its standard input."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Wait for a log event that has these fields; the log format must be JSON."""
        wanted = {"event": name, **fields}

        def is_it(line: bytes) -> bool:
            event = json.loads(line)
            return all(event.get(key) == value for key, value in wanted.items())

        found: dict[str, Any] = json.loads(self.err.wait(is_it))
        return found

    def output(self, **fields: Any) -> dict[str, Any]:
        """Wait for a line of standard output that has these fields."""

        def is_it(line: bytes) -> bool:
            event = json.loads(line)
            return all(event.get(key) == value for key, value in fields.items())

        found: dict[str, Any] = json.loads(self.out.wait(is_it))
        return found

    def finish(self) -> int:
        """Wait for its end, and for the end of what it writes; check that nothing of it is left."""
        status = self.process.wait(HANG_S)
        for stream in (self._out, self._err):
            if stream is not None:
                stream.join()
        # The resource tracker of multiprocessing ends by itself, right after us.
        wait_until(lambda: not self.left(), "nothing is left")
        return status

    def outputs(self) -> list[dict[str, Any]]:
        """All lines of standard output."""
        return [json.loads(line) for line in self.out.seen]

    def outcomes(self) -> dict[str, str]:
        """The outcome of each request; there is one for each id."""
        ends = [line for line in self.outputs() if "outcome" in line]
        assert len({line["id"] for line in ends}) == len(ends)
        return {line["id"]: line["outcome"] for line in ends}

    def left(self) -> list[int]:
        """The pids of the command and all that it has started, as far as they are alive, wherever they hang."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
        return found


def _lines_of(stream: IO[bytes] | None) -> Lines | None:
    if stream is None:
        return None
    with stream:
        return Lines(os.dup(stream.fileno()))


def write_config(directory: Path, *engines: str, **keys: Any) -> Path:
    """A config with a stage of each engine in `cli_engines`; the stages are called a, b, …"""
    stages = [{"name": name, "engine": f"cli_engines:{engine}"} for name, engine in zip("abcd", engines, strict=False)]
    path = directory / "pipeline.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"startup_timeout_s": 30, "shutdown_timeout_s": 30, **keys, "stages": stages}))
    return path


def wait_until_full(pipe: int) -> None:
    """Wait until a pipe that nobody reads takes no more; `pipe` is its end for writing."""
    wait_until(lambda: not select.select([], [pipe], [], 0)[1], "the pipe is full")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that can only be looked at."""
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline, f"it never came that {what}"
        threading.Event().wait(0.005)


def lines(*requests: Any) -> bytes:
    """Requests as JSON lines."""
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)
