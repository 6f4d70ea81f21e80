"""The process that tries one engine's import: it does what a stage does before the import, and builds nothing.

Standard output is the report's alone; whatever the engine's module prints is discarded.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from stage.engine_path import load_engine_class
from stage.errors_text import safe_str
from stage.parent_watch import die_with

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT_LIMIT = 1000


def try_import(lifeline: int, engine: str, env: dict[str, str], import_path: Sequence[str]) -> None:
    """Import an engine, write the outcome to standard output, and exit.

    The outcome is a JSON object: `error`, the type and text of what was raised, or null; and `missing`, the name of
    the module that was not found, or null. No outcome at all means that the import ended the process.

    Args:
        lifeline: descriptor of a pipe whose write end only the process to report to has; this one ends with it.
        engine: `package.module:ClassName`.
        env: the stage's variables.
        import_path: directories to look for the engine in before all others.
    """
    report = os.dup(1)
    os.dup2(2, 1)
    die_with(f"/proc/self/fd/{lifeline}")
    os.close(lifeline)
    os.environ.update(env)
    sys.path[:0] = import_path
    pid = os.getpid()
    outcome = json.dumps(_outcome(engine)).encode()
    if os.getpid() == pid:  # A module that forks gives the copy this very path.
        os.write(report, outcome)
    # Not `sys.exit`: threads that the module started would be waited for.
    os._exit(0)


def _outcome(engine: str) -> dict[str, str | None]:
    try:
        load_engine_class(engine)
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {safe_str(error)}".split())
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        return {"error": text[:TEXT_LIMIT], "missing": missing}
    return {"error": None, "missing": None}
