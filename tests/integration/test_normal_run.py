"""Requests go in, results come out: through one stage and through graphs of them."""

from __future__ import annotations

import pytest
from harness import HANG_S, data_of, pipeline_config, stage

from supervisor import Outcome, Pipeline, Request, Result


def test_one_stage() -> None:
    """A request through one stage gives its result."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        results = pipeline.submit("hello", "r1").result(HANG_S)
    assert [Result("r1", "only", [0], "hello")] == results


def test_one_stage_of_a_config_that_ships() -> None:
    """The toy engine counts down to zero, a number a step."""
    with Pipeline(pipeline_config(stage("count", "stage.engines.countdown:Countdown"))) as pipeline:
        assert data_of(pipeline.submit(3).result(HANG_S)) == [2, 1, 0]


def test_two_stages() -> None:
    """Each output of the first stage is a request of the second, and a part tells its way."""
    with Pipeline(pipeline_config(stage("split", "Split"), stage("echo"))) as pipeline:
        results = pipeline.submit(["a", "b"], "r1").result(HANG_S)
    assert [Result("r1", "echo", [0, 0], "a"), Result("r1", "echo", [1, 0], "b")] == sorted(
        results, key=lambda result: result.part
    )


def test_stages_are_told_apart() -> None:
    """`stages` lists every stage process with its state and a pid of its own."""
    with Pipeline(pipeline_config(stage("a"), stage("b"))) as pipeline:
        stages = pipeline.stages
    assert [(info.name, info.replica, info.state) for info in stages] == [("a", 0, "ready"), ("b", 0, "ready")]
    assert len({info.pid for info in stages}) == 2


def test_two_consumers() -> None:
    """The outputs of a stage with two consumers go to both, and both give results."""
    config = pipeline_config(
        stage("split", "Split"), stage("left", inputs=["split"]), stage("right", "Split", inputs=["split"])
    )
    with Pipeline(config) as pipeline:
        results = pipeline.submit([1, [2, 3]]).result(HANG_S)
    assert {
        ("left", (0, 0), "1"),
        ("left", (1, 0), "[2, 3]"),
        ("right", (0, 0), "1"),
        ("right", (1, 0), "2"),
        ("right", (1, 1), "3"),
    } == {(result.stage, tuple(result.part), str(result.data)) for result in results}


def test_several_sources() -> None:
    """Every stage without inputs gets each request, and one that joins them gets what they give."""
    config = pipeline_config(
        stage("a", inputs=[]), stage("b", inputs=[]), stage("both", inputs=["a", "b"]), stage("c", inputs=[])
    )
    with Pipeline(config) as pipeline:
        results = pipeline.submit("x").result(HANG_S)
    assert sorted((result.stage, result.data) for result in results) == [("both", "x"), ("both", "x"), ("c", "x")]


@pytest.mark.parametrize("engine", ["Split", "SplitLate"])
def test_take_final(engine: str) -> None:
    """A stage that takes the final output gets only the last one that carries data."""
    config = pipeline_config(stage("split", engine), stage("last", take="final"))
    with Pipeline(config) as pipeline:
        results = pipeline.submit(["a", "b", "c"]).result(HANG_S)
    assert [(result.part, result.data) for result in results] == [([2, 0], "c")]


@pytest.mark.parametrize("take", ["each", "final"])
def test_end_without_data(take: str) -> None:
    """A request whose first stage gives no data finishes without results, and the next stage never hears of it."""
    with Pipeline(pipeline_config(stage("split", "Split"), stage("next", take=take))) as pipeline:
        assert pipeline.submit([]).result(HANG_S) == []
        assert pipeline.utility("next", "added", timeout_s=HANG_S) == []


def test_order_by_part() -> None:
    """Results that overtook each other are in order once they are sorted by part."""
    with Pipeline(pipeline_config(stage("split", "Split"), stage("back", "Backwards", args={"size": 4}))) as pipeline:
        results = pipeline.submit([[3], [1], [2], [0]]).result(HANG_S)
    assert data_of(results) == [[3], [1], [2], [0]]
    assert [result.data for result in results] != [[3], [1], [2], [0]]


def test_many_requests() -> None:
    """A thousand requests through two stages all finish, each with its own results."""
    config = pipeline_config(stage("split", "Split"), stage("echo"), max_in_flight=1000)
    with Pipeline(config) as pipeline:
        handles = [pipeline.submit([number, -number]) for number in range(1000)]
        assert [[number, -number] for number in range(1000)] == [data_of(handle.result(HANG_S)) for handle in handles]
        assert pipeline.in_flight == 0


def test_id_can_be_reused_at_once() -> None:
    """The id of a request that has ended may be used again, a hundred times over."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        for number in range(100):
            assert [number] == data_of(pipeline.submit(number, "same").result(HANG_S))


def test_id_that_is_alive_is_refused() -> None:
    """An id that is still alive raises ValueError, and the request of that id goes on."""
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit("first", "same")
        with pytest.raises(ValueError, match="'same' is still alive"):
            pipeline.submit("second", "same")
        pipeline.utility("gate", "open", (1,), timeout_s=HANG_S)
        assert data_of(handle.result(HANG_S)) == ["first"]


def test_engine_sees_ids_of_its_own() -> None:
    """Engine ids begin with the user's id and never come twice."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        for _ in range(3):
            pipeline.submit("x", "same").result(HANG_S)
        seen = pipeline.utility("only", "added", timeout_s=HANG_S)
    assert len(set(seen)) == 3
    assert all(engine_id.startswith("same") for engine_id in seen)


def test_results_outlive_the_pipeline() -> None:
    """A handle can be read after the pipeline has closed."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        handle = pipeline.submit("x")
        handle.result(HANG_S)
    assert data_of(handle.result()) == ["x"]
    assert [result.data for result in handle] == ["x"]


def test_run_gives_results_then_the_outcome() -> None:
    """`run` yields each request's results and, after them, its one outcome."""
    requests = [Request("r1", ["a", "b"]), Request("r2", ["c"])]
    with Pipeline(pipeline_config(stage("split", "Split"))) as pipeline:
        events = list(pipeline.run(requests))
    of_r1 = [event for event in events if event.id == "r1"]
    assert [Result("r1", "split", [0], "a"), Result("r1", "split", [1], "b"), Outcome("r1", "finished", None)] == of_r1
    assert [Result("r2", "split", [0], "c"), Outcome("r2", "finished", None)] == [e for e in events if e.id == "r2"]


def test_not_started() -> None:
    """A pipeline that has not been started says how it is used, and starts only once."""
    pipeline = Pipeline(pipeline_config(stage("only")))
    with pytest.raises(RuntimeError, match="has not been started"):
        pipeline.submit("x")
    pipeline.close()
    with pipeline, pytest.raises(RuntimeError, match="starts once"):
        pipeline.start()


def test_closed() -> None:
    """A pipeline that is closed refuses requests and utility calls instead of waiting for ever."""
    with Pipeline(pipeline_config(stage("only"))) as pipeline:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.submit("x")
