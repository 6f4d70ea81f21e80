"""The check of engines' import paths, with real processes and engines that misbehave while they are imported."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from stage.engine_path import load_engine_class
from supervisor.cli.import_check import check_engines
from supervisor.config import PipelineConfig

HANG_S = 30.0
ENGINE = "class Engine:\n    def step(self): pass\n    has_work = add = abort = utility = step\n"


def open_fds() -> set[str]:
    return {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


class Check(Protocol):
    def __call__(
        self, *engines: str, timeout_s: float = ..., env: dict[str, str] | None = ..., **modules: str
    ) -> list[str]: ...


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Write modules into a config's directory, and check the engines of one stage each."""

    def check(*engines: str, timeout_s: float = HANG_S, env: dict[str, str] | None = None, **modules: str) -> list[str]:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        stages = [
            {"name": f"s{index}", "engine": engine, "env": env or {}, "inputs": []}
            for index, engine in enumerate(engines)
        ]
        before = open_fds()
        problems = check_engines(PipelineConfig.from_dict({"stages": stages}, base_dir=tmp_path), timeout_s)
        assert before == open_fds()
        return list(problems)

    return check


def wait_for_end(pid: int) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], HANG_S)[0])
    finally:
        os.close(pidfd)


def test_good_engines(check: Check) -> None:
    """Engines that can be imported give no problem, and are not imported here."""
    problems = check("good_engine:Engine", "stage.engines.countdown:Countdown", good_engine=ENGINE)

    assert problems == []
    assert "good_engine" not in sys.modules


def test_every_problem_is_told(check: Check, tmp_path: Path) -> None:
    """Each stage's problem is told with its key path, and what to do about it."""
    problems = check(
        "nowhere.at_all:Engine",
        "needy:Engine",
        "near:Engin",
        "near:nothing_like_it",
        "near:table",
        "raising:Engine",
        "broken:Engine",
        needy="import not_installed_package",
        near="class Engine: pass\ntable = {}",
        raising="raise RuntimeError('no GPU,\\n  sorry')",
        broken="def",
    )

    looked = f"looked in {tmp_path}, {Path.cwd()} and where Python finds its packages"
    expected = [
        "stages[0].engine: 'nowhere.at_all:Engine': ModuleNotFoundError: No module named 'nowhere'; " + looked,
        (
            "stages[1].engine: 'needy:Engine': ModuleNotFoundError: No module named 'not_installed_package'; "
            "needy needs it: install the package that has it"
        ),
        "stages[2].engine: 'near:Engin': AttributeError: module 'near' has no 'Engin', did you mean 'Engine'?",
        "stages[3].engine: 'near:nothing_like_it': AttributeError: module 'near' has no 'nothing_like_it'",
        "stages[4].engine: 'near:table': TypeError: 'near:table' is a value of type dict, wanted a class",
        "stages[5].engine: 'raising:Engine': RuntimeError: no GPU, sorry",
        "stages[6].engine: 'broken:Engine': SyntaxError: invalid syntax (broken.py, line 1)",
    ]
    assert expected == problems


def test_an_engine_without_its_methods(check: Check) -> None:
    """A class that cannot make an engine is told with what it lacks; one that may have its methods later is not."""
    problems = check(
        "lacking:Nothing",
        "lacking:NoStep",
        "lacking:make",
        "lacking:Proxy",
        "lacking:Assigned",
        "lacking:Derived",
        "lacking:Slots",
        "lacking:Other",
        "lacking:Data",
        lacking="""
import dataclasses
class Nothing: pass
class NoStep:
    def has_work(self): pass
    add = abort = utility = has_work
    step = None
def make(): pass
class Proxy:
    def __getattr__(self, name): pass
class Assigned(NoStep):
    def __init__(self): self.step = print
class Derived(Assigned):
    def __init__(self): super().__init__()
class Slots(NoStep):
    step = property(lambda self: print)
class Other:
    def __new__(cls): return Assigned()
@dataclasses.dataclass
class Data(NoStep):
    step: object
""",
    )

    expected = [
        "stages[0].engine: 'lacking:Nothing': the class lacks has_work, add, abort, step, utility (see stage.Engine)",
        "stages[1].engine: 'lacking:NoStep': the class lacks step (see stage.Engine)",
    ]
    assert expected == problems


def test_imports_that_end_their_process(check: Check) -> None:
    """An import that ends its process is told by how it ended, an orderly end included."""
    problems = check(
        "killed:Engine",
        "gone:Engine",
        "gone_well:Engine",
        "leaving:Engine",
        "nameless:Engine",
        killed="import os; os.kill(os.getpid(), 9)",
        nameless="import os; os.kill(os.getpid(), 40)",
        gone="import os; os._exit(3)",
        gone_well="import os; os._exit(0)",
        leaving="raise SystemExit(0)",
    )

    expected = [
        "stages[0].engine: 'killed:Engine': the import's process died of SIGKILL",
        "stages[1].engine: 'gone:Engine': the import ended its process with status 3",
        "stages[2].engine: 'gone_well:Engine': the import ended its process with status 0",
        "stages[3].engine: 'leaving:Engine': SystemExit: 0",
        "stages[4].engine: 'nameless:Engine': the import's process died of signal 40",
    ]
    assert expected == problems


