"""Configs of any kind: a good one survives every way to it, and a spoilt one is a config, or names every key path."""

from __future__ import annotations

import copy
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import ConfigError, PipelineConfig

KNOWN = ["name", "engine", "args", "env", "cpus", "inputs", "take", "replicas", "step_timeout_s"]
TOP = ["name", "input", "startup_timeout_s", "shutdown_timeout_s", "max_in_flight", "max_request_bytes", "stages"]
SEGMENT = r"(?:[^\W\d][\w-]*|\[.{1,61}\])"
KEY_PATH = re.compile(rf"(?:config|{SEGMENT}(?:\.{SEGMENT}|\[.{{1,61}}\])*): .")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=4)
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
variables = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0="), min_size=1, max_size=6)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
seconds = st.floats(0.001, 1_000_000) | st.integers(1, 1_000_000)


@st.composite
def stages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to four stages, each with inputs from those above it, or with the default."""
    names = draw(st.lists(st.from_regex(r"[A-Za-z0-9_][\w.-]{0,39}", fullmatch=True).filter(str.isascii), **SIZES))
    made = []
    for index, name in enumerate(names):
        keys = draw(
            st.fixed_dictionaries(
                {"name": st.just(name), "engine": st.sampled_from(["m:C", "stage.engines.countdown:Countdown"])},
                optional={
                    "args": st.dictionaries(st.text(max_size=4), plain, max_size=3),
                    "env": st.dictionaries(variables, values, max_size=2),
                    "cpus": st.none() | st.just([min(os.sched_getaffinity(0))]),
                    "inputs": st.lists(st.sampled_from(names[:index]), unique=True) if index else st.just([]),
                    "take": st.sampled_from(["each", "final"]),
                    "replicas": st.just(1),
                    "step_timeout_s": st.none() | seconds,
                },
            )
        )
        made.append(keys)
    return made


SIZES: dict[str, Any] = {"min_size": 1, "max_size": 4, "unique": True}
configs = st.fixed_dictionaries(
    {"stages": stages()},
    optional={
        "name": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=9),
        "input": st.none() | st.fixed_dictionaries({"glob": paths}) | st.fixed_dictionaries({"jsonl": paths}),
        "startup_timeout_s": seconds,
        "shutdown_timeout_s": seconds,
        "max_in_flight": st.integers(1, 10**6),
        "max_request_bytes": st.integers(1, 2**40),
    },
)
spoilers = (
    scalars
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=3)
    | st.dates()
    | st.sets(st.integers(), max_size=1)
    | st.lists(scalars, max_size=2)
    | st.dictionaries(scalars | st.sampled_from([*KNOWN, *TOP]), scalars, max_size=2)
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a config: a container, and the key of what it holds."""
    found: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        container = rest.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                rest.append(container[key])
    return found


def spoil(draw: Any, raw: dict[str, Any]) -> None:
    """Change one thing: another value, a key less, a key more, or an item twice."""
    container, key = draw(st.sampled_from(places(raw)))
    how = draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
    if how == "remove":
        del container[key]
    elif how == "add" and isinstance(container, dict):
        container[draw(st.sampled_from([*KNOWN, *TOP, "nmae", "stage"]) | scalars)] = draw(spoilers)
    elif how == "repeat" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    else:
        container[key] = draw(spoilers)


def assert_each_line_names_its_place(error: ConfigError) -> None:
    assert error.problems
    assert list(error.problems) == str(error).splitlines()
    for problem in error.problems:
        assert KEY_PATH.match(problem), problem


def written(text: str) -> Path:
    """A file with this text, the same for every example of a test."""
    path = Path(tempfile.gettempdir()) / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=80)
@given(raw=configs)
def test_any_good_config_survives_yaml(raw: dict[str, Any]) -> None:
    """A good config is the same as data and as a YAML file, and the data is left as it was."""
    before = copy.deepcopy(raw)
    path = written(yaml.safe_dump(raw))

    from_dict = PipelineConfig.from_dict({"name": "pipeline", **raw}, path.parent)
    from_yaml = PipelineConfig.from_yaml(path)

    assert from_dict == from_yaml
    assert before == raw
    path.unlink()


@settings(max_examples=60)
@given(raw=configs)
def test_any_good_config_spelt_out_is_the_same_config(raw: dict[str, Any]) -> None:
    """A config turned back into data, with every default spelt out, gives an equal config."""
    config = PipelineConfig.from_dict(raw)
    fields = {name: getattr(config, name) for name in TOP if name not in {"stages", "input"}}
    if config.input is not None:
        given_inputs = {"glob": config.input.glob, "jsonl": config.input.jsonl}
        fields["input"] = {key: value for key, value in given_inputs.items() if value is not None}
    spelt_out = {**fields, "stages": [msgspec.structs.asdict(stage) for stage in config.stages]}

    assert config == PipelineConfig.from_dict(spelt_out, config.base_dir)


@settings(max_examples=200)
@given(raw=configs, times=st.integers(1, 3), data=st.data())
def test_spoilt_config(raw: dict[str, Any], times: int, data: st.DataObject) -> None:
    """A good config with something changed is a config, or every line of the error begins with a key path."""
    spoilt = copy.deepcopy(raw)
    for _ in range(times):
        if places(spoilt):
            spoil(data.draw, spoilt)
    try:
        PipelineConfig.from_dict(spoilt)
    except ConfigError as error:
        assert_each_line_names_its_place(error)


@settings(max_examples=100)
@given(raw=configs, data=st.data())
def test_spoilt_yaml(raw: dict[str, Any], data: st.DataObject) -> None:
    """A YAML file with something typed into it, or cut out of it, is a config or gives a ConfigError."""
    text = yaml.safe_dump(raw)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 9)))
    typed = data.draw(st.text(":-{}[]&*!|>'\"#%@`,? \t\nab01~<.", max_size=4))
    path = written(text[:start] + typed + text[end:])
    with suppress(ConfigError):
        PipelineConfig.from_yaml(path)
    path.unlink()


@settings(max_examples=100)
@given(content=st.binary(max_size=60))
def test_any_bytes_as_a_file(content: bytes) -> None:
    """Any file at all gives a ConfigError, or a config by chance."""
    path = Path(tempfile.gettempdir()) / "pipeline.yaml"
    path.write_bytes(content)
    with suppress(ConfigError):
        PipelineConfig.from_yaml(path)
    path.unlink()
