"""Engines that tests put into stage processes.

Faults travel in an engine's arguments, since a spawned process knows nothing of what a test has patched.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fault_actions

from stage import Output, RequestError, io_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Echo:
    """Answer each request with its data, in one output."""

    def __init__(self) -> None:
        self.todo: dict[str, Any] = {}
        self.added: list[str] = []
        self.aborted: list[str] = []

    def has_work(self) -> bool:
        return bool(self.todo)

    def add(self, request_id: str, data: Any) -> None:
        self.added.append(request_id)
        self.todo[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.todo.pop(request_id, None)

    def step(self) -> Iterable[Any]:
        outputs = [Output(request_id, data, True) for request_id, data in self.todo.items()]
        self.todo.clear()
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer `echo`, `added`, `aborted` and what is in `LOOKS`; raise for any other name."""
        if name == "echo":
            return list(args)
        if name in {"added", "aborted"}:
            return getattr(self, name)
        if name not in LOOKS:
            raise LookupError(f"no utility {name!r}")
        return LOOKS[name](*args)


LOOKS: dict[str, Callable[..., Any]] = {
    "environ": lambda *names: {name: os.environ.get(name) for name in names},
    "cpus": lambda: sorted(os.sched_getaffinity(0)),
    "path": lambda: sys.path,
    "names": lambda: sorted(task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")),
    "main": lambda: getattr(sys.modules["__main__"], "__file__", None),
    "modules": lambda: sorted(sys.modules),
}


class Split(Echo):
    """Answer a list with an output for each of its elements, one a step, and anything else as `Echo` does."""

    def step(self) -> Iterable[Any]:
        outputs = []
        for request_id, data in list(self.todo.items()):
            if not isinstance(data, list):
                outputs.append(Output(request_id, data, True))
                del self.todo[request_id]
            elif not data:
                outputs.append(Output(request_id, None, True))
                del self.todo[request_id]
            else:
                outputs.append(Output(request_id, data[0], len(data) == 1))
                self.todo[request_id] = data[1:]
                if len(data) == 1:
                    del self.todo[request_id]
        return outputs


class SplitLate(Split):
    """As `Split`, but the last element comes without the mark, and the end follows it without data."""

    def step(self) -> Iterable[Any]:
        outputs = []
        for request_id, data in list(self.todo.items()):
            outputs.append(Output(request_id, data[0] if data else None, not data))
            self.todo[request_id] = data[1:]
            if not data:
                del self.todo[request_id]
        return outputs


class Gate(Split):
    """As `Split`, but a step is taken only for each one that `utility("open", (steps,))` permits."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = 0

    def has_work(self) -> bool:
        return bool(self.todo) and self.permits > 0

    def step(self) -> Iterable[Any]:
        self.permits -= 1
        return super().step()

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name != "open":
            return super().utility(name, args)
        self.permits += args[0]
        return None


class Backwards(Echo):
    """Answer the newest request first, once `size` requests have come: results overtake each other."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def has_work(self) -> bool:
        return len(self.todo) >= self.size

    def step(self) -> Iterable[Any]:
        return list(super().step())[::-1]


class Unsendable(Echo):
    """Answer "bad" with an object that no wire takes, and "tuple" with no `Output`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def step(self) -> Iterable[Any]:
        outputs: list[Any] = []
        for request_id, data in list(self.todo.items()):
            if data == "tuple":
                outputs.append((request_id, data, True))
            else:
                # Unfinished: the engine must be told to forget it.
                outputs.append(Output(request_id, object() if data == "bad" else data, data != "bad"))
            self.held |= {request_id} if data == "bad" else set()
            del self.todo[request_id]
        return outputs

    def abort(self, request_ids: Sequence[str]) -> None:
        super().abort(request_ids)
        self.held.difference_update(request_ids)

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        return object() if name == "unsendable" else super().utility(name, args)


HELD = "held"
"""The last element of a list that a `FaultEngine` never comes to: it holds the request until it is aborted."""


class FaultEngine(Split):
    """Split, with a fault.

    Args:
        point: when: `init`, `add`, `abort`, `step`, `utility`, `shutdown`, `io` (between the engine's construction
            and READY) or `idle` (from a thread of its own, when `trigger` is opened for writing). Who makes one by
            himself may `reach` points of his own.
        action: what: a key of `ACTIONS`.
        nth: at which time that the point is reached, counted from 1.
        announce: a FIFO that is told `point pid` before the fault, and `shutdown pid` when the engine is shut down.
        trigger: a FIFO that `idle` waits for.
        also: an action that is acted out at the construction, before anything else.
    """

    def __init__(
        self,
        point: str = "never",
        action: str = "raise",
        nth: int = 1,
        announce: str | None = None,
        trigger: str | None = None,
        also: str | None = None,
    ) -> None:
        super().__init__()
        self.point, self.action, self.left = point, action, nth
        self.announce_to = announce
        sys.stdout.write(f"a fault engine for {point} {action}\n")
        if also is not None:
            ACTIONS[also](self)
        if trigger is not None:
            threading.Thread(target=self._act_when, args=(trigger,), daemon=True).start()
        self.reach("init")

    def reach(self, point: str) -> None:
        """Act if this is the point and its time has come."""
        if point != self.point:
            return
        self.left -= 1
        if self.left == 0:
            self.announce(point)
            ACTIONS[self.action](self)

    def announce(self, what: str) -> None:
        """Tell the test."""
        if self.announce_to is not None:
            announce(self.announce_to, f"{what} {os.getpid()}")

    def _act_when(self, trigger: str) -> None:
        Path(trigger).read_bytes()
        self.reach("idle")

    def set_failure_callback(self, callback: Callable[[str], None]) -> None:
        self.fail = callback
        self.reach("io")

    def add(self, request_id: str, data: Any) -> None:
        self.reach("add")
        super().add(request_id, data)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.reach("abort")
        super().abort(request_ids)

    def step(self) -> Iterable[Any]:
        self.reach("step")
        outputs = super().step()
        self.todo = {request_id: data for request_id, data in self.todo.items() if data != [HELD]}
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        self.reach("utility")
        return super().utility(name, args)

    def shutdown(self) -> None:
        self.announce("shutdown")
        self.reach("shutdown")


def announce(fifo: str, line: str) -> None:
    """Write a line to a FIFO that the test reads."""
    fd = os.open(fifo, os.O_WRONLY)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def _raise(engine: FaultEngine) -> None:
    try:
        raise KeyError("the first cause")
    except KeyError as cause:
        raise RuntimeError(f"boom in {engine.point}") from cause


def _raise_request_error(engine: FaultEngine) -> None:
    raise RequestError(f"no thanks in {engine.point}")


class OddError(Exception):
    """Cannot be made again from its `args`, and cannot be shown."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)
        self.two = two

    def __str__(self) -> str:
        raise ValueError("unshowable")


def _raise_odd(_engine: FaultEngine) -> None:
    raise OddError(1, 2)


def _keyboard_interrupt(_engine: FaultEngine) -> None:
    raise KeyboardInterrupt


def _fail_from_thread(engine: FaultEngine) -> None:
    threading.Thread(target=engine.fail, args=("a helper is gone",)).start()


def _few_files(_engine: FaultEngine) -> None:
    """Leave no descriptor for the sockets that are still to come."""
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))


