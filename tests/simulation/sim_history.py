"""One random history: a pipeline, its users and its deaths, from a seed alone; and what must hold at its end."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from sim_engine import Fault
from sim_stage import SimulatedStage
from sim_supervisor import Supervisor, installed
from sim_users import Callers, Runner
from sim_watch import Life, Watch
from sim_wires import Kernel
from sim_world import World

from supervisor import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from sim_engine import Graph

LIMITS = ((None,), (None, 0.5), (1.0,))
STATUSES = (-9, -9, -11, 0, 7)
ERRORS = (ValueError, SystemExit, KeyboardInterrupt, BrokenPipeError)


@dataclass
class Verdict:
    """How a history went.

    Args:
        seed: its seed.
        broken: the promise that was broken, or None.
        events: how many there were.
        seen: what has occurred in it: outcomes, causes of deaths, answers.
        story: its trace.
    """

    seed: int
    broken: str | None
    events: int
    seen: set[str]
    story: str


def play(seed: int, *, with_story: bool = False) -> Verdict:
    """Play the history of a seed, and judge it; one that breaks a promise is played again for its story."""
    history = History(seed, tells_all=with_story)
    broken = None
    try:
        history.play()
    except BaseException as exc:
        own = history.world.broken
        broken = str(own) if own is not None else "".join(traceback.format_exception(exc))
        if own is None and isinstance(exc, KeyboardInterrupt):
            raise
    if broken is not None and not with_story:
        return play(seed, with_story=True)
    story = history.world.story() if with_story else ""
    return Verdict(seed, broken, history.world.events, history.seen(), story)


class History:
    """Make everything up, play it, judge it."""

    def __init__(self, seed: int, *, tells_all: bool) -> None:
        self.world = world = World(seed, tells_all=tells_all)
        self._kernel = Kernel()
        rng = world.rng
        graph = _graph(rng)
        self.watch = Watch(world, graph)
        limits = tuple(rng.choice(rng.choice(LIMITS)) for _ in graph)
        self.stages = [
            SimulatedStage(world, self._kernel, i, name, fault, watched=limit is not None, lingers=rng.random() < 0.05)
            for i, ((name, _, _), limit) in enumerate(zip(graph, limits, strict=True))
            for fault in [_fault(rng, may_hang=limit is not None)]
        ]
        config = _config(graph, limits, rng.choice((1, 2, 64)))
        with installed(world, self._kernel):
            self.supervisor = Supervisor(world, self._kernel, config, self.stages, self.watch)
        self.users = Callers(world, self.watch, self.supervisor.core, rng.randrange(2, 12))
        runs = rng.random() < 0.4
        self.runner = Runner(world, self.watch, self.supervisor.core, rng.randrange(1, 4)) if runs else None
        self._left = False
        self._phase = 0
        world.on_standstill = self._go_on
        self._plan_trouble(rng)

    def _plan_trouble(self, rng: Random) -> None:
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            self._plan(rng, 1, partial(rng.choice(self.stages).die, rng.choice(STATUSES)))
        if rng.random() < 0.3:
            # One death seldom comes alone: the others come while it is looked at.
            began = rng.randrange(100)
            for stage in rng.sample(self.stages, len(self.stages)):
                self.world.at_event(began + rng.randrange(20), partial(stage.die, rng.choice(STATUSES)))
        self._plan(rng, 0.1, partial(rng.choice(self.stages).lose_thread, rng.choice(("input", "output"))))
        self._plan(rng, 0.05, rng.choice(self.stages).get_foreign_signal)
        if rng.random() < 0.2:
            stop = rng.choice(self.stages).get_stopped
            for _ in range(4):  # it takes effect at a moment that suits it
                self._plan(rng, 1, stop)
        self._plan(rng, 0.08, self._ask_to_stop)
        self._plan(rng, 0.08, self._close)
        if self.runner is not None:
            self._plan(rng, 0.08, self._leave)

    def _plan(self, rng: Random, probability: float, act: Callable[[], object]) -> None:
        if rng.random() < probability:
            self.world.at_event(rng.randrange(120), act)

    def play(self) -> None:
        """Let the pipeline live from READY to its end."""
        with installed(self.world, self._kernel):
            self.supervisor.watch_stages()
            self._expect_nothing_accepted()
            self.watch.ending = True
            self.supervisor.core.close()
            # Readers may still be about to read.
            self.world.wait(lambda: self.runner is None or self.runner.is_over, self.world.now + 1)
            self._expect_nothing_accepted()
            self._judge()

    def seen(self) -> set[str]:
        """What has occurred."""
        requests = [life.request for life in self.watch.lives if life.request is not None]
        reports = self.supervisor.reporter.reports
        seen = {f"{request.outcome}" for request in requests}
        seen |= {"refused by a stage" for request in requests if request.outcome == "failed" and not request.report}
        seen |= {"results of a lost request" for life in self.watch.lives if life.results and _is_lost(life)}
        seen |= {f"death by {report.cause}" for report in reports}
        seen |= {"collateral death" for report in reports if report.collateral_of}
        seen |= {"answered call" for call, *_ in self.watch.calls if call.answer is not None}
        return seen | ({"run"} if self.runner is not None else set())

    def _go_on(self) -> bool:
        """What happens once the pipeline is at rest: the feeder ends, then somebody closes it."""
        self._phase += 1
        if self._phase == 1 and self.runner is not None:
            self.runner.finish_feeding()
        elif self._phase <= 2:
            self._phase = 2
            self._expect_at_rest()
            self._close()
        return self._phase <= 2

    def _close(self) -> None:
        self.world.note("user", "closes the pipeline")
        self.watch.ending = True
        self.supervisor.begin_close()

    def _ask_to_stop(self) -> None:
        self.world.note("user", "asks to stop")
        self.watch.ending = True
        self._kernel.eventfd_write(self.supervisor.stop_fd, 1)

    def _leave(self) -> None:
        if self.runner is not None:
            self._left = True
            self.runner.leave()

    def _expect_nothing_accepted(self) -> None:
        if self.supervisor.switchboard.refusal() is None:
            self.world.fail("requests are accepted after the end")
        self.users.submit()
        self.users.call()

    def _expect_at_rest(self) -> None:
        """See that no request waits, though nothing happens any more, and that no stage works for nobody."""
        world = self.world
        waiting = [life.user_id for life in self.watch.alive()]
        world.expect(not waiting, f"nothing happens any more, and {waiting} wait")
        for stage in self.stages:
            world.expect(not stage.engine.requests, f"{stage.label} still holds {list(stage.engine.requests)}")
            not_told = self.supervisor.switchboard.not_told(stage.stage, stage.engine.aborted)
            world.expect(not not_told, f"{stage.label} was never told to forget {not_told}")
        for watch in self.supervisor.switchboard.outbox.watches.values():
            told = f"{watch.proc.label} was sent {watch.sent} messages, and is said to have handled others"
            world.expect(watch.proc.read_box().handled == watch.sent, told)
        self.watch.expect_answers()

    def _judge(self) -> None:
        world, ledger = self.world, self.supervisor.switchboard._ledger
        for life in self.watch.lives:
            if life.request is not None:
                world.expect(life.ends == 1, f"{life.user_id} has {life.ends} outcomes")
        left = [*ledger.requests, *ledger._tasks, *self.supervisor.switchboard._calls._waiting]
        world.expect(not left, f"the supervisor still holds {left}")
        accepted = [life for life in self.watch.lives if life.request is not None]
        world.expect(self.supervisor.switchboard.done == len(accepted), "the requests that are done are miscounted")
        self.watch.expect_answers()
        self.users.expect_outcomes()
        if self.runner is not None:
            self.runner.expect_outcomes(left=self._left)
        self._judge_reports()

    def _judge_reports(self) -> None:
        """See that each death has one report, and that all but the first are laid to the first."""
        world, reports = self.world, self.supervisor.reporter.reports
        labels = [f"{report.stage}/{report.replica}" for report in reports]
        excused = {stage.label for stage in self.stages if stage.is_excused}
        owed = set(self.supervisor.manager.owed) - excused
        world.expect(not excused & set(labels), f"excused and reported: {excused & set(labels)}")
        in_order = {stage.label for stage in self.stages if stage.got_signal and stage.status == 0}
        world.expect(excused <= in_order, f"excused without reason: {excused - in_order}")
        world.expect(len(set(labels)) == len(labels), f"reported twice: {labels}")
        world.expect(owed <= set(labels), f"died without a report: {owed - set(labels)}")
        blamed = [report.collateral_of for report in reports]
        world.expect(blamed == [None, *labels[:1] * len(labels)][: len(labels)], f"{labels} are laid to {blamed}")
        world.expect(self.supervisor.switchboard.died is (reports[0] if reports else None), "`died` is another report")
        for report, label in zip(reports, labels, strict=True):
            stage = next(stage for stage in self.stages if stage.label == label)
            world.expect(stage.failed, f"{label} is reported, and was asked to end")
            world.expect(report.exit_code == stage.status, f"{label} ended with {stage.status}: {report}")
            recorded = None if stage.error is None else stage.error.cause
            cause = recorded or ("signal" if (stage.status or 0) < 0 else "exit")
            cause = "hung" if stage.was_convicted else cause
            world.expect(report.cause == cause, f"{label} died of {cause}, and the report says {report.cause}")


def _is_lost(life: Life) -> bool:
    return life.request is not None and life.request.report is not None


def _graph(rng: Random) -> Graph:
    """Up to four stages, each with any of those above it as its inputs."""
    names = ["a", "b", "c", "d"][: rng.choice((1, 1, 2, 2, 2, 3, 3, 4))]
    graph = []
    for i, name in enumerate(names):
        inputs = tuple(other for other in names[:i] if rng.random() < 0.5)
        if i and not inputs and rng.random() < 0.8:
            inputs = (names[i - 1],)
        graph.append((name, inputs, "each" if rng.random() < 0.6 else "final"))
    return tuple(graph)


@cache
def _config(graph: Graph, limits: tuple[float | None, ...], max_in_flight: int) -> PipelineConfig:
    stages = [
        {"name": name, "engine": "simulated:Engine", "inputs": list(inputs), "take": take}
        | ({} if limit is None else {"step_timeout_s": limit})
        for (name, inputs, take), limit in zip(graph, limits, strict=True)
    ]
    return PipelineConfig.from_dict({"stages": stages, "max_in_flight": max_in_flight})


def _fault(rng: Random, *, may_hang: bool) -> Fault | None:
    if rng.random() < 0.75:
        return None
    if may_hang and rng.random() < 0.5:
        return Fault(rng.choice(("add", "abort", "step")), rng.choice((1, 1, 2, 3)), None, None)
    point = rng.choice(("add", "add", "abort", "step", "step", "utility"))
    exits = point == "utility" or rng.random() < 0.3
    return Fault(point, rng.choice((1, 1, 2, 3)), rng.choice((0, 7)) if exits else None, rng.choice(ERRORS))
