"""The supervisor and its stages, simulated: thousands of random histories, and bugs that they must find.

`SIMULATION_SEED=… python -m pytest tests/simulation` plays one history and prints its trace;
`SIMULATION_HISTORIES=…` sets how many are played otherwise.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sim_bugs import BUGS
from sim_history import Verdict, play
from sim_replica_bugs import REPLICA_BUGS

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SEED = 0
HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "10000"))
CHUNK = 1000
SEED = os.environ.get("SIMULATION_SEED")
CHUNKS = [range(i, min(i + CHUNK, FIRST_SEED + HISTORIES)) for i in range(FIRST_SEED, FIRST_SEED + HISTORIES, CHUNK)]
if SEED is not None:
    CHUNKS = [range(int(SEED), int(SEED) + 1)]
MUST_FIND_WITHIN = 10000
"""Histories until a seeded bug must have been found."""

SITUATIONS = {
    "finished",
    "aborted",
    "failed",
    "refused by a stage",
    "results of a lost request",
    "death by exit",
    "death by signal",
    "death by fatal",
    "death by io_thread",
    "death by hung",
    "collateral death",
    "death of a coordinator",
    "death that others go on after",
    "death of the last replica",
    "answered call",
    "run",
}

every_seed = pytest.mark.skipif(SEED is not None, reason="SIMULATION_SEED asks for one history alone")


def told(verdict: Verdict) -> str:
    """What a person needs to see of a history that breaks a promise."""
    return (
        f"seed {verdict.seed} breaks a promise: {verdict.broken}\n"
        f"replay it: SIMULATION_SEED={verdict.seed} python -m pytest tests/simulation\n"
        f"{verdict.story}"
    )


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"from {seeds.start}")
def test_histories(seeds: range, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens in whatever order, every promise is kept; and everything worth a test does happen."""
    seen: set[str] = set()
    for seed in seeds:
        verdict = play(seed, with_story=SEED is not None)
        if verdict.broken:
            pytest.fail(told(verdict), pytrace=False)
        seen |= verdict.seen
    if SEED is not None:
        with capsys.disabled():
            print(f"\n{verdict.story}\nseed {SEED} keeps every promise")  # noqa: T201 (asked for)
    assert seen == SITUATIONS or len(seeds) < CHUNK


@every_seed
@pytest.mark.parametrize("seed_bug", BUGS + REPLICA_BUGS, ids=lambda seed_bug: seed_bug.__name__)
def test_finds_a_seeded_bug(seed_bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the product is found soon, and told with its seed, how to replay it, and its trace."""
    seed_bug(monkeypatch)
    verdicts = (play(seed) for seed in range(FIRST_SEED, FIRST_SEED + MUST_FIND_WITHIN))
    found = next((verdict for verdict in verdicts if verdict.broken), None)
    assert found is not None
    print(f"{seed_bug.__name__}: found by history {found.seed - FIRST_SEED + 1}: {found.broken}")  # noqa: T201 (for -rP)
    assert f"SIMULATION_SEED={found.seed} python -m pytest" in told(found)
    assert " ms  " in found.story


def digest(first: int, count: int) -> str:
    """One number for everything that happens in some histories."""
    stories = "\n".join(play(seed, with_story=True).story for seed in range(first, first + count))
    return hashlib.sha256(stories.encode()).hexdigest()


@every_seed
def test_a_seed_always_gives_the_same_history() -> None:
    """A history depends on its seed alone, not on hashes or addresses or what was played before."""
    here = Path(__file__).parent
    root = here.parents[1]
    script = "import test_simulation; print(test_simulation.digest(0, 200))"
    environment = {**os.environ, "PYTHONPATH": f"{root}:{here}", "PYTHONHASHSEED": "7"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, cwd=root
    )
    assert digest(0, 200) == elsewhere.stdout.strip()
