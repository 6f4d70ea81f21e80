"""What is compared with a baseline: round trips, throughput, start and stop. Ours and the baselines take turns."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from baseline_children import identity
from baselines import bare_pair_s, pool_of_one, queue_pair

from supervisor import Pipeline, PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.queues import Queue

WINDOW = 1_000
TRIPS = 300
MESSAGES = 10_000
SUMS = 64
"""Requests of a round for the stage that needs a processor: some milliseconds each."""

Queues: TypeAlias = "tuple[Queue[bytes], Queue[bytes]]"

_DATA = b"x" * 100


class Compared(NamedTuple):
    """Medians over the rounds.

    Args:
        ours: in seconds, or messages a second.
        baseline: in the same unit.
        ratio: the median of the ratios of each round, not the ratio of the medians: both halves of a round saw the
            same machine.
    """

    ours: float
    baseline: float
    ratio: float


def countdown_config() -> PipelineConfig:
    """Two stages of Countdown."""
    stages = [{"name": name, "engine": "stage.engines.countdown:Countdown"} for name in ("first", "second")]
    return PipelineConfig.from_dict({"name": "bench", "stages": stages})


def compare_messages(rounds: int) -> dict[str, Compared]:
    """Round trips against the queue pair and the pool, throughput against the queue pair."""
    with Pipeline(_echo_config()) as pipeline, queue_pair() as queues, pool_of_one() as pool:
        trips = _trips(pipeline, queues, pool)
        flows = {"ours": lambda: _pipeline_flow(pipeline), "queues": lambda: _queues_flow(queues)}
        measured = []
        for _ in range(1 + rounds):
            trip_s = {name: _median_s(trip) for name, trip in trips.items()}
            per_s = {name: MESSAGES / _timed_s(flow) for name, flow in flows.items()}
            measured.append((trip_s, per_s))
    warm = measured[1:]
    return {
        "trip, queues": _compare([(trip_s["ours"], trip_s["queues"]) for trip_s, _ in warm]),
        "trip, pool": _compare([(trip_s["ours"], trip_s["pool"]) for trip_s, _ in warm]),
        "flow, queues": _compare([(per_s["ours"], per_s["queues"]) for _, per_s in warm]),
    }


def compare_replicas(rounds: int) -> Compared:
    """Requests a second of a stage with two replicas, against the same stage with one."""
    with Pipeline(_arithmetic_config(2)) as two, Pipeline(_arithmetic_config(1)) as one:
        measured = [(_sums_per_s(two), _sums_per_s(one)) for _ in range(1 + rounds)]
    return _compare(measured[1:])


def compare_start(rounds: int) -> Compared:
    """Start until READY and stop of two Countdown stages, against two bare processes that import the same."""
    config = countdown_config()

    def start_and_stop() -> None:
        with Pipeline(config):
            pass

    measured = [(_timed_s(start_and_stop), bare_pair_s()) for _ in range(1 + rounds)]
    return _compare(measured[1:])


def _echo_config() -> PipelineConfig:
    stages = [{"name": "echo", "engine": "echo_engine:Echo"}]
    return PipelineConfig.from_dict(
        {"name": "bench", "max_in_flight": WINDOW, "stages": stages}, base_dir=Path(__file__).parent
    )


def _arithmetic_config(replicas: int) -> PipelineConfig:
    stage = {"name": "sum", "engine": "arithmetic_engine:Arithmetic", "replicas": replicas}
    return PipelineConfig.from_dict({"name": "bench", "stages": [stage]}, base_dir=Path(__file__).parent)


def _sums_per_s(pipeline: Pipeline) -> float:
    def flow() -> None:
        for handle in [pipeline.submit(None) for _ in range(SUMS)]:
            handle.result()

    return SUMS / _timed_s(flow)


def _trips(pipeline: Pipeline, queues: Queues, pool: ProcessPoolExecutor) -> dict[str, Callable[[], object]]:
    there, back = queues

    def through_queues() -> None:
        there.put(_DATA)
        back.get()

    return {
        "ours": lambda: pipeline.submit(_DATA).result(),
        "queues": through_queues,
        "pool": lambda: pool.submit(identity, _DATA).result(),
    }


def _pipeline_flow(pipeline: Pipeline) -> None:
    window = deque(pipeline.submit(_DATA) for _ in range(WINDOW))
    for _ in range(MESSAGES - WINDOW):
        window.popleft().result()
        window.append(pipeline.submit(_DATA))
    for handle in window:
        handle.result()


def _queues_flow(queues: Queues) -> None:
    there, back = queues
    for _ in range(WINDOW):
        there.put(_DATA)
    for _ in range(MESSAGES - WINDOW):
        back.get()
        there.put(_DATA)
    for _ in range(WINDOW):
        back.get()


def _timed_s(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _median_s(trip: Callable[[], object]) -> float:
    return median(_timed_s(trip) for _ in range(TRIPS))


def _compare(rounds: list[tuple[float, float]]) -> Compared:
    return Compared(
        ours=median(ours for ours, _ in rounds),
        baseline=median(baseline for _, baseline in rounds),
        ratio=median(ours / baseline for ours, baseline in rounds),
    )
