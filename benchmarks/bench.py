"""Compare a pipeline with what the standard library offers, and print one table of ratios.

Everything is pinned to one core, ours and the baselines take turns, and the figures are medians over the rounds: what
else the machine does then meets both halves of a ratio alike. Only the replicas of a stage are compared first, on every
core there is, since more cores are what they are for.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import zmq
from resting import measure_rest
from speed import WINDOW, compare_messages, compare_replicas, compare_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from resting import Rest
    from speed import Compared

LIMIT_S = 110
"""When a run is given up."""

LAST_LIMIT_S = 8
"""How long the children's end may take then."""


class Row(NamedTuple):
    """A line of the table, as text."""

    what: str
    ours: str
    baseline: str
    ratio: str
    target: str
    ok: str


HEADINGS = Row("what", "ours", "baseline", "ratio", "target", "ok?")


def main() -> int:
    """Measure and print; the status is 1 if a target is missed under `--strict`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and a shorter rest: a look, not a figure")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is missed")
    arguments = parser.parse_args()
    rounds, rest_s = (3, 2.0) if arguments.quick else (20, 10.0)
    _bound_run()
    cpus = os.sched_getaffinity(0)
    replicas = compare_replicas(rounds)
    cpu = max(cpus)
    os.sched_setaffinity(0, {cpu})
    rows = [HEADINGS, *_compare(rounds), _replicas_row(replicas, len(cpus)), *_rest(rest_s)]
    print(
        f"pinned to core {cpu} of {os.cpu_count()}, replicas to none, {platform.machine()}, Linux {platform.release()},"
        f" Python {platform.python_version()}, pyzmq {zmq.__version__} (libzmq {zmq.zmq_version()}), {rounds} rounds"
    )
    _print_table(rows)
    missed = sum(row.ok == "MISSED" for row in rows)
    print(f"{missed} of {sum(row.target != '-' for row in rows[1:])} targets missed")
    return int(arguments.strict and missed > 0)


def _compare(rounds: int) -> Iterator[Row]:
    messages = compare_messages(rounds)
    trip = "round trip of 100 bytes, one stage: "
    yield _time_row(trip + "multiprocessing.Queue pair", messages["trip, queues"], 2.0)
    yield _time_row(trip + "ProcessPoolExecutor(1)", messages["trip, pool"], 0.7)
    yield _flow_row(
        f"messages a second, {WINDOW:,} in flight: multiprocessing.Queue pair", messages["flow, queues"], 1.5
    )
    yield _time_row("start and stop, two stages: two bare processes, same imports", compare_start(rounds), 1.5)


def _rest(rest_s: float) -> Iterator[Row]:
    for name, rest in measure_rest(rest_s).items():
        yield from _rest_rows(name if name == "supervisor" else f"stage {name}", rest, rest_s)


def _time_row(what: str, compared: Compared, at_most: float) -> Row:
    ours, baseline, ratio = compared
    return Row(what, _time(ours), _time(baseline), f"{ratio:.2f}", f"<= {at_most}", _verdict(ratio <= at_most))


def _flow_row(what: str, compared: Compared, at_least: float) -> Row:
    ours, baseline, ratio = compared
    return Row(what, _rate(ours), _rate(baseline), f"{ratio:.2f}", f">= {at_least}", _verdict(ratio >= at_least))


def _replicas_row(compared: Compared, cores: int) -> Row:
    row = _flow_row("requests a second of some ms of Python: two replicas against one", compared, 1.5)
    return row if cores > 1 else row._replace(target="-", ok="-")  # two processes share the one core


def _rest_rows(who: str, rest: Rest, rest_s: float) -> Iterator[Row]:
    idle = f"idle for {rest_s:.0f} s, {who}: "
    yield Row(idle + "CPU", f"{rest.cpu_ms:.2f} ms", "-", "-", "< 1 ms", _verdict(rest.cpu_ms < 1))
    yield Row(idle + "context switches", f"{rest.switches}", "-", "-", "<= 5", _verdict(rest.switches <= 5))
    yield Row(idle + "RSS", f"{rest.rss_mb:.0f} MB", "-", "-", "< 60 MB", _verdict(rest.rss_mb < 60))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 0.001 else f"{seconds * 1000:.0f} ms"


def _rate(per_s: float) -> str:
    return f"{per_s / 1000:.0f} k" if per_s >= 10_000 else f"{per_s:.0f}"


def _verdict(met: bool) -> str:
    return "yes" if met else "MISSED"


def _print_table(rows: list[Row]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        what, *figures = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([what, *figures]))


def _bound_run() -> None:
    """Let SIGTERM, or an alarm, end the run by an exception, so that every child is ended on the way out."""

    def give_up(signum: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LAST_LIMIT_S)
        raise SystemExit(f"given up: {signal.Signals(signum).name} (a run may take {LIMIT_S} s)")

    for signum in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(signum, give_up)
    signal.alarm(LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
