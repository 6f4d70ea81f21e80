"""The counter of the out-of-memory killer is found wherever the kernel shows it, and is never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.oom import OomCounter

if TYPE_CHECKING:
    from pathlib import Path

V2 = "low 0\nhigh 0\nmax 7\noom 3\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"

# What /proc/PID/cgroup says, and where the counter of that process is.
LAYOUTS = {
    "v2": ("0::/user.slice/run.scope", "sys/fs/cgroup/user.slice/run.scope/memory.events", V2),
    "v2, in a container with a namespace": ("0::/", "sys/fs/cgroup/memory.events", V2),
    "v2, in a container that sees the host's path": ("0::/docker/abc", "sys/fs/cgroup/memory.events", V2),
    "v2, a path with colons": ("0::/a:b/c", "sys/fs/cgroup/a:b/c/memory.events", V2),
    "v1": ("4:memory:/a/b\n3:cpu,cpuacct:/", "sys/fs/cgroup/memory/a/b/memory.oom_control", V1),
    "v1, in a container": ("4:memory:/docker/abc", "sys/fs/cgroup/memory/memory.oom_control", V1),
    "v1, with others": ("4:cpuset,memory:/a", "sys/fs/cgroup/memory/a/memory.oom_control", V1),
    "hybrid": ("4:memory:/a\n0::/b", "sys/fs/cgroup/memory/a/memory.oom_control", V1),
}


def lay_out(root: Path, cgroup: str, file: str, text: str) -> Path:
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(cgroup + "\n")
    counter = root / file
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(text.format(2))
    return counter


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_from_the_start(tmp_path: Path, layout: str) -> None:
    """Only what was killed since the process began counts."""
    cgroup, file, text = LAYOUTS[layout]
    counter = lay_out(tmp_path, cgroup, file, text)
    oom = OomCounter(7, tmp_path)
    assert oom.kills() == 0
    counter.write_text(text.format(3))
    assert oom.kills() == 1


@pytest.mark.parametrize("text", ["", "oom 3\n", "oom_kill many\n", "oom_kill\n"])
def test_nothing_tells(tmp_path: Path, text: str) -> None:
    """A file without a counter, as old kernels have it, is no evidence of anything."""
    lay_out(tmp_path, *LAYOUTS["v2"][:2], text)
    assert OomCounter(7, tmp_path).kills() is None


def test_counter_goes_away(tmp_path: Path) -> None:
    """A cgroup that is removed meanwhile tells nothing any more."""
    counter = lay_out(tmp_path, *LAYOUTS["v1"])
    oom = OomCounter(7, tmp_path)
    counter.unlink()
    assert oom.kills() is None


def test_no_cgroup(tmp_path: Path) -> None:
    """Neither a process that is gone nor a system without cgroups is evidence of anything."""
    assert OomCounter(7, tmp_path).kills() is None
    lay_out(tmp_path, "0::/", "elsewhere", "")
    assert OomCounter(7, tmp_path).kills() is None
