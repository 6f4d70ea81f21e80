"""The typed config of a pipeline, and the ways to it: a YAML file, or the same as Python data.

The only IO is reading the file. A `PipelineConfig` made here has no problem left that can be seen without importing
an engine; a config that has problems gives one `ConfigError` with all of them.
"""

from __future__ import annotations

import glob
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml

from supervisor.config_check import as_carried, find_problems, key_path
from supervisor.config_graph import find_graph_problems
from supervisor.seats import Balance  # noqa: TC001 (msgspec reads the annotations)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml import SafeLoader as _BaseLoader
else:
    _BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_LIMITS = ("startup_timeout_s", "shutdown_timeout_s", "max_in_flight", "max_request_bytes")
_MERGE_TAG = "tag:yaml.org,2002:merge"


class ConfigError(Exception):
    """Raised with everything that is wrong with a config; its text is one problem a line.

    Args:
        problems: each begins with a key path, such as `stages[1].inputs[0]: …`, and says how to mend it.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One stage.

    Args:
        name: unique in its pipeline.
        engine: import path of the engine, `package.module:ClassName`.
        args: its keyword arguments.
        env: variables for the stage process.
        cpus: processor numbers that it may use; None leaves them as they are.
        inputs: names of the stages whose outputs come in; empty for a stage that takes the users' requests.
        take: `each` output of an upstream stage is a sub-request, or only the `final` one that carries data.
        replicas: the number of processes.
        balance: which replica takes a request: the one with the `least_loaded` queue, `round_robin`, or `sticky`, the
            same one for the same session.
        on_death: `stop`, the whole pipeline with it, or `degrade`: the death of a replica costs the requests that it
            had, and the others go on; the last one's death stops the pipeline, as does any in a lockstep group.
        drain_timeout_s: how long a replica that is to go may take to finish what it has.
        lockstep: True for an engine whose replicas must step together: while any has work, all step, those without by
            `dummy_step`.
        max_in_flight: how many requests, or sub-requests, a replica may have at once; the others wait. None for no
            limit of its own.
        step_timeout_s: how long a step, or a message to the stage that it does not take in, may last before the stage
            is taken for hung and killed; None for ever.
    """

    name: str
    engine: str
    args: dict[str, Any] = {}
    env: dict[str, str] = {}
    cpus: tuple[int, ...] | None = None
    inputs: tuple[str, ...] = ()
    take: Literal["each", "final"] = "each"
    replicas: int = 1
    balance: Balance = "least_loaded"
    on_death: Literal["stop", "degrade"] = "stop"
    drain_timeout_s: float = 30
    lockstep: bool = False
    max_in_flight: int | None = None
    step_timeout_s: float | None = None

    def environment(self, replica: int, replicas: int) -> dict[str, str]:
        """The variables to set in the process of a replica, over those that it inherits.

        Args:
            replica: its number, from 0.
            replicas: how many there are as it starts.
        """
        # Several processes share the machine: one thread each, unless somebody says otherwise.
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        identity = {"STAGE_NAME": self.name, "STAGE_REPLICA": str(replica), "STAGE_REPLICAS": str(replicas)}
        return threads | self.env | identity


class InputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to run when the command line names no input: exactly one of two absolute paths.

    Args:
        glob: a pattern; each file that it matches is a request.
        jsonl: a file with a request a line.
    """

    glob: str | None = None
    jsonl: str | None = None


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A whole pipeline, made by `from_yaml` or `from_dict`.

    Args:
        name: what the logs call it.
        stages: in the order of the config.
        input: what to run by default, if anything.
        startup_timeout_s: how long all stages together may take to become ready, in seconds.
        shutdown_timeout_s: how long all stages together may take to end before they are killed, in seconds.
        max_in_flight: how many requests may be under way at once.
        max_request_bytes: the most that the data of one request may take, encoded, also of an output on its way to the
            next stage or to the user.
        base_dir: the config file's directory, absolute.
    """

    name: str
    stages: tuple[StageConfig, ...]
    base_dir: Path
    input: InputConfig | None = None
    startup_timeout_s: float = 60
    shutdown_timeout_s: float = 3
    max_in_flight: int = 64
    max_request_bytes: int = 256 * 1024 * 1024

    @classmethod
    def from_yaml(cls, path: str | Path) -> PipelineConfig:
        """Read a YAML file.

        Raises:
            ConfigError: the file cannot be read, is no YAML, or says something wrong.
        """
        path = Path(path)
        raw, duplicates = _load(path, _read(path))
        # An odd file name is no reason to refuse a config.
        default_name = path.stem if path.stem.isprintable() else "pipeline"
        return _make(raw, path.parent, default_name, _subject(path), duplicates)

    @classmethod
    def from_dict(cls, raw: dict[str, Any], base_dir: Path | None = None) -> PipelineConfig:
        """Take what a YAML file would say as Python data.

        Args:
            raw: the same keys and values.
            base_dir: what relative paths are relative to, and where engines are looked for first; the current
                directory by default.

        Raises:
            ConfigError: something in it is wrong.
        """
        return _make(raw, base_dir or Path.cwd(), "pipeline", "config", [])

    def consumers(self, name: str) -> tuple[StageConfig, ...]:
        """The stages that take the outputs of the stage `name`."""
        return self._consumers[name]

    @cached_property
    def sources(self) -> tuple[StageConfig, ...]:
        """The stages that take the users' requests."""
        return tuple(stage for stage in self.stages if not stage.inputs)

    @cached_property
    def _consumers(self) -> dict[str, tuple[StageConfig, ...]]:
        return {
            source.name: tuple(stage for stage in self.stages if source.name in stage.inputs) for source in self.stages
        }

    @property
    def import_path(self) -> tuple[str, ...]:
        """The directories in which a stage looks for its engine before all others."""
        return tuple(dict.fromkeys((str(self.base_dir), str(Path.cwd()))))


