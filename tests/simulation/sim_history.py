"""One random history: a pipeline, its users and its deaths, from a seed alone; and what must hold at its end."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from sim_engine import Fault
from sim_judge import Judge
from sim_process import SimulatedCoordinator
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
    from sim_process import SimulatedProcess

    from supervisor.report import StageDeathReport

LIMITS = (None, None, None, 0.5, 1.0, 1.0)
REPLICAS = (1, 2, 2, 3)
OPTIONS_OF_GROUPS: dict[str, tuple[Any, ...]] = {
    "balance": (None, None, "round_robin", "sticky", "sticky"),
    "on_death": (None, "degrade", "degrade", "degrade"),
    "max_in_flight": (None, None, 1, 1, 2),
}
"""None stands for the default."""

Settings = tuple[tuple[str, Any], ...]
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
        self._alone = rng.random() < 0.7
        """No stage has several replicas."""
        self.watch = Watch(world, graph)
        config = _config(graph, tuple(_settings(rng, alone=self._alone) for _ in graph), rng.choice((1, 2, 64)))
        self._replicas = [
            SimulatedStage(world, self._kernel, stage, replica, fault, lingers=rng.random() < 0.05)
            for stage in config.stages
            for replica in range(stage.replicas)
            for fault in [_fault(rng, may_hang=stage.step_timeout_s is not None)]
        ]
        self._procs: list[SimulatedProcess] = [*self._replicas]
        for stage in config.stages:
            if stage.replicas > 1:
                self._procs.append(SimulatedCoordinator(world, self._kernel, stage.name, stage.replicas))
        with installed(world, self._kernel):
            self.supervisor = Supervisor(world, self._kernel, config, self._procs, self.watch)
        self._judge = Judge(self.watch, self.supervisor, self._procs)
        labels = [replica.label for replica in self._replicas]
        self.users = Callers(world, self.watch, self.supervisor.core, labels, rng.randrange(2, 12))
        runs = rng.random() < 0.4
        self.runner = Runner(world, self.watch, self.supervisor.core, rng.randrange(1, 4)) if runs else None
        self._left = False
        self._phase = 0
        world.on_standstill = self._go_on
        self._plan_trouble(rng)

    def _plan_trouble(self, rng: Random) -> None:
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            self._plan(rng, 1, partial(rng.choice(self._procs).die, rng.choice(STATUSES)))
        if rng.random() < (0.3 if self._alone else 0.5):
            # One death seldom comes alone: the others come while it is looked at.
            began, within = rng.randrange(100), rng.choice((4, 20))
            mortal = self._procs
            if rng.random() < 0.5:  # each stage keeps a replica
                mortal = [proc for proc in self._procs if proc.replica] or self._procs
            for proc in rng.sample(mortal, len(mortal)):
                self.world.at_event(began + rng.randrange(within), partial(proc.die, rng.choice(STATUSES)))
            if rng.random() < 0.4:
                self.world.at_event(began + rng.randrange(within + 10), self._close)
        self._plan(rng, 0.1, partial(rng.choice(self._replicas).lose_thread, rng.choice(("input", "output"))))
        self._plan(rng, 0.05, rng.choice(self._replicas).get_foreign_signal)
        if rng.random() < 0.3:
            stop = rng.choice(self._replicas).get_stopped
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
            self._judge.expect_all_over()
            self.users.expect_outcomes()
            if self.runner is not None:
                self.runner.expect_outcomes(left=self._left)
            self._judge.expect_reports()

    def seen(self) -> set[str]:
        """What has occurred."""
        requests = [life.request for life in self.watch.lives if life.request is not None]
        reports = self.supervisor.reporter.reports
        seen = {f"{request.outcome}" for request in requests}
        seen |= {"refused by a stage" for request in requests if request.outcome == "failed" and not request.report}
        seen |= {"results of a lost request" for life in self.watch.lives if life.results and _is_lost(life)}
        seen |= {f"death by {report.cause}" for report in reports}
        seen |= {"collateral death" for report in reports if report.collateral_of}
        seen |= {"death of a coordinator" for report in reports if report.role == "coordinator"}
        parted = self.supervisor.switchboard.parted
        seen |= {"death that others go on after" for report in parted.values() if report.requests_lost}
        seen |= {"death of the last replica" for report in reports if _is_last(report, parted)}
        seen |= {"answered call" for call, *_ in self.watch.calls if call.answer is not None}
        return seen | ({"run"} if self.runner is not None else set())

    def _go_on(self) -> bool:
        """What happens once the pipeline is at rest: the feeder ends, then somebody closes it."""
        self._phase += 1
        if self._phase == 1 and self.runner is not None:
            self.runner.finish_feeding()
        elif self._phase <= 2:
            self._phase = 2
            self._judge.expect_at_rest()
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


def _is_last(report: StageDeathReport, parted: dict[str, StageDeathReport]) -> bool:
    others = [other for other in parted.values() if other is not report and other.stage == report.stage]
    return bool(others) and report not in parted.values() and not report.collateral_of


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


def _settings(rng: Random, *, alone: bool) -> Settings:
    """How a stage runs, as its config says it where that is not the default."""
    replicas = 1 if alone else rng.choice(REPLICAS)
    options: dict[str, Any] = {"replicas": replicas, "step_timeout_s": rng.choice(LIMITS)}
    if not alone:
        options |= {key: rng.choice(values) for key, values in OPTIONS_OF_GROUPS.items()}
    return tuple((key, value) for key, value in options.items() if value is not None)


@cache
def _config(graph: Graph, settings: tuple[Settings, ...], max_in_flight: int) -> PipelineConfig:
    stages = [
        {"name": name, "engine": "simulated:Engine", "inputs": list(inputs), "take": take} | dict(options)
        for (name, inputs, take), options in zip(graph, settings, strict=True)
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