def test_an_import_without_end(check: Check) -> None:
    """An import that takes too long is ended, and told with the knob."""
    problems = check("hanging:Engine", timeout_s=0.25, hanging="import threading; threading.Event().wait()")

    expected = (
        "stages[0].engine: 'hanging:Engine': the import took longer than 0.25 s; "
        "see what it waits for, or raise startup_timeout_s"
    )
    assert [expected] == problems


def test_the_environment_of_a_stage(check: Check) -> None:
    """The import sees the stage's variables, its name and no input, and may print without being heard."""
    source = """
import os, sys
print("noise")
os.write(1, b"noise")
assert sys.stdin.read() == ""
raise RuntimeError(" ".join(os.environ[name] for name in ("COLOUR", "STAGE_NAME", "STAGE_REPLICA", "STAGE_REPLICAS")))
class Engine: pass
"""
    problems = check("curious:Engine", env={"COLOUR": "red"}, curious=source)

    assert problems == ["stages[0].engine: 'curious:Engine': RuntimeError: red s0 0 1"]


def test_nothing_is_printed(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the check nor an engine writes to our standard streams."""
    check("loud:Engine", loud="import sys; print('out'); print('err', file=sys.stderr); raise RuntimeError")

    assert capfd.readouterr() == ("", "")


def test_threads_do_not_keep_the_process(check: Check) -> None:
    """A thread that an import started is not waited for."""
    source = f"""
import threading
threading.Thread(target=threading.Event().wait).start()
{ENGINE}
"""
    assert check("threaded:Engine", threaded=source) == []


def test_forks_report_once(check: Check) -> None:
    """A module that forks while it is imported is reported on by the first process alone."""
    source = f"""
import os
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
{ENGINE}
"""
    assert check("forking:Engine", forking=source) == []


@pytest.mark.parametrize("ending", ["", "\nraise RuntimeError", "\nimport os; os._exit(0)"])
def test_helpers_end_with_the_import(check: Check, tmp_path: Path, ending: str) -> None:
    """Processes that an import started are gone when the check is over."""
    source = f"""
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open({str(tmp_path / "pid")!r}, "w").write(str(helper.pid)){ending}
class Engine: pass
"""
    check("helped:Engine", helped=source)

    assert wait_for_end(int((tmp_path / "pid").read_text()))


def test_imports_end_with_the_supervisor(tmp_path: Path) -> None:
    """When the checking process is killed, the import that it waits for ends too."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "waiting.py").write_text(
        f"import os, signal\nwith open({str(fifo)!r}, 'w') as pipe:\n    pipe.write(str(os.getpid()))\nsignal.pause()\n"
    )
    script = f"""
from pathlib import Path
from supervisor.config import PipelineConfig
from supervisor.cli.import_check import check_engines
stages = [{{"name": "a", "engine": "waiting:Engine"}}]
check_engines(PipelineConfig.from_dict({{"stages": stages}}, base_dir=Path({str(tmp_path)!r})), {HANG_S})
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], env=env) as checker:
        pid = int(fifo.read_text())
        checker.send_signal(signal.SIGKILL)

    assert wait_for_end(pid)


def test_an_interrupted_check_leaves_nothing(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while the imports run ends them all."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    source = (
        f"import os, signal\nwith open({str(fifo)!r}, 'w') as pipe:\n    pipe.write(str(os.getpid()))\nsignal.pause()\n"
    )
    pids = []

    def interrupt(*_: object) -> None:
        pids.append(int(fifo.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr("supervisor.cli.import_check._wait_for_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check("waiting:Engine", waiting=source)

    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


class TestLoadEngineClass:
    def test_loads(self) -> None:
        """The class that a path names is what is returned."""
        assert load_engine_class("stage.engines.countdown:Countdown").__name__ == "Countdown"

    def test_no_module(self) -> None:
        """A module that is not there raises ImportError."""
        with pytest.raises(ImportError, match=r"No module named 'stage\.engines\.nothing'"):
            load_engine_class("stage.engines.nothing:Engine")

    def test_no_such_name(self) -> None:
        """A name that is not there raises AttributeError with the nearest one."""
        with pytest.raises(AttributeError, match="has no 'Countdow', did you mean 'Countdown'"):
            load_engine_class("stage.engines.countdown:Countdow")

    def test_not_callable(self) -> None:
        """A name for something else raises TypeError."""
        with pytest.raises(TypeError, match="'sys:path' is a value of type list, wanted a class"):
            load_engine_class("sys:path")
