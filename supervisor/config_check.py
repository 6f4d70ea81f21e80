"""Finds every key and value of a raw config that is wrong, one line a problem, each beginning with its key path.

Pure: problems come out in the order of the config, and nothing is raised. How the stages are joined is looked at in
`supervisor.config_graph`; a config without problems there and here can be built.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from types import NoneType
from typing import Any

import msgspec

Check = Callable[[str, Any], Iterator[str]]

# Below 2**31 ms: poll(2) takes its timeout as a C int of milliseconds.
MAX_TIME_S = 1_000_000
MAX_DEPTH = 50

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*")
# A stage's name becomes part of file names, of log lines and of the ids that engines see.
_STAGE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}")
_PLAIN_TYPES = (NoneType, bool, int, float, str, bytes)
_PLAIN_DATA = "plain data (null, a boolean, a number, text, bytes, a list or a mapping)"


def find_problems(raw: object, subject: str = "config") -> list[str]:
    """Tell everything that is wrong with a raw config.

    Args:
        raw: what the YAML said, or the same as Python data.
        subject: names the config as a whole, where no key path does.
    """
    if not isinstance(raw, dict):
        return [_wrong(subject, raw, "a mapping with the key 'stages'")]
    return list(_mapping("", raw, _PIPELINE_CHECKS, {"stages": _STAGES}))


def key_path(path: str, key: object) -> str:
    """Join a key path and one more key, such as `stages[1]` and `args`."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{_shown(key)}]"


def nearest(word: object, known: Iterable[str], what: str) -> str:
    """Suggest the known word nearest to this one, or else tell all that are known."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"did you mean {close[0]!r}?" if close else f"known {what}: {', '.join(known) or 'none'}"


def as_carried(args: dict[str, Any]) -> dict[str, Any]:
    """Copy an engine's arguments to what its stage will receive over the wire."""
    carried: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(args))
    return carried


def _wrong(path: str, value: object, wanted: str) -> str:
    return f"{path}: found {_found(value)}, wanted {wanted}"


def _wrong_key(path: str, key: object, wanted: str) -> str:
    return f"{path}: found {_found(key)} as a key, wanted {wanted}"


def _found(value: object) -> str:
    match value:
        case None:
            found = "null"
        case bool():
            found = f"the boolean {str(value).lower()}"
        case int() | float():
            found = f"the number {_shown(value)}"
        case str():
            found = f"the text {_shown(value)}"
        case list() | tuple():
            found = "a list" if value else "an empty list"
        case dict():
            found = "a mapping"
        case _:
            found = f"a value of type {type(value).__name__}"
    return found


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits.
        return "of more than 4300 digits"
    return text if len(text) <= 60 else f"{text[:60]}…"


def _mapping(path: str, raw: Any, checks: dict[str, Check], required: dict[str, str]) -> Iterator[str]:
    """Check the known keys of a mapping, and name the unknown and the missing ones."""
    for key, value in raw.items():
        if key in checks:
            yield from checks[key](key_path(path, key), value)
        else:
            yield f"{key_path(path, key)}: unknown key, {nearest(key, checks, 'keys')}"
    for key, wanted in required.items():
        if key not in raw:
            yield f"{key_path(path, key)}: missing, wanted {wanted}"


def _scalar(kind: type | tuple[type, ...], accepts: Callable[[Any], object], wanted: str) -> Check:
    """Make the check for a value of this kind; booleans are no numbers, although Python says so."""

    def check(path: str, value: Any) -> Iterator[str]:
        if isinstance(value, kind) and not isinstance(value, bool) and accepts(value):
            return
        quote_it = kind is str and isinstance(value, int | float | date)
        yield _wrong(path, value, wanted) + ("; quote it" if quote_it else "")

    return check


def _one_of(*words: str) -> Check:
    *most, last = (repr(word) for word in words)
    return _scalar(str, lambda text: text in words, f"{', '.join(most)} or {last}")


def _unless_none(check: Check) -> Check:
    def check_it(path: str, value: Any) -> Iterator[str]:
        if value is not None:
            yield from check(path, value)

    return check_it


def _truth(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, bool):
        yield _wrong(path, value, "true or false")