def _make(raw: Any, base_dir: Path, default_name: str, subject: str, problems: list[str]) -> PipelineConfig:
    problems = [*problems, *find_problems(raw, subject), *find_graph_problems(raw)]
    if problems:
        raise ConfigError(tuple(problems))
    # Resolved first: `..` is taken out of the input's path as text, which is wrong behind a symbolic link.
    base_dir = base_dir.resolve()
    limits = {key: raw[key] for key in _LIMITS if key in raw}
    return PipelineConfig(
        name=raw.get("name", default_name),
        stages=tuple(_stages(raw["stages"])),
        input=_input(raw.get("input"), str(base_dir)),
        base_dir=base_dir,
        **limits,
    )


def _stages(raw: list[dict[str, Any]]) -> Iterator[StageConfig]:
    above: tuple[str, ...] = ()
    for stage in raw:
        resolved = {"inputs": above, **stage, "args": as_carried(stage.get("args", {}))}
        yield msgspec.convert(resolved, StageConfig)
        above = (stage["name"],)


def _input(raw: dict[str, str] | None, base_dir: str) -> InputConfig | None:
    if raw is None:
        return None
    if "glob" in raw:
        return InputConfig(glob=_absolute(glob.escape(base_dir), raw["glob"]))
    return InputConfig(jsonl=_absolute(base_dir, raw["jsonl"]))


def _absolute(base_dir: str, path: str) -> str:
    return os.path.normpath(os.path.join(base_dir, path))  # noqa: PTH118 (a pattern is no path)


def _subject(path: Path) -> str:
    """Name a file on one line, whatever is in its name."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fact = f"not UTF-8 text ({error.reason} at byte {error.start}), wanted a YAML file"
    except OSError as error:
        fact = f"cannot be read ({error.strerror}), wanted a YAML file"
    except ValueError as error:
        fact = f"cannot be read ({error}), wanted a YAML file"
    raise ConfigError((f"{_subject(path)}: {fact}",))


class _Loader(_BaseLoader):
    """A safe loader that says where a value is that its tag cannot take, such as the date 2024-13-01."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            fact = f"not a value of type {kind} ({error})"
            raise yaml.constructor.ConstructorError(None, None, fact, node.start_mark) from error


def _load(path: Path, text: str) -> tuple[Any, list[str]]:
    """Return the document as data, and its problems that data cannot show."""
    duplicates: list[str] = []
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        # Before the data is made, which puts merged keys into the nodes.
        duplicates = _duplicate_keys(root)
        return None if root is None else loader.construct_document(root), duplicates
    except yaml.MarkedYAMLError as error:
        fact = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
    except yaml.reader.ReaderError as error:
        fact = error.reason
        line_start = text.rfind("\n", 0, error.position) + 1
        where = f"line {text.count(chr(10), 0, error.position) + 1}, column {error.position - line_start + 1}"
    except RecursionError:
        where, fact = "somewhere", "nested too deeply"
    finally:
        loader.dispose()
    raise ConfigError(
        (
            *duplicates,
            f"{_subject(path)}: no valid YAML at {where}: {' '.join(fact.split())}",
        )
    )


def _duplicate_keys(root: yaml.Node | None) -> list[str]:
    """Tell the keys that a mapping has more than once, in the order of the file: a loader would keep the last one."""
    found: list[tuple[int, str]] = []
    seen: set[int] = set()
    rest = [("", root)]
    while rest:
        path, node = rest.pop()
        if id(node) in seen:  # An alias stands for the same node again, perhaps for one that it is in.
            continue
        seen.add(id(node))
        inner: list[tuple[str, yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            inner = [(f"{path}[{index}]", item) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            inner = [(key_path(path, key.value), value) for key, value in node.value]
            found += _duplicates_in(path, node)
        # Reversed, so that a node is met first where its anchor is.
        rest += reversed(inner)
    return [problem for _, problem in sorted(found)]


def _duplicates_in(path: str, node: yaml.MappingNode) -> Iterator[tuple[int, str]]:
    lines: dict[tuple[str, str], list[int]] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG:
            lines.setdefault((key.tag, key.value), []).append(key.start_mark.line + 1)
    for (_, key), at in lines.items():
        if len(at) > 1:
            yield at[1], f"{key_path(path, key)}: given on lines {', '.join(map(str, at))}, wanted once"
