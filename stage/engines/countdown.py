"""A toy engine for first steps and tests: each request counts down to zero, one number a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.engine import Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Countdown:
    """Count each request down from its data to zero.

    Request data is the number of steps, an integer of at least 1; the outputs
    are the numbers left after each step, and the last one is 0.
    `utility("stats", ())` tells the number of requests at hand, `utility("div", (a, b))` returns a / b.
    """

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def has_work(self) -> bool:
        """True while a request is above zero."""
        return bool(self._left)

    def add(self, request_id: str, data: Any) -> None:
        """Start a countdown of `data` steps."""
        if isinstance(data, bool) or not isinstance(data, int) or data < 1:
            raise RequestError(f"a countdown needs a whole number of at least 1, not {data!r:.100}")
        self._left[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop these countdowns."""
        for request_id in request_ids:
            self._left.pop(request_id, None)

    def step(self) -> list[Output]:
        """Count every request down by one."""
        outputs = []
        for request_id, before in list(self._left.items()):
            left = before - 1
            outputs.append(Output(request_id, left, left == 0))
            if left == 0:
                del self._left[request_id]
            else:
                self._left[request_id] = left
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer `stats` and `div`."""
        if name == "stats":
            return {"running": len(self._left)}
        if name == "div":
            dividend, divisor = args
            return dividend / divisor
        raise ValueError(f"unknown utility {name!r}: use 'stats' or 'div'")
