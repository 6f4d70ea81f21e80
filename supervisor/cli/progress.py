"""What the live line and the summary tell (pure): stage states from log events, counts from results and outcomes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from stage.names import label_of
from supervisor.handle import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.handle import Result

_STATES = {
    "stage_spawned": "starting",
    "stage_starting": "starting",
    "stage_ready": "ready",
    "coordinator_spawned": "starting",
    "coordinator_ready": "ready",
    "stage_died": "died",
    "stage_killed": "killed",
}


class Progress:
    """Keep account of one run of the command.

    Args:
        now: seconds on a clock of the caller's.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._states: dict[str, str] = {}
        self._outcomes: Counter[str] = Counter()
        self._results = 0

    @property
    def failed(self) -> int:
        """Requests that have failed."""
        return self._outcomes["failed"]

    def on_log(self, event: Mapping[str, Any], now: float) -> bool:
        """Take a log event; True if it changes what is shown."""
        name = event.get("event")
        if name == "pipeline_ready":
            # Rates are those of the pipeline at work.
            self._began = now
            return True
        label = label_of(str(event.get("stage")), event.get("replica"))
        if name == "replica_left":
            self._states.pop(label, None)
        elif name in _STATES:
            self._states[label] = _STATES[name]
        else:
            return False
        return True

    def on_event(self, event: Result | Outcome) -> None:
        """Count a result or an outcome."""
        if isinstance(event, Outcome):
            self._outcomes[event.outcome] += 1
        else:
            self._results += 1

    def live_line(self, now: float, width: int) -> str:
        """Stage states, requests done, and their rate: as much as `width` characters hold."""
        # Copied at once: other threads log.
        states = dict(self._states)
        stages = " ".join(f"{_short(label, states)} {state}" for label, state in states.items()) or "starting"
        counts = " ".join(f"{count} {state}" for state, count in Counter(states.values()).items()) or "starting"
        failed = f" ({self.failed} failed)" if self.failed else ""
        done = f"{self._outcomes.total()} done{failed}"
        results, rate = _results(self._results), f"{self._rate(now):.1f} requests/s"
        lines = [
            f"{stages} | {done}, {results} | {rate}",
            f"{counts} | {done}, {results} | {rate}",
            f"{counts} | {done}",
            done,
        ]
        return next((line for line in lines if len(line) <= width), done[:width])

    def fields(self, now: float) -> dict[str, int | float]:
        """The summary as plain data."""
        outcomes = {name: self._outcomes[name] for name in ("finished", "failed", "aborted")}
        seconds, rate = round(now - self._began, 3), round(self._rate(now), 1)
        return {**outcomes, "results": self._results, "seconds": seconds, "requests_per_s": rate}

    def summary(self, now: float) -> str:
        """The summary as a sentence."""
        told = self.fields(now)
        outcomes = ", ".join(f"{told[name]} {name}" for name in ("finished", "failed", "aborted"))
        pace = f"{told['seconds']} s, {told['requests_per_s']} requests/s"
        return f"requests: {outcomes}; {_results(self._results)} in {pace}"

    def _rate(self, now: float) -> float:
        # A clock may stand still for a short run.
        return self._outcomes.total() / max(now - self._began, 1e-3)


def _short(label: str, states: Mapping[str, str]) -> str:
    stage, _, replica = label.rpartition("/")
    alone = sum(other.rpartition("/")[0] == stage for other in states) == 1
    return stage if alone and replica == "0" else label


def _results(count: int) -> str:
    return "1 result" if count == 1 else f"{count} results"
