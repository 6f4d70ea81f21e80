"""Turns an engine's import path, `package.module:ClassName`, into the class that it names."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def load_engine_class(path: str) -> Callable[..., Any]:
    """Import the module of an engine and return its class, or whatever builds the engine when called.

    Args:
        path: `package.module:ClassName`.

    Raises:
        ImportError: there is no such module, or it needs one that is not there.
        AttributeError: the module has no such name; the nearest one is named.
        TypeError: what it has cannot be called.
        Exception: whatever the module raises while it is imported.
    """
    module_name, _, class_name = path.partition(":")
    module = importlib.import_module(module_name)
    try:
        found = getattr(module, class_name)
    except AttributeError:
        raise AttributeError(f"module {module_name!r} has no {class_name!r}{_hint(class_name, module)}") from None
    if not callable(found):
        raise TypeError(f"{path!r} is a value of type {type(found).__name__}, wanted a class")
    build: Callable[..., Any] = found
    return build


def _hint(name: str, module: object) -> str:
    near = difflib.get_close_matches(name, [known for known in dir(module) if not known.startswith("_")], n=1)
    return f", did you mean {near[0]!r}?" if near else ""
