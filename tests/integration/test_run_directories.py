"""Run directories of supervisors that are no more are removed at the next start, and no others."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from harness import HANG_S, Events, data_of, fault, pid_of, pipeline_config, stage, until, watching
from scripts import Script, run_directory_stays

from supervisor import Pipeline, StartupError
from supervisor.leftovers import sweep
from supervisor.run_dir import LIFELINE, RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPEN = "pipeline = Pipeline(gate())\npipeline.start()\nready(pipeline)\n"


def here() -> Path:
    return Path(tempfile.gettempdir())


def directories() -> list[Path]:
    return sorted(here().glob("stages-*"))


def is_abandoned(path: Path) -> bool:
    """True once the dead supervisor's guardian has let go of the directory as well."""
    fd = os.open(path / LIFELINE, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return not os.read(fd, 1)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def look_dead(path: Path) -> Path:
    """Lay out a run directory of a supervisor that is no more."""
    path.mkdir()
    os.mkfifo(path / LIFELINE)
    (path / "asr-0.log").touch()
    return path


def test_after_sigkill(script: Callable[[str], Script], events: Events) -> None:
    """The directory that a killed supervisor has left is removed by the next start, which says so."""
    running = script(OPEN + "threading.Event().wait()\n")
    with watching(*running.pids()) as wait_gone:
        running.process.kill()
        wait_gone()
    (left,) = directories()
    until(lambda: is_abandoned(left), "nobody holds it")
    with Pipeline(pipeline_config(stage("echo"))) as pipeline:
        assert [str(left)] == [event["path"] for event in events.of("run_directory_swept")]
        assert left not in directories()
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_living_supervisors(script: Callable[[str], Script], events: Events, how: str) -> None:
    """The directory of a supervisor that lives stays, and its stages live, also while it is stopped."""
    running = script(
        # Waited for, not handled: the kernel may give it to a thread that does not wake the main one.
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n" + OPEN + "signal.sigwait({signal.SIGUSR1})\n"
        "pipeline.utility('gate', 'open', (1,))\n"
        "print(data_of(pipeline.submit(['x']).result(HANG_S)))\npipeline.close()\n"
    )
    running.pids()
    if how == "stopped":
        running.process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(running.process.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    before = directories()
    with Pipeline(pipeline_config(stage("echo"))):
        assert set(before) < set(directories())
    running.process.send_signal(signal.SIGCONT)
    running.process.send_signal(signal.SIGUSR1)
    assert running.end() == (0, "['x']\n")
    assert (len(before), events.of("run_directory_swept")) == (1, [])


def test_kept_logs_stay(events: Events) -> None:
    """Logs that were kept after a death outlive the next start."""
    with Pipeline(pipeline_config(stage("echo"))) as pipeline:
        os.kill(pid_of(pipeline, "echo"), signal.SIGKILL)
        events.wait("stage_died")
    (kept,) = directories()
    with Pipeline(pipeline_config(stage("echo"))):
        pass
    assert [path.name for path in kept.iterdir()] == ["echo-0.log"]
    assert events.of("run_directory_swept") == []


def test_kept_logs_stay_while_they_are_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment of its end does a directory whose logs are kept look like one that nobody holds."""
    run_dir = RunDir()
    run_dir.log("asr", 0).write_text("the last words")
    real_close = os.close

    def close_and_sweep(fd: int) -> None:
        real_close(fd)
        monkeypatch.setattr(os, "close", real_close)
        sweep(here())  # as another supervisor may do at this very moment

    monkeypatch.setattr(os, "close", close_and_sweep)
    run_dir.remove(keep_logs=True)
    assert [path.name for path in run_dir.path.iterdir()] == ["asr-0.log"]
    shutil.rmtree(run_dir.path)


def test_kept_logs_beside_what_an_engine_has_left() -> None:
    """A directory that an engine made in the run directory goes, and the logs stay, also at the next start."""
    run_dir = RunDir()
    run_dir.log("asr", 0).write_text("the last words")
    for name in ("a", "z"):
        (run_dir.path / name / "deep").mkdir(parents=True)
    run_dir.remove(keep_logs=True)
    sweep(here())
    assert [path.name for path in run_dir.path.iterdir()] == ["asr-0.log"]
    shutil.rmtree(run_dir.path)


def test_many_at_once(events: Events) -> None:
    """All that are dead go at once, and what lives or is none of ours stays."""
    dead = [look_dead(here() / f"stages-{number}-x") for number in range(3)]
    living = RunDir()
    (here() / "stages-file").touch()
    (here() / "stages-empty").mkdir()
    (here() / "stages-other").mkdir()
    (here() / "stages-other" / LIFELINE).touch()
    sweep(here())
    assert {str(path) for path in dead} == {event["path"] for event in events.of("run_directory_swept")}
    assert [here() / "stages-empty", here() / "stages-file", here() / "stages-other"] == [
        path for path in directories() if path != living.path
    ]
    assert living.path.is_dir()
    living.remove(keep_logs=False)
    for path in directories():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_symlinks_are_left_alone(events: Events) -> None:
    """A link that looks like a dead directory is not followed, neither itself nor as a lifeline."""
    elsewhere = look_dead(here() / "elsewhere")
    (here() / "stages-1-link").symlink_to(elsewhere)
    (here() / "stages-2-inside").mkdir()
    (here() / "stages-2-inside" / LIFELINE).symlink_to(elsewhere / LIFELINE)
    sweep(here())
    assert (len(directories()), (elsewhere / "asr-0.log").exists()) == (2, True)
    assert events.of("run_directory_swept") == []
    (here() / "stages-1-link").unlink()
    shutil.rmtree(here() / "stages-2-inside")
    shutil.rmtree(elsewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_other_users_are_left_alone() -> None:
    """A dead directory of another user is that user's business."""
    other = look_dead(here() / "stages-1-other")
    os.chown(other, 65534, 65534)
    sweep(here())
    assert other.is_dir()
    shutil.rmtree(other)


def test_copies_of_the_dead(script: Callable[[str], Script], events: Events) -> None:
    """A forked copy of a supervisor that has died does not keep the directory in use, and is left alone itself."""
    running = script(
        OPEN + "if os.fork() == 0:\n    announce(FIFO, str(os.getpid()))\n    threading.Event().wait()\n"
        "threading.Event().wait()\n"
    )
    pids, (copy,) = running.pids(), running.pids()
    with watching(*pids) as wait_gone, watching(copy) as wait_copy_gone:
        running.process.kill()
        wait_gone()
        until(lambda: is_abandoned(directories()[0]), "nobody holds it")
        with Pipeline(pipeline_config(stage("echo"))):
            assert len(events.of("run_directory_swept")) == 1
        assert psutil.Process(copy).status() == psutil.STATUS_SLEEPING
        os.kill(copy, signal.SIGKILL)
        wait_copy_gone()


def test_private() -> None:
    """A run directory is for its owner alone, and so are a failed start's logs."""
    with Pipeline(pipeline_config(stage("echo"))):
        (path,) = directories()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        sockets = [entry for entry in path.iterdir() if entry.is_socket()]
        assert sorted(socket.name for socket in sockets) == ["handshake.sock", "input.sock", "output-0-0.sock"]
    with pytest.raises(StartupError):
        Pipeline(pipeline_config(fault("init", "raise"))).start()
    (path,) = directories()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Modes must not depend on the caller's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("script")
def test_nothing_left_behind_needs_no_sweep(events: Events) -> None:
    """A pipeline that ends in order leaves nothing that a sweep would find."""
    with run_directory_stays(), Pipeline(pipeline_config(stage("echo"))):
        pass
    assert directories() == []
    sweep(here())
    assert events.of("run_directory_swept") == []
