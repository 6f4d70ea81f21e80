"""Lockstep groups of real processes, with an engine whose step is a collective: one step too many hangs it."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections import Counter
from typing import Any

import pytest
from harness import HANG_S, Events, data_of, pipeline_config, stage, until

from stage.waves import ROUND
from supervisor import Pipeline, RequestFailedError, StartupError


def group(count: int, **keys: Any) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return stage("group", "engines_for_groups:AllReduce", args={"port": port}, replicas=count, lockstep=True, **keys)


def steps_of(pipeline: Pipeline) -> list[list[int]]:
    """For each replica its steps, and those of them that were in vain."""
    count = len(pipeline.stages)
    return [pipeline.utility("group", "steps", (), replica=number, timeout_s=HANG_S) for number in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_a_thousand_arrivals(events: Events, count: int) -> None:
    """Requests of every length, at every time, all end, and all replicas have stepped equally often."""
    rng = random.Random(count)  # noqa: S311 (no secret)
    with Pipeline(pipeline_config(group(count), max_in_flight=32)) as pipeline:
        handles = []
        for _ in range(1000):
            handles.append(pipeline.submit(rng.choice([1, 2, 5, ROUND - 1, ROUND, ROUND + 1])))
            if rng.random() < 0.02:
                handles[-1].result(HANG_S)  # a pause, often long enough for the wave to end
            elif rng.random() < 0.02:
                threading.Event().wait(rng.random() / 50)
        ranks = Counter(data_of(handle.result(HANG_S))[0][0] for handle in handles)
        until(lambda: len(events.of("wave_ended")) == len(events.of("wave_started")), "the last wave ends")
        steps = steps_of(pipeline)
    assert sorted(ranks) == list(range(count))
    assert len({total for total, _ in steps}) == 1
    assert steps[0][0] % ROUND == 0
    waves = [event["wave"] for event in events.of("wave_started")]
    assert waves == list(range(len(waves)))


def test_paused_group_is_asleep(events: Events) -> None:
    """Between two waves nobody steps."""
    with Pipeline(pipeline_config(group(2))) as pipeline:
        pipeline.submit(1).result(HANG_S)
        until(lambda: events.of("wave_ended"), "the wave ends")
        assert [total for total, _ in steps_of(pipeline)] == [ROUND, ROUND]
        threading.Event().wait(0.2)
        assert [total for total, _ in steps_of(pipeline)] == [ROUND, ROUND]
        pipeline.submit(1).result(HANG_S)
        until(lambda: len(events.of("wave_ended")) == 2, "the second wave ends")
    assert [event["wave"] for event in events.of("wave_ended")] == [0, 1]


@pytest.mark.parametrize("victim", [0, 1, None])
@pytest.mark.parametrize("on_death", ["stop", "degrade"])
def test_death_in_a_wave(events: Events, victim: int | None, on_death: str) -> None:
    """In a lockstep group a death always stops the pipeline, and every request ends as failed."""
    with Pipeline(pipeline_config(group(2, on_death=on_death))) as pipeline:
        handles = [pipeline.submit(10**9) for _ in range(6)]
        events.wait("wave_started")
        pid = next(info.pid for info in pipeline.processes if info.replica == victim)
        os.kill(pid, signal.SIGKILL)
        for handle in handles:
            with pytest.raises(RequestFailedError):
                handle.result(HANG_S)
        report = pipeline.died
    assert report is not None
    assert (report.replica, report.signal, report.collateral_of) == (victim, "SIGKILL", None)


def test_abort_in_a_wave() -> None:
    """The wave goes on for the others."""
    with Pipeline(pipeline_config(group(2))) as pipeline:
        endless = pipeline.submit(10**9)
        assert pipeline.submit(3).result(HANG_S)
        endless.abort()
        assert pipeline.submit(3).result(HANG_S)


def test_engine_without_dummy_step() -> None:
    """A lockstep stage wants a `dummy_step`."""
    config = pipeline_config(stage("group", "engines_for_groups:WhoAmI", replicas=2, lockstep=True))
    with pytest.raises(StartupError, match="dummy_step"), Pipeline(config):
        pytest.fail("it became ready")


def test_lockstep_group_cannot_be_scaled() -> None:
    """Its engines form a group of a fixed size."""
    with Pipeline(pipeline_config(group(2))) as pipeline, pytest.raises(ValueError, match="lockstep"):
        pipeline.scale("group", 3)
