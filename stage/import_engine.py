"""The process that tries one engine's import: it does what a stage does before the import, and builds nothing.

What was imported is looked at for the methods of an engine, as far as that can be seen without building it.

Standard output is the report's alone; whatever the engine's module prints is discarded.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from stage.engine_path import load_engine_class
from stage.errors_text import safe_str
from stage.parent_watch import die_with

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT_LIMIT = 1000


def try_import(
    lifeline: int, engine: str, env: dict[str, str], import_path: Sequence[str], methods: Sequence[str]
) -> None:
    """Import an engine, write the outcome to standard output, and exit.

    The outcome is a JSON object: `error`, the type and text of what was raised or what else is wrong, or null; and
    `missing`, the name of the module that was not found, or null. No outcome at all means that the import ended the
    process.

    Args:
        lifeline: descriptor of a pipe whose write end only the process to report to has; this one ends with it.
        engine: `package.module:ClassName`.
        env: the stage's variables.
        import_path: directories to look for the engine in before all others.
        methods: what it must have.
    """
    report = os.dup(1)
    os.dup2(2, 1)
    die_with(f"/proc/self/fd/{lifeline}")
    os.close(lifeline)
    os.environ.update(env)
    sys.path[:0] = import_path
    pid = os.getpid()
    outcome = json.dumps(_outcome(engine, methods)).encode()
    if os.getpid() == pid:  # A module that forks gives the copy this very path.
        os.write(report, outcome)
    # Not `sys.exit`: threads that the module started would be waited for.
    os._exit(0)


def _outcome(engine: str, methods: Sequence[str]) -> dict[str, str | None]:
    try:
        lacking = _lacking(load_engine_class(engine), methods)
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {safe_str(error)}".split())
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        return {"error": text[:TEXT_LIMIT], "missing": missing}
    lack = f"the class lacks {', '.join(lacking)} (see stage.Engine)" if lacking else None
    return {"error": lack, "missing": None}


def _lacking(build: Any, methods: Sequence[str]) -> list[str]:
    """Name the methods that no engine of this class can have; those that cannot be told yet are found at its start."""
    # What a function or `__new__` returns is unknown, and so is what `__getattr__` stands in for.
    if not isinstance(build, type) or _makes_anything(build) or hasattr(build, "__getattr__"):
        return []
    return [name for name in methods if not _may_have(build, name)]


def _makes_anything(build: Any) -> bool:
    return build.__new__ is not object.__new__


def _may_have(build: type, name: str) -> bool:
    found = getattr(build, name, None)
    # Properties and slots are known on the instance alone, and so is what `__init__` assigns.
    return callable(found) or hasattr(found, "__get__") or any(name in _names_in_init(base) for base in build.__mro__)


def _names_in_init(build: type) -> tuple[str, ...]:
    code = getattr(vars(build).get("__init__"), "__code__", None)
    return () if code is None else tuple(code.co_names)
