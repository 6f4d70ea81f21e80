"""The soak: load and random kills, told in one table; here for a moment, elsewhere for as long as one likes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@contextmanager
def soaking(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A soak in a process of its own; it is there until the block ends, if it does not end by itself."""
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def table_of(output: str) -> dict[str, int]:
    """The figures of the table, by the words before them."""
    return {what.strip(): int(figure) for what, figure in re.findall(r"^(\S.*?)  +(\d+)", output, re.MULTILINE)}


def test_soak_for_a_moment() -> None:
    """Some pipelines are loaded, scaled and killed; nothing is lost or left, each death has its report."""
    with soaking("--seconds", "2.5", "--seed", "7") as process:
        output, told = process.communicate(timeout=HANG_S + 30)
    assert process.returncode == 0, told + output
    table = table_of(output)
    assert table["requests sent"] == sum(table[f"requests {end}"] for end in ("finished", "failed", "aborted"))
    assert table["requests finished"] > 0
    assert table["requests lost"] == 0
    assert table["deaths made"] > 0
    assert table["deaths made"] == table["reports"]
    assert table["deaths that a stage has survived"] > 0
    assert table["scale calls"] > 0
    leaks = {what: figure for what, figure in table.items() if what.startswith("leaks: ")}
    assert len(leaks) == 5
    assert set(leaks.values()) == {0}
    assert output.endswith("seed 7: every promise kept\n")


def test_soak_is_interrupted() -> None:
    """SIGINT ends a soak in order, with the table so far."""
    with soaking("--seconds", "600", "--seed", "8") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "soak: 600 s, seed 8\n"
        assert "life 1:" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, told = process.communicate(timeout=HANG_S + 30)
    assert process.returncode == 0, told + output
    assert table_of(output)["requests sent"] > 0
    assert output.endswith("seed 8: every promise kept\n")
