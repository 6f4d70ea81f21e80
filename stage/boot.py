"""What every process of ours does first and last, whether it is a replica of a stage or a coordinator.

The watch on the supervisor and the signal handlers come first, before anything that takes time.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zmq

from stage.black_box import BlackBox
from stage.handshake import BootStopped
from stage.names import MARK, fit_name, label_of, name_thread
from stage.parent_watch import die_with
from stage.sockets import batch_scheduling
from stage.stacks import offer_stacks
from stage.stop_signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.sockets import Context

CLOSE_S = 2.0
"""How long the last messages may take to leave."""


class Boot(NamedTuple):
    """What `Process.start` pickles: small, since a child that dies early must not block its parent.

    Args:
        stage: the stage's name.
        replica: its number, from 0; None for the coordinator of the stage.
        parent_pid: the supervisor's pid.
        handshake_address: endpoint for HELLO.
        lifeline: path of the pipe that the supervisor holds open for writing as long as it lives.
        black_box: path of the black box.
        log: path of the file that takes standard output and standard error.
        stacks: path of the file that takes stack dumps.
    """

    stage: str
    replica: int | None
    parent_pid: int
    handshake_address: str
    lifeline: str
    black_box: str
    log: str
    stacks: str

    @property
    def label(self) -> str:
        """`stage/replica`, or `stage/coordinator`."""
        return label_of(self.stage, self.replica)

    @property
    def process_name(self) -> str:
        """What a person sees of the process."""
        if self.replica is None:
            return fit_name(f"coordinator:{self.stage}", "")
        return fit_name(f"stage:{self.stage}", f"/{self.replica}")


class Running(NamedTuple):
    """What every process has while it runs.

    Args:
        boot: what it was given.
        box: its black box.
        signals: its signal handlers.
        context: its zmq context.
        ending: what is to be done at the end, in the opposite order, on every way out; its sockets are closed last.
    """

    boot: Boot
    box: BlackBox
    signals: StopSignals
    context: Context
    ending: ExitStack


def run_process(boot: Boot, serve: Callable[[Running], bool]) -> None:
    """Run one process from its first instruction to its last.

    Args:
        boot: what it was given.
        serve: does its work; True if there was no error.

    Raises:
        SystemExit: with status 1, when it ended by an error.
    """
    # A group of its own: the terminal's SIGINT does not come here, and one killpg reaches all that the engine starts.
    # Not a session: the kernel schedules sessions against each other, which costs a fifth of a round trip.
    os.setpgid(0, 0)
    # What the terminal sent before that was meant for the supervisor, in whose group we were: it is blocked so far.
    signal.sigtimedwait([signal.SIGINT], 0)
    _redirect_output(boot.log)
    die_with(boot.lifeline)
    offer_stacks(boot.stacks)
    os.environ[MARK] = str(Path(boot.black_box).parent)
    box = BlackBox(Path(boot.black_box))
    signals = StopSignals(box)
    name_thread(boot.process_name)
    failed = False
    try:
        signals.unblock()
        with batch_scheduling(), ExitStack() as ending:
            context: Context = zmq.Context()
            ending.callback(_close_sockets, context, CLOSE_S)
            failed = not serve(Running(boot, box, signals, context, ending))
    except BootStopped:
        pass
    except BaseException:
        if not box.has_error:
            # Otherwise the report has it, and the log is left to what the engine printed.
            traceback.print_exc()
        failed = True
    # On the way out: the interpreter puts our handlers away before it ends, and a signal would then kill the process.
    signals.ignore()
    if os.getppid() != boot.parent_pid:
        # Orphaned, and asked by the guardian to end: nobody else ends what is left of our group.
        os.killpg(os.getpid(), signal.SIGKILL)
    if failed:
        raise SystemExit(1)


def _redirect_output(log: str) -> None:
    with open(os.devnull, "rb", opener=_open_above) as null, open(log, "ab", opener=_open_above) as file:
        os.dup2(null.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Made anew: they are None where the supervisor's were closed. By the line, since what an engine printed before
    # SIGKILL must be in the log.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(all_threads=False)  # the log's last lines must show the thread that crashed


def _open_above(path: str, flags: int) -> int:
    """Open above the standard streams, whose numbers are free if the supervisor has none."""
    fd = os.open(path, flags, 0o600)
    above = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return above


def _close_sockets(context: Context, timeout_s: float) -> None:
    """Close the context: that ends the input thread, and waits until the last messages have left."""
    # On a thread, since `term` waits for ever for a socket that is not closed: the end of the process closes it then.
    closing = threading.Thread(target=context.term, name="closing", daemon=True)
    closing.start()
    closing.join(timeout_s)
