"""Faults that stages are told to act out, to show what a death looks like."""

from __future__ import annotations

import pytest
from harness import HANG_S, Events, pipeline_config, stage

from stage.protocol import Injection
from supervisor import Pipeline, RequestFailedError


@pytest.mark.parametrize(
    ("action", "cause", "signal_name"),
    [
        ("sigkill", "signal", "SIGKILL"),
        ("segv", "signal", "SIGSEGV"),
        ("exit0", "exit", None),
        ("sigterm", "exit", None),
        ("raise", "fatal", None),
    ],
)
@pytest.mark.parametrize("when", [Injection("", step=2), Injection("", after_s=0.05)])
def test_injected_fault(events: Events, when: Injection, action: str, cause: str, signal_name: str | None) -> None:
    """A fault that a stage was told to act out gives the same report as a real one."""
    injection = Injection(action, when.after_s, when.step)
    with Pipeline(pipeline_config(stage("split", "Split")), injections={"split/0": injection}) as pipeline:
        if when.step is not None:
            with pytest.raises(RequestFailedError):
                pipeline.submit(["a", "b", "c"]).result(HANG_S)
        events.wait("stage_died")
        report = pipeline.died
    assert report is not None
    assert (cause, signal_name) == (report.cause, report.signal)
    if when.step is not None:
        assert report.steps == 2
