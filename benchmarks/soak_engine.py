"""The stage of the soak: answers a request piece by piece, and acts out a fault where a request asks for one."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from stage import Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Piecework:
    """Answer a request for n pieces with n outputs, one a step; each output is a request for one piece.

    A request is `{"trail": [], "pieces": n, …}`; an output has its number at the end of its trail, so the trail of a
    result is its part.

    Args:
        step_ms: how long a step takes.
        helper: whether to start a process of its own, which must go with the stage.
    """

    def __init__(self, step_ms: float = 0.0, *, helper: bool = False) -> None:
        self._name = os.environ["STAGE_NAME"]
        self._step_s = step_ms / 1000
        self._todo: dict[str, tuple[dict[str, Any], int]] = {}
        self._added = 0
        self._helper = subprocess.Popen(["sleep", "1000"]) if helper else None  # noqa: S607

    def has_work(self) -> bool:
        return bool(self._todo)

    def add(self, request_id: str, data: dict[str, Any]) -> None:
        if data.get("refuse_at") == self._name:
            raise RequestError("refused, as asked")
        if data.get("exit_at") == self._name:
            os._exit(7)
        self._added += 1
        self._todo[request_id] = (data, 0)

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._todo.pop(request_id, None)

    def step(self) -> list[Output]:
        time.sleep(self._step_s)
        outputs = []
        for request_id, (data, piece) in list(self._todo.items()):
            if data.get("raise_at") == self._name:
                raise RuntimeError("raised, as asked")
            finished = piece + 1 == data["pieces"]
            outputs.append(Output(request_id, {**data, "trail": [*data["trail"], piece], "pieces": 1}, finished))
            self._todo[request_id] = (data, piece + 1)
            if finished:
                del self._todo[request_id]
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "added":
            return self._added
        if name != "echo":
            raise LookupError(f"no utility {name!r}")
        return list(args)

    def shutdown(self) -> None:
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
