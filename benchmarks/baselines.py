"""What the standard library offers instead: a pair of queues, a pool of one process, bare processes.

All of them spawn, and none lets its children import the benchmark: a stage process does not either.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from baseline_children import echo, identity, import_stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue

END_S = 5.0
BOOT_S = 30.0

_context = multiprocessing.get_context("spawn")


@contextmanager
def queue_pair() -> Iterator[tuple[Queue[bytes], Queue[bytes]]]:
    """A queue to an echo process and one back from it."""
    there: Queue[bytes] = _context.Queue()
    back: Queue[bytes] = _context.Queue()
    process = _context.Process(target=echo, args=(there, back), name="bench:echo", daemon=True)
    with _main_hidden():
        process.start()
    try:
        there.put(b"up")
        back.get(timeout=BOOT_S)
        yield there, back
    finally:
        _end(process)
        for queue in (there, back):
            queue.cancel_join_thread()
            queue.close()


@contextmanager
def pool_of_one() -> Iterator[ProcessPoolExecutor]:
    """A `ProcessPoolExecutor(1)` whose process is up."""
    with ProcessPoolExecutor(1, mp_context=_context) as pool:
        with _main_hidden():
            up = pool.submit(identity, b"up")
        up.result(timeout=BOOT_S)
        yield pool


def bare_pair_s() -> float:
    """Seconds from the start of two bare processes, which import what a stage imports and exit, to the end of both."""
    began = time.perf_counter()
    processes = [_context.Process(target=import_stage, daemon=True) for _ in range(2)]
    try:
        with _main_hidden():
            for process in processes:
                process.start()
        for process in processes:
            process.join(BOOT_S)
        elapsed = time.perf_counter() - began
        assert [process.exitcode for process in processes] == [0, 0], "a bare process failed"
        return elapsed
    finally:
        for process in processes:
            _end(process)


def _end(process: BaseProcess) -> None:
    if process.pid is None:
        return
    process.terminate()
    process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join(END_S)
    process.close()


@contextmanager
def _main_hidden() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
