"""`run_stage`: the entry of a stage process, and the order in which everything in it begins and ends.

Whatever was begun is ended in the opposite order, on every way out: the last messages leave, then the engine shuts
down, then the sockets close.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from stage.boot import CLOSE_S, run_process
from stage.busy_loop import BusyLoop
from stage.engine import ENGINE_METHODS, LOCKSTEP_METHODS
from stage.engine_path import load_engine_class
from stage.errors_text import safe_repr
from stage.group_link import GroupLink
from stage.handshake import handshake
from stage.injection import arm
from stage.io_threads import IOThread, run_input, run_output
from stage.names import fit_name
from stage.protocol import Hello, Init, init_decoder
from stage.recorded_engine import RecordedEngine, WatchedEngine
from stage.replica import LockstepLoop, MeteredEngine
from stage.waves import WaveEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage.black_box import BlackBox
    from stage.boot import Boot, Running

InputQueue: TypeAlias = "SimpleQueue[tuple[str, Any]]"
Emit: TypeAlias = tuple[Any, ...]
OutputQueue: TypeAlias = "SimpleQueue[Emit]"


def run_stage(boot: Boot) -> None:
    """Run one replica of a stage from its first instruction to its last.

    Raises:
        SystemExit: with status 1, when it ended by an error.
    """
    run_process(boot, _serve)


def _serve(running: Running) -> bool:
    """Boot, run the busy loop to its end, and end everything; True if there was no error."""
    boot, box, ending = running.boot, running.box, running.ending
    hello = Hello(boot.stage, boot.replica, os.getpid())
    with handshake(running.context, boot.handshake_address, hello, box, init_decoder) as init:
        _apply_settings(init)
        engine = _build_engine(init, box)
        ending.callback(_shut_down, engine, box)
        box.enter("io")
        input_queue: InputQueue = SimpleQueue()
        output_queue: OutputQueue = SimpleQueue()
        recorded = (WatchedEngine if init.watched else RecordedEngine)(engine, box, init.injection)
        link = None if init.group is None else GroupLink(init.group, boot.replica or 0)
        loop = _make_loop(recorded, link, input_queue, output_queue.put)
        record_fatal = partial(_record_fatal, box, loop)
        running.signals.check()
        _start_threads(running, init, input_queue, output_queue, link, record_fatal)
        running.signals.hand_over(loop)
    if init.injection is not None:
        arm(init.injection, partial(_fail, input_queue))
    # What is loaded by now stays: the collector need not walk through it again and again.
    gc.freeze()
    loop.run()
    # The supervisor need not know that we end: an engine whose shutdown hangs would leave us mute and alive. So C
    # code ends us, which needs no interpreter lock, later than the supervisor would do it.
    faulthandler.dump_traceback_later(init.shutdown_timeout_s + CLOSE_S, exit=True)
    record_fatal()
    box.enter("stopping")
    return loop.error is None


def _make_loop(recorded: RecordedEngine, link: GroupLink | None, input_queue: InputQueue, emit: Any) -> BusyLoop:
    if link is None:
        return BusyLoop(recorded, input_queue, emit)
    metered = MeteredEngine(recorded, link.meter, emit)
    if not link.addresses.lockstep:
        return BusyLoop(metered, input_queue, emit)
    waves = WaveEngine(metered, link.replica, lambda message: emit(("group", message)))
    return LockstepLoop(waves, input_queue, emit)


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
    lockstep = init.group is not None and init.group.lockstep
    wanted = LOCKSTEP_METHODS if lockstep else ENGINE_METHODS
    missing = [name for name in wanted if not callable(getattr(engine, name, None))]
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
    running: Running,
    init: Init,
    input_queue: InputQueue,
    output_queue: OutputQueue,
    link: GroupLink | None,
    record_fatal: Callable[[], None],
) -> None:
    """Start both IO threads, the input thread last, since the other replicas may keep it waiting."""

    def on_death(name: str, exc: BaseException) -> None:
        running.box.record_error("io_thread", exc)
        _fail(input_queue, f"{name} thread died: {safe_repr(exc)}")

    context, name = running.context, running.boot.label
    take = partial(run_input, context, init.input_address, name.encode(), input_queue, output_queue, link)
    give = partial(
        run_output,
        context,
        init.output_address,
        output_queue,
        input_queue,
        record_fatal,
        init.shutdown_timeout_s / 2,
        init.max_payload_bytes,
        link,
    )
    reading = IOThread("input", fit_name(name, "-input"), take, partial(on_death, "input"))
    writing = IOThread("output", fit_name(name, "-output"), give, partial(on_death, "output"))
    running.ending.callback(_flush, output_queue, writing, init.shutdown_timeout_s / 2)
    writing.start()
    reading.start(None if link is None else "the coordinator, and every other replica of the stage")


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