def _is_import_path(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def _is_valid_text(text: str) -> bool:
    """True unless the system or the wire would refuse it: both take UTF-8, and C strings end at a NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _is_variable_name(text: str) -> bool:
    return bool(text) and "=" not in text and _is_valid_text(text)


_ENGINE = "package.module:ClassName"
_NAME = "a name of letters, digits, '_', '-' and '.', at most 40 of them, not beginning with '-' or '.'"
_STAGES = "a list of at least one stage"

_text = _scalar(str, lambda _: True, "text")
_valid_text = _scalar(str, _is_valid_text, "valid Unicode text without NUL characters")
_file_path = _scalar(str, lambda text: text and _is_valid_text(text), "the path of a file")
_pipeline_name = _scalar(str, lambda text: text and text.isprintable(), "printable text")
_stage_name = _scalar(str, _STAGE_NAME.fullmatch, _NAME)
_engine = _scalar(str, _is_import_path, f"{_ENGINE}, such as 'stage.engines.countdown:Countdown'")
_take = _one_of("each", "final")
_on_death = _one_of("stop", "degrade")
_balance = _one_of("least_loaded", "round_robin", "sticky")
_whole = _scalar(int, lambda number: number >= 1, "a whole number of at least 1")
# NaN fails every comparison, so it is refused here as well.
_seconds = _scalar(
    (int, float),
    lambda number: 0 < number <= MAX_TIME_S,
    f"a number of seconds above 0 and up to {MAX_TIME_S}",
)


def _stages(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list | tuple) or not value:
        yield _wrong(path, value, _STAGES)
    else:
        for index, stage in enumerate(value):
            yield from _stage(f"{path}[{index}]", stage)


def _stage(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _mapping(path, value, _STAGE_CHECKS, {"name": _NAME, "engine": _ENGINE})
    else:
        yield _wrong(path, value, "a mapping with the keys 'name' and 'engine'")


def _input(path: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield _wrong(path, value, "a mapping with one key, 'glob' or 'jsonl'")
        return
    yield from _mapping(path, value, {"glob": _file_path, "jsonl": _file_path}, {})
    given = [key for key in ("glob", "jsonl") if key in value]
    if len(given) != 1:
        yield f"{path}: found {'both' if given else 'none'} of 'glob' and 'jsonl', wanted exactly one"


def _cpus(path: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list | tuple) or not value:
        yield _wrong(path, value, "a list of cpu numbers, such as [0]")
        return
    available = os.sched_getaffinity(0)
    wanted = f"a cpu that this process may use: {', '.join(map(str, sorted(available)))}"
    check = _scalar(int, lambda cpu: cpu in available, wanted)
    for index, cpu in enumerate(value):
        yield from check(f"{path}[{index}]", cpu)


def _inputs(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list | tuple):
        yield _wrong(path, value, "a list of stage names; leave the key out for the stage above")
        return
    for index, name in enumerate(value):
        if not isinstance(name, str):
            yield _wrong(f"{path}[{index}]", name, "the name of a stage")


def _env(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _wrong(path, value, "a mapping of variables to text")
        return
    for name, text in value.items():
        where = key_path(path, name)
        if not isinstance(name, str) or not _is_variable_name(name):
            yield _wrong_key(path, name, "the name of a variable")
        yield from (_valid_text if isinstance(text, str) else _text)(where, text)


def _args(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _wrong(path, value, "a mapping of the engine's arguments")
        return
    problems = [_wrong_key(path, key, "text; quote it") for key in value if not isinstance(key, str)]
    seen: set[int] = set()
    for inner_path, inner in _inner(path, value):
        problems += _plain(inner_path, inner, (id(value),), seen)
    yield from problems or _carried(path, value)


def _carried(path: str, args: dict[str, Any]) -> Iterator[str]:
    """Ask the codec itself: aliases can nest more deeply than any path that was walked."""
    try:
        as_carried(args)
    except Exception as error:
        yield f"{path}: cannot be sent to the stage ({type(error).__name__}: {error}), wanted {_PLAIN_DATA}"


def _plain(path: str, value: Any, above: tuple[int, ...], seen: set[int]) -> Iterator[str]:
    """Tell what the stage would not receive as it is; an alias's value is walked once, however often it is used."""
    if not isinstance(value, dict | list | tuple):
        yield from _plain_scalar(path, value)
    elif id(value) in above:
        yield f"{path}: contains itself, wanted {_PLAIN_DATA}"
    elif len(above) >= MAX_DEPTH:
        yield f"{path}: nested too deeply, wanted at most {MAX_DEPTH} levels"
    elif id(value) not in seen:
        seen.add(id(value))
        for inner_path, inner in _inner(path, value):
            yield from _plain(inner_path, inner, (*above, id(value)), seen)
        if isinstance(value, dict):
            yield from (_wrong_key(path, key, "text or a number") for key in value if any(_plain_scalar(path, key)))


def _inner(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        return ((key_path(path, key), inner) for key, inner in value.items())
    return ((f"{path}[{index}]", inner) for index, inner in enumerate(value))


def _plain_scalar(path: str, value: Any) -> Iterator[str]:
    if type(value) not in _PLAIN_TYPES:
        # msgpack would carry a date, and the engine would get text instead.
        yield _wrong(path, value, _PLAIN_DATA) + ("; quote it" if isinstance(value, date) else "")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield _wrong(path, value, "a whole number of at most 64 bits")
    elif isinstance(value, str) and not _is_valid_text(value.replace("\0", "")):
        yield _wrong(path, value, "valid Unicode text")


_STAGE_CHECKS: dict[str, Check] = {
    "name": _stage_name,
    "engine": _engine,
    "args": _args,
    "env": _env,
    "cpus": _cpus,
    "inputs": _inputs,
    "take": _take,
    "replicas": _whole,
    "balance": _balance,
    "on_death": _on_death,
    "drain_timeout_s": _seconds,
    "lockstep": _truth,
    "max_in_flight": _unless_none(_whole),
    "step_timeout_s": _unless_none(_seconds),
}

_PIPELINE_CHECKS: dict[str, Check] = {
    "name": _pipeline_name,
    "input": _input,
    "startup_timeout_s": _seconds,
    "shutdown_timeout_s": _seconds,
    "max_in_flight": _whole,
    "max_request_bytes": _whole,
    "stages": _stages,
}
