"""A stage that needs a processor: pure arithmetic in Python, one request a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage import Output

if TYPE_CHECKING:
    from collections.abc import Sequence


class Arithmetic:
    """Answer each request with the sum of so many squares.

    Args:
        squares: 50,000 take some milliseconds.
    """

    def __init__(self, squares: int = 50_000) -> None:
        self._squares = squares
        self._waiting: list[str] = []

    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, request_id: str, _data: Any) -> None:
        self._waiting.append(request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._waiting = [request_id for request_id in self._waiting if request_id not in request_ids]

    def step(self) -> list[Output]:
        total = 0
        for number in range(self._squares):
            total += number * number
        return [Output(self._waiting.pop(0), total, True)]

    def utility(self, name: str, args: tuple[Any, ...]) -> Any:
        raise ValueError(f"the arithmetic engine has no utilities, so not {name!r} with {args!r}")
