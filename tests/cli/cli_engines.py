"""Engines for the tests of the command, each with one peculiarity."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stage.engine import Output

if TYPE_CHECKING:
    from collections.abc import Sequence


class Echo:
    """Return each request's data as its only output."""

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}

    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, request_id: str, data: Any) -> None:
        self._waiting[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def step(self) -> list[Output]:
        outputs = [Output(request_id, data, True) for request_id, data in self._waiting.items()]
        self._waiting.clear()
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        raise ValueError(name)


class Who(Echo):
    """Answer with the number of the replica."""

    def add(self, request_id: str, data: Any) -> None:
        super().add(request_id, os.environ["STAGE_REPLICA"])


class Hold(Echo):
    """Keep the requests whose data is `hold` for ever; echo the others."""

    def add(self, request_id: str, data: Any) -> None:
        if data != "hold":
            super().add(request_id, data)


class Stubborn(Hold):
    """Refuse to end, and say so on the FIFO that the environment names."""

    def shutdown(self) -> None:
        Path(os.environ["ANNOUNCE"]).write_text("shutdown\n")
        threading.Event().wait()


class Orderly(Hold):
    """Say that the end has begun on one FIFO, and end when another one says so."""

    def shutdown(self) -> None:
        Path(os.environ["ANNOUNCE"]).write_text("shutdown\n")
        Path(os.environ["RELEASE"]).read_text()


class SlowInit(Echo):
    """Take for ever to become ready."""

    def __init__(self) -> None:
        super().__init__()
        threading.Event().wait()


class BadInit(Echo):
    """Fail to become ready."""

    def __init__(self) -> None:
        super().__init__()
        print("loading weights")  # noqa: T201 (for the log)
        raise RuntimeError("no such weights")


class Unfinished:
    """Lack all methods but one."""

    def has_work(self) -> bool:
        return False


class BadStep(Echo):
    """Fail at the first request."""

    def step(self) -> list[Output]:
        raise ValueError("a step too far")


class Odd(Echo):
    """Return what JSON has no words for."""

    def step(self) -> list[Output]:
        import numpy as np  # noqa: PLC0415 (in the stage alone)

        data = {
            "bytes": b"\x00\xff",
            "floats": np.array([[1.5, float("nan")], [2.0, 3.0]]),
            "scalar": np.float32(0.5),
            "complex": np.array([1 + 2j]),
            "infinity": float("inf"),
            "numbers": {1: "one"},
        }
        outputs = [Output(request_id, data, True) for request_id in self._waiting]
        self._waiting.clear()
        return outputs


class Flood(Echo):
    """Produce results without end, at a pace that no memory suffers from."""

    def step(self) -> list[Output]:
        time.sleep(0.001)
        return [Output(request_id, "x" * 1000, False) for request_id in self._waiting]
