"""Run load and random kills for a time, and end with a table of what became of it.

Each life of the pipeline is loaded by some clients and killed in one way at one moment, or closed under load; one stage
has replicas, grows and shrinks, and in half of the lives goes on after the death of a replica. Then nothing may be
left, and the next one begins. The status is 0 only if no request was lost, nothing was left behind, and each death has
its one report. SIGINT and SIGTERM end it in order, with the table so far.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import resource
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from soak_leaks import KINDS, MARK, Inventory
from soak_life import Life
from soak_log import Log
from soak_plan import GROUP, ON_DEATH, REPLICAS, make_plan

from supervisor import Pipeline, PipelineConfig

PROGRESS_S = 5.0
SHOWN_NOTES = 30
HANG_S = 180.0
"""How long after its time a run that hangs is given up, with the stack of each thread."""

ZERO = (
    "lost",
    "calls unanswered",
    "scale calls unanswered",
    "wrong answers",
    "wrong reports",
    "faults of the supervisor",
    *KINDS,
)
HERE = Path(__file__).parent
ENGINE = "soak_engine:Piecework"
BALANCE = {"stop": "sticky", "degrade": "least_loaded"}


class Row(NamedTuple):
    """A line of the table."""

    what: str
    figure: int
    must_be: int | None = None


def main() -> int:
    """Run, print the table, and say whether all promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on starting pipelines")
    parser.add_argument("--seed", type=int, default=None, help="repeats the plan of an earlier run")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    faulthandler.dump_traceback_later(arguments.seconds + HANG_S, exit=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ[MARK] = secrets.token_hex(8)
    # Short, whatever TMPDIR says: the path of a unix socket ends at 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    tempfile.tempdir = str(directory)
    try:
        soak = Soak(arguments.seconds, seed, directory)
        soak.run()
    finally:
        shutil.rmtree(directory)
    return soak.print_table()


class Soak:
    """All lives, one after the other.

    Args:
        seconds: when to begin no further one.
        seed: what happens depends on it, and on the machine.
        directory: temporary, and nobody else's.
    """

    def __init__(self, seconds: float, seed: int, directory: Path) -> None:
        self._seconds, self._seed, self._directory = seconds, seed, directory
        self._counts: Counter[str] = Counter()
        self._notes = 0
        self._lives = 0
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._log = Log()
        logger = logging.getLogger("supervisor")
        logger.addHandler(self._log)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: os.eventfd_write(self._stop_fd, 1))

    def run(self) -> None:
        """Live until the time is over or the user asks to stop."""
        configs = {on_death: _make_config(on_death) for on_death in ON_DEATH}
        print(f"soak: {self._seconds:g} s, seed {self._seed}", file=sys.stderr, flush=True)
        _warm_up(configs[ON_DEATH[0]])
        inventory = Inventory(self._directory)
        until = time.monotonic() + self._seconds
        progress_at = 0.0
        while time.monotonic() < until and not self._wait(0):
            self._live(configs, inventory)
            if time.monotonic() > progress_at:
                progress_at = time.monotonic() + PROGRESS_S
                self._tell_progress(until - time.monotonic())

    def _live(self, configs: dict[str, PipelineConfig], inventory: Inventory) -> None:
        # Not for secrets: the same seed gives the same plan.
        rng = random.Random(f"{self._seed}/{self._lives}")  # noqa: S311
        plan = make_plan(rng)
        life = Life(configs[plan.on_death], plan, rng, self._log, self._wait)
        self._lives += 1
        life.run()
        account = life.account
        kept, reports = inventory.remove_logs(), account.counts["reports"]
        if kept != (reports > 0):
            account.notes.append(f"{kept} directories of logs were kept after {reports} reports")
        for kind, name in inventory.leaks():
            account.counts[kind] += 1
            account.notes.append(f"left behind: {kind}: {name}")
        account.counts["faults of the supervisor"] += len(self._log.faults)
        account.notes += self._log.faults
        self._log.faults.clear()
        self._counts += account.counts
        for note in account.notes:
            self._tell_note(f"life {self._lives} ({plan}): {note}")

    def _wait(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._stop_fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def _tell_progress(self, left_s: float) -> None:
        counts = self._counts
        told = ", ".join(f"{counts[what]} {what}" for what in ("sent", "finished", "lost", "deaths", "reports"))
        print(f"soak: {max(left_s, 0):.0f} s left, life {self._lives}: {told}", file=sys.stderr, flush=True)

    def _tell_note(self, note: str) -> None:
        self._notes += 1
        if self._notes <= SHOWN_NOTES:
            print(f"soak: {note}", file=sys.stderr, flush=True)

    def print_table(self) -> int:
        """Print what became of it all; 0 if every figure that must have a value has it."""
        counts = self._counts
        rows = [
            Row("requests sent", counts["sent"], sum(counts[end] for end in ("finished", "failed", "aborted"))),
            *(Row(f"requests {end}", counts[end]) for end in ("finished", "failed", "aborted")),
            Row("requests lost", counts["lost"], 0),
            Row("utility calls", counts["called"]),
            Row("scale calls", counts["scaled"]),
            Row("deaths made", counts["deaths"]),
            Row("reports", counts["reports"], counts["deaths"]),
            Row("deaths that a stage has survived", counts["survived"]),
            Row("restarts of the pipeline", max(self._lives - 1, 0)),
            *(Row(what, counts[what], 0) for what in ZERO if what not in {"lost", *KINDS}),
            *(Row(f"leaks: {kind}", counts[kind], 0) for kind in KINDS),
        ]
        width = max(len(row.what) for row in rows)
        for row in rows:
            verdict = "" if row.must_be is None else f"  must be {row.must_be}: {_verdict(row)}"
            print(f"{row.what:{width}}  {row.figure:>8}{verdict}")
        broken = sum(row.must_be not in {None, row.figure} for row in rows)
        print(f"seed {self._seed}: " + (f"{broken} promises broken" if broken else "every promise kept"))
        return int(broken > 0 or self._notes > 0)


def _verdict(row: Row) -> str:
    return "yes" if row.must_be == row.figure else "NO"


def _make_config(on_death: str) -> PipelineConfig:
    group = {"replicas": REPLICAS, "on_death": on_death, "max_in_flight": 8, "balance": BALANCE[on_death]}
    stages = [
        {"name": "split", "engine": ENGINE, "args": {"step_ms": 0.5, "helper": True}},
        {"name": GROUP, "engine": ENGINE, "args": {"helper": True}, **group},
        {"name": "last", "engine": ENGINE, "args": {"helper": True}, "inputs": ["split"], "take": "final"},
    ]
    raw = {"name": "soak", "max_in_flight": 24, "shutdown_timeout_s": 5, "startup_timeout_s": 30, "stages": stages}
    return PipelineConfig.from_dict(raw, HERE)


def _warm_up(config: PipelineConfig) -> None:
    """Start what lives as long as the program: the resource tracker, and zmq's thread that frees large frames."""
    with Pipeline(config) as pipeline:
        pipeline.submit({"trail": [], "pieces": 1, "pad": bytes(1 << 20)}).result(30)


if __name__ == "__main__":
    sys.exit(main())
