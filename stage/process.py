"""`run_stage`: the entry of a stage process, and the order in which everything in it begins and ends.

The watch on the supervisor and the signal handlers come first, before anything that takes time. Whatever was begun is
ended in the opposite order, on every way out: the last messages leave, then the engine shuts down, then the sockets
close.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import zmq

from stage.black_box import BlackBox
from stage.busy_loop import BusyLoop
from stage.engine import ENGINE_METHODS
from stage.engine_path import load_engine_class
from stage.errors_text import safe_repr
from stage.handshake import BootStopped, handshake
from stage.injection import arm
from stage.io_threads import IOThread, run_input, run_output
from stage.names import MARK, fit_name, name_thread
from stage.parent_watch import die_with
from stage.protocol import Hello, Init
from stage.recorded_engine import RecordedEngine, WatchedEngine
from stage.sockets import batch_scheduling
from stage.stacks import offer_stacks
from stage.stop_signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.sockets import Context

InputQueue: TypeAlias = "SimpleQueue[tuple[str, Any]]"
Emit: TypeAlias = tuple[Any, ...]
OutputQueue: TypeAlias = "SimpleQueue[Emit]"

_CLOSE_S = 2.0


class Boot(NamedTuple):
    """What `Process.start` pickles: small, since a child that dies early must not block its parent.

    Args:
        stage: the stage's name.
        replica: its number, from 0.
        parent_pid: the supervisor's pid.
        handshake_address: endpoint for HELLO.
        lifeline: path of the pipe that the supervisor holds open for writing as long as it lives.
        black_box: path of the black box.
        log: path of the file that takes standard output and standard error.
        stacks: path of the file that takes stack dumps.
    """

    stage: str
    replica: int
    parent_pid: int
    handshake_address: str
    lifeline: str
    black_box: str
    log: str
    stacks: str


def run_stage(boot: Boot) -> None:
    """Run one stage from its first instruction to its last.

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
    name_thread(fit_name(f"stage:{boot.stage}", f"/{boot.replica}"))
    failed = False
    try:
        signals.unblock()
        with batch_scheduling():
            failed = not _serve(boot, box, signals)
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


def _serve(boot: Boot, box: BlackBox, signals: StopSignals) -> bool:
    """Boot, run the busy loop to its end, and end everything; True if there was no error."""
    context: Context = zmq.Context()
    with ExitStack() as ending:
        ending.callback(_close_sockets, context, _CLOSE_S)
        hello = Hello(boot.stage, boot.replica, os.getpid())
        with handshake(context, boot.handshake_address, hello, box) as init:
            _apply_settings(init)
            engine = _build_engine(init, box)
            ending.callback(_shut_down, engine, box)
            box.enter("io")
            input_queue: InputQueue = SimpleQueue()
            output_queue: OutputQueue = SimpleQueue()
            recorded = (WatchedEngine if init.watched else RecordedEngine)(engine, box, init.injection)
            loop = BusyLoop(recorded, input_queue, output_queue.put)
            signals.hand_over(loop)
            record_fatal = partial(_record_fatal, box, loop)
            output = _start_threads(boot, init, context, box, input_queue, output_queue, record_fatal)
            ending.callback(_flush, output_queue, output, init.shutdown_timeout_s / 2)
        if init.injection is not None:
            arm(init.injection, partial(_fail, input_queue))
        # What is loaded by now stays: the collector need not walk through it again and again.
        gc.freeze()
        loop.run()
        # The supervisor need not know that we end: an engine whose shutdown hangs would leave us mute and alive. So C
        # code ends us, which needs no interpreter lock, later than the supervisor would do it.
        faulthandler.dump_traceback_later(init.shutdown_timeout_s + _CLOSE_S, exit=True)
        record_fatal()
        box.enter("stopping")
    return loop.error is None


def _apply_settings(init: Init) -> None:
    os.environ.update(init.env)
    if init.cpus is not None:
        os.sched_setaffinity(0, init.cpus)
    sys.path[:0] = init.import_path


def _build_engine(init: Init, box: BlackBox) -> Any:
    box.enter("import")
    build = load_engine_class(init.engine)
    box.enter("init")
    engine = build(**init.args)
    missing = [name for name in ENGINE_METHODS if not callable(getattr(engine, name, None))]
    if missing:
        raise TypeError(f"engine {init.engine!r} lacks the method {', '.join(missing)} (see stage.Engine)")
    return engine


def _shut_down(engine: Any, box: BlackBox) -> None:
    shutdown = getattr(engine, "shutdown", None)
    if shutdown is None:
        return
    try:
        shutdown()
    except BaseException as exc:
        box.record_error("fatal", exc)
        raise


def _start_threads(
    boot: Boot,
    init: Init,
    context: Context,
    box: BlackBox,
    input_queue: InputQueue,
    output_queue: OutputQueue,
    record_fatal: Callable[[], None],
) -> IOThread:
    """Start both IO threads; return the output thread, which must flush at the end."""

    def on_death(name: str, exc: BaseException) -> None:
        box.record_error("io_thread", exc)
        _fail(input_queue, f"{name} thread died: {safe_repr(exc)}")

    name = f"{boot.stage}/{boot.replica}"
    take = partial(run_input, context, init.input_address, name.encode(), input_queue, output_queue)
    give = partial(
        run_output,
        context,
        init.output_address,
        output_queue,
        input_queue,
        record_fatal,
        init.shutdown_timeout_s / 2,
        init.max_payload_bytes,
    )
    reading = IOThread("input", fit_name(name, "-input"), take, partial(on_death, "input"))
    writing = IOThread("output", fit_name(name, "-output"), give, partial(on_death, "output"))
    reading.start()
    writing.start()
    return writing


def _record_fatal(box: BlackBox, loop: BusyLoop) -> None:
    if loop.error is not None:
        box.record_error("fatal", loop.error)


def _fail(input_queue: InputQueue, reason: str) -> None:
    input_queue.put(("EXECUTOR_FAILED", reason))


def _flush(output_queue: OutputQueue, output: IOThread, timeout_s: float) -> None:
    """Let the output thread send what is left."""
    # Ends the thread also when the loop never ran; behind the loop's own last word nobody reads it.
    output_queue.put(("shutdown",))
    output.join(timeout_s)


def _close_sockets(context: Context, timeout_s: float) -> None:
    """Close the context: that ends the input thread, and waits until the last messages have left."""
    # On a thread, since `term` waits for ever for a socket that is not closed: the end of the process closes it then.
    closing = threading.Thread(target=context.term, name="closing", daemon=True)
    closing.start()
    closing.join(timeout_s)