def _break_thread(kind: str) -> None:
    """Let an exception rise in one of the IO threads, as soon as it does something."""
    # Not PyThreadState_SetAsyncExc: with a tracer on, CPython 3.11 then spins in the main thread.
    setattr(io_threads, {"input": "to_stage_decoder", "output": "header_encoder"}[kind], None)


def _start_sleeper(engine: FaultEngine, **options: Any) -> None:
    sleeper = subprocess.Popen(["sleep", "1000"], **options)  # noqa: S607
    assert engine.announce_to is not None
    announce(engine.announce_to, f"sleeper {sleeper.pid}")


def _fork_sleeper(engine: FaultEngine) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    assert engine.announce_to is not None
    announce(engine.announce_to, f"sleeper {pid}")


ACTIONS: dict[str, Callable[[FaultEngine], object]] = {
    "report": lambda _: None,
    "raise": _raise,
    "raise_request_error": _raise_request_error,
    "raise_odd": _raise_odd,
    "keyboard_interrupt": _keyboard_interrupt,
    "sys_exit": lambda _: sys.exit(3),
    "exit0": lambda _: os._exit(0),
    "exit7": lambda _: os._exit(7),
    "sigkill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "sigstop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "sigterm": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "abort_process": lambda _: os.abort(),
    "block": lambda _: threading.Event().wait(),
    "ignore_sigterm": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "fail_from_thread": _fail_from_thread,
    "few_files": _few_files,
    "break_input": lambda _: _break_thread("input"),
    "break_output": lambda _: _break_thread("output"),
    "sleeper": _start_sleeper,
    "sleeper_holding_all": lambda engine: _start_sleeper(engine, close_fds=False),
    "sleeper_in_session": lambda engine: _start_sleeper(engine, start_new_session=True),
    "fork": _fork_sleeper,
    "segv": lambda _: fault_actions.crash(),
    "loop": lambda _: fault_actions.loop(),
    "loop_in_c": lambda _: fault_actions.loop_in_c(),
    "garbage": lambda engine: fault_actions.send_garbage(engine.todo),
    "close_socket": lambda _: fault_actions.close_socket(),
    "print_much": lambda _: sys.stdout.writelines(f"line {number}\n" for number in range(100)),
}
