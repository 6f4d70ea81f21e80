"""What is larger than `max_request_bytes` fails alone, and the text names the knob."""

from __future__ import annotations

from typing import Any

import pytest
from harness import HANG_S, data_of, pipeline_config, stage

from supervisor import Outcome, Pipeline, PipelineConfig, Request, RequestFailedError, Result, UtilityError

LIMIT = 1000
BIG = 2000


def config(*stages: dict[str, Any]) -> PipelineConfig:
    return pipeline_config(*(stages or (stage("echo"),)), max_request_bytes=LIMIT)


def inflate(name: str) -> dict[str, Any]:
    return stage(name, "engines_that_hang:Inflate")


@pytest.mark.parametrize("data", [b"x" * BIG, "x" * BIG, ["x" * 10] * BIG, {"a": b"x" * BIG}, b"x" * 100_000])
def test_submit(data: Any) -> None:
    """`submit` refuses what is too large, and goes on with what follows."""
    with Pipeline(config()) as pipeline:
        with pytest.raises(ValueError, match="max_request_bytes"):
            pipeline.submit(data, "r1")
        assert (pipeline.in_flight, data_of(pipeline.submit("x", "r1").result(HANG_S))) == (0, ["x"])


def test_just_fits() -> None:
    """What takes as many bytes as are allowed passes, one more does not; the frame's own bytes count."""
    with Pipeline(config()) as pipeline:
        fits = b"x" * (LIMIT - 3)  # bin 16: three bytes ahead of them
        assert data_of(pipeline.submit(fits).result(HANG_S)) == [fits]
        with pytest.raises(ValueError, match="takes 1001 bytes, more than max_request_bytes \\(1000\\)"):
            pipeline.submit(fits + b"x")


def test_run() -> None:
    """In a run it fails alone."""
    requests = [Request("a", "x"), Request("big", b"x" * BIG), Request("b", "y")]
    with Pipeline(config()) as pipeline:
        seen = list(pipeline.run(requests))
    outcomes = {event.id: event for event in seen if isinstance(event, Outcome)}
    assert {key: outcome.outcome for key, outcome in outcomes.items()} == {
        "a": "finished",
        "big": "failed",
        "b": "finished",
    }
    assert outcomes["big"].error == "the data takes 2003 bytes, more than max_request_bytes (1000)"
    assert sorted(event.data for event in seen if isinstance(event, Result)) == ["x", "y"]


def test_utility_arguments() -> None:
    """A call whose arguments are too large raises, and sends nothing."""
    with Pipeline(config()) as pipeline:
        with pytest.raises(ValueError, match="max_request_bytes"):
            pipeline.utility("echo", "echo", ("x" * 600, "x" * 600))
        assert pipeline.utility("echo", "echo", ("x",)) == ["x"]


def test_utility_results() -> None:
    """A call whose result is too large fails alone."""
    with Pipeline(config(inflate("inflate"))) as pipeline:
        with pytest.raises(UtilityError, match="max_request_bytes"):
            pipeline.utility("inflate", "bytes", (BIG,))
        assert pipeline.utility("inflate", "bytes", (3,)) == bytes(3)
        assert pipeline.died is None


@pytest.mark.parametrize("names", [("inflate",), ("inflate", "after"), ("before", "inflate")])
@pytest.mark.parametrize("size", [BIG, 100_000])
def test_outputs(names: tuple[str, ...], size: int) -> None:
    """A request whose output is too large fails alone, be the output on its way to a stage or to the user."""
    stages = [inflate(name) if name == "inflate" else stage(name) for name in names]
    with Pipeline(config(*stages)) as pipeline:
        handles = [pipeline.submit(number) for number in (3, size, 4)]
        assert data_of(handles[0].result(HANG_S)) == [bytes(3)]
        with pytest.raises(RequestFailedError, match="max_request_bytes") as caught:
            handles[1].result(HANG_S)
        assert data_of(handles[2].result(HANG_S)) == [bytes(4)]
        assert (caught.value.report, pipeline.died) == (None, None)


def test_parts_count_alone() -> None:
    """The bound holds for each output: a request may have many that are larger together."""
    with Pipeline(config(stage("split", "Split"), stage("echo"))) as pipeline:
        parts = [b"x" * 200] * 4
        assert data_of(pipeline.submit(parts).result(HANG_S)) == parts
