"""Ends a stage process that has this directory on its PYTHONPATH, before it has become ready.

The variable BOOT_FAULT says how, `now exit7` or `later exit7`: at the start of the interpreter, or when the FIFO that
BOOT_TRIGGER names is opened for writing.
"""

from __future__ import annotations

import os
import sys
import threading

FAULT = os.environ.get("BOOT_FAULT", "")


def _act() -> None:
    os._exit(int(FAULT.removeprefix("now exit").removeprefix("later exit")))


def _act_later() -> None:
    with open(os.environ["BOOT_TRIGGER"], "rb") as trigger:  # noqa: PTH123 (early in the interpreter's start)
        trigger.read()
    _act()


if "--multiprocessing-fork" in sys.orig_argv:
    if FAULT.startswith("now"):
        _act()
    elif FAULT:
        threading.Thread(target=_act_later, daemon=True).start()
