"""The loads that a coordinator passes on: on a clock, however much it hears, and not at all while nothing changes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from harness import ended, in_thread, pipeline_config, stage, until
from traffic import Traffic

from stage.group import LOADS_EVERY_S
from stage.group_protocol import Load, group_encoder
from supervisor import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    Loads = dict[int, tuple[int, int]]

ENOUGH = 5
AT_REST_S = 0.3


def listen(pipeline: Pipeline, patch: pytest.MonkeyPatch) -> list[Loads]:
    """The loads that the supervisor takes from now on, as they come."""
    taken: list[Loads] = []
    ledger = pipeline._core.switchboard._ledger
    take = ledger.take_loads

    def note(stage: str, loads: Loads) -> None:
        taken.append(loads)
        take(stage, loads)

    patch.setattr(ledger, "take_loads", note)
    return taken


@contextmanager
def on_a_clock(taken: list[Loads]) -> Iterator[None]:
    """See that enough loads come of what begins in the block, and not more of them than so much time allows."""
    began = time.monotonic()
    yield
    until(lambda: len(taken) >= ENOUGH, "loads come")
    count, elapsed_s = len(taken), time.monotonic() - began
    assert count <= elapsed_s / LOADS_EVERY_S + 1


def switches(pid: int) -> int:
    """Context switches of all threads of a process."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    )


def test_requests_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load the loads come on a clock; when the group idles, the last ones tell of it, and no more come."""
    with Pipeline(pipeline_config(stage("who", "engines_for_groups:WhoAmI", replicas=2))) as pipeline:
        taken = listen(pipeline, monkeypatch)
        with on_a_clock(taken):
            traffic = Traffic(pipeline)
        traffic.end()
        pids = [info.pid for info in pipeline.processes]

        def is_silent() -> bool:
            before = [*map(switches, pids)], len(taken)
            threading.Event().wait(AT_REST_S)
            return before == ([*map(switches, pids)], len(taken))

        until(is_silent, "nobody says anything")
        assert taken[-1] == {0: (0, 0), 1: (0, 0)}


def test_coordinator_that_hears_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that keep coming neither put the clock off nor make it go faster, and the last one is told."""
    with Pipeline(pipeline_config(stage("who", "engines_for_groups:WhoAmI", replicas=2))) as pipeline:
        taken = listen(pipeline, monkeypatch)
        address = pipeline._core.scaling._transport.groups["who"].collect
        over = threading.Event()
        sent: list[int] = []

        def chatter() -> None:
            with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
                socket.connect(address)
                while not over.wait(0.0005):
                    for _ in range(20):
                        sent.append(len(sent) + 1)
                        socket.send(group_encoder.encode(Load(1, 0, sent[-1])))

        with on_a_clock(taken):
            chatterer = in_thread(chatter)
        over.set()
        assert ended(chatterer)
        until(lambda: taken[-1] == {0: (0, 0), 1: (0, sent[-1])}, "the last one is told")
