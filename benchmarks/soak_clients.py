"""Clients of the soak: each a thread that submits, aborts and calls until the pipeline ends, then settles its account.

A client's account is its own until its thread has ended.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from soak_plan import STAGES

from supervisor import RequestAbortedError, RequestFailedError, StageDiedError, UtilityError

if TYPE_CHECKING:
    import random

    from supervisor import Pipeline, Result
    from supervisor.handle import Handle

ANSWER_S = 20.0
"""How long an answer may take before it counts as lost; far more than any takes."""

PENDING = 12
THINK_S = 0.002


class Account:
    """What one thread has seen."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        """What is wrong."""
        self.cost: dict[int, list[str]] = {}
        """The ids of the requests that failed because of a death, by the pid of its report."""

    def __iadd__(self, other: Account) -> Self:
        self.counts += other.counts
        self.notes += other.notes
        for pid, ids in other.cost.items():
            self.cost.setdefault(pid, []).extend(ids)
        return self


class Sent(NamedTuple):
    """A request that was accepted."""

    handle: Handle
    data: dict[str, Any]


class Client:
    """Use a pipeline until it ends.

    Args:
        pipeline: it has been started.
        rng: decides what to do next.
        name: of the thread.
    """

    def __init__(self, pipeline: Pipeline, rng: random.Random, name: str) -> None:
        self.account = Account()
        self._pipeline = pipeline
        self._rng = rng
        self._pending: deque[Sent] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        """Wait for its end; what it has not settled by then is lost."""
        self._thread.join(3 * ANSWER_S)
        if self._thread.is_alive():
            self.account.counts["lost"] += len(self._pending)
            self.account.notes.append(f"the thread {self._thread.name} hangs")
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                self._rng.choices((self._submit, self._settle_one, self._abort, self._call), (60, 25, 8, 7))[0]()
                time.sleep(self._rng.random() * THINK_S)
        except (StageDiedError, RuntimeError):
            # The pipeline has ended: RuntimeError says that it was closed.
            while self._pending:
                self._settle_one()
        except BaseException as exc:
            self.account.notes.append(f"a client got {exc!r}")

    def _submit(self) -> None:
        if len(self._pending) == PENDING:
            self._settle_one()
        data: dict[str, Any] = {"trail": [], "pieces": self._rng.randint(1, 5)}
        if self._rng.random() < 0.05:
            data["refuse_at"] = self._rng.choice(STAGES)
        if self._rng.random() < 0.05:
            data["pad"] = bytes(self._rng.randrange(200_000))
        self._pending.append(send(self._pipeline, data, self.account))

    def _settle_one(self) -> None:
        if self._pending:
            settle(self._pending.popleft(), self.account)

    def _abort(self) -> None:
        if self._pending:
            self._rng.choice(self._pending).handle.abort()

    def _call(self) -> None:
        info, number = self._rng.choice(self._pipeline.stages), self._rng.randrange(1000)
        counts = self.account.counts
        counts["called"] += 1
        try:
            answer = self._pipeline.utility(info.name, "echo", (number,), replica=info.replica or 0, timeout_s=ANSWER_S)
        except (UtilityError, ValueError):  # ValueError: it has left since we looked
            counts["calls failed"] += 1
        except TimeoutError as exc:
            counts["calls unanswered"] += 1
            self.account.notes.append(str(exc))
        else:
            if answer != [number]:
                counts["wrong answers"] += 1
                self.account.notes.append(f"the utility of {info} answered {number} with {answer!r}")


def send(pipeline: Pipeline, data: dict[str, Any], account: Account) -> Sent:
    """Submit a request; it counts once it is accepted."""
    sent = Sent(pipeline.submit(data), data)
    account.counts["sent"] += 1
    return sent


def settle(sent: Sent, account: Account) -> None:
    """Wait for the one outcome of a request, and see that it is a right one."""
    handle, data = sent
    try:
        results = handle.result(ANSWER_S)
    except TimeoutError:
        outcome, right = "lost", False
    except RequestAbortedError:
        outcome, right = "aborted", True
    except RequestFailedError as exc:
        outcome, right = "failed", exc.report is not None or "refuse_at" in data
        if exc.report is not None:
            account.cost.setdefault(exc.report.pid, []).append(handle.id)
    else:
        outcome, right = "finished", _is_right(results, data)
    account.counts[outcome] += 1
    if not right or handle.outcome != (None if outcome == "lost" else outcome):
        account.counts["wrong answers"] += outcome != "lost"
        account.notes.append(
            f"request {handle.id} with {len(data.get('pad', b''))} bytes ended as {outcome}: {handle.error}"
        )


def _is_right(results: list[Result], data: dict[str, Any]) -> bool:
    """True if each piece has come once, by the way that it had to take, with its data."""
    pieces = data["pieces"]
    expected = [("each", [piece, 0]) for piece in range(pieces)] + [("last", [pieces - 1, 0])]
    return sorted((result.stage, result.part) for result in results) == expected and all(
        result.data == {**data, "trail": result.part, "pieces": 1} for result in results
    )
