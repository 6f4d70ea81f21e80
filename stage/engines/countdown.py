"""A toy engine for first steps and tests: each request counts down to zero, one number a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage.engine import Output, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Countdown:
    """Count each request down from its data to zero.

    Request data is the number of steps, a whole number; the outputs are the numbers left after each step, the last
    one 0. A countdown of no steps ends without data.
    `utility("stats", ())` tells the number of requests at hand, `utility("div", (a, b))` returns a / b.
    """

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def has_work(self) -> bool:
        """True while a countdown runs."""
        return bool(self._left)

    def add(self, request_id: str, data: Any) -> None:
        """Start a countdown of `data` steps."""
        if isinstance(data, bool) or not isinstance(data, int) or data < 0:
            raise RequestError(f"a countdown needs a whole number of at least 0, not {data!r:.100}")
        self._left[request_id] = data

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop these countdowns."""
        for request_id in request_ids:
            self._left.pop(request_id, None)

    def step(self) -> list[Output]:
        """Count every request down by one."""
        outputs = [Output(request_id, left - 1 if left else None, left <= 1) for request_id, left in self._left.items()]
        self._left = {request_id: left - 1 for request_id, left in self._left.items() if left > 1}
        return outputs

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer `stats` and `div`."""
        if name == "stats":
            return {"running": len(self._left)}
        if name == "div":
            dividend, divisor = args
            return dividend / divisor
        raise ValueError(f"unknown utility {name!r}: use 'stats' or 'div'")
