"""The config: what a good one becomes, and every problem of a bad one, told at once."""

from __future__ import annotations

import os
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import ConfigError, InputConfig, PipelineConfig, StageConfig

ENGINE = "stage.engines.countdown:Countdown"
NAME_RULE = "a name of letters, digits, '_', '-' and '.', at most 40 of them, not beginning with '-' or '.'"
PLAIN = "plain data (null, a boolean, a number, text, bytes, a list or a mapping)"
SECONDS = "a number of seconds above 0 and up to 1000000"


def stage(name: str = "a", **keys: Any) -> dict[str, Any]:
    return {"name": name, "engine": ENGINE, **keys}


def pipeline(*stages: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"stages": list(stages) or [stage()], **keys}


def problems(raw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_dict(raw)
    return list(caught.value.problems)


def yaml_problems(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_yaml(path)
    return list(caught.value.problems)


class TestGoodConfigs:
    def test_everything(self, tmp_path: Path) -> None:
        """Every key of a YAML file arrives in its typed place."""
        cpu = min(os.sched_getaffinity(0))
        path = tmp_path / "transcribe.yaml"
        path.write_text(
            f"""
            name: speech
            input: {{glob: ../samples/*.wav}}
            startup_timeout_s: 6
            shutdown_timeout_s: 0.5
            max_in_flight: 8
            stages:
              - name: segment
                engine: stage.engines.vad:VoiceActivityEngine
                args: {{threshold: 0.5, "on": true, names: [x, 1, null]}}
                env: {{OMP_NUM_THREADS: "1"}}
                cpus: [{cpu}]
              - name: transcribe
                engine: stage.engines.whisper:WhisperEngine
                take: final
                replicas: 1
            """
        )

        actual = PipelineConfig.from_yaml(path)

        expected = PipelineConfig(
            name="speech",
            stages=(
                StageConfig(
                    name="segment",
                    engine="stage.engines.vad:VoiceActivityEngine",
                    args={"threshold": 0.5, "on": True, "names": ["x", 1, None]},
                    env={"OMP_NUM_THREADS": "1"},
                    cpus=(cpu,),
                ),
                StageConfig(
                    name="transcribe",
                    engine="stage.engines.whisper:WhisperEngine",
                    inputs=("segment",),
                    take="final",
                ),
            ),
            input=InputConfig(glob=str(tmp_path.resolve().parent / "samples" / "*.wav")),
            startup_timeout_s=6,
            shutdown_timeout_s=0.5,
            max_in_flight=8,
            base_dir=tmp_path.resolve(),
        )
        assert expected == actual

    def test_defaults_of_a_file(self, tmp_path: Path) -> None:
        """A file's pipeline goes by the file's stem, and limits have defaults."""
        path = tmp_path / "count.yaml"
        path.write_text(f"stages: [{{name: a, engine: '{ENGINE}'}}]", encoding="utf-8-sig")

        actual = PipelineConfig.from_yaml(str(path))

        expected = PipelineConfig(
            name="count",
            stages=(StageConfig(name="a", engine=ENGINE),),
            base_dir=tmp_path.resolve(),
        )
        assert expected == actual
        assert (actual.startup_timeout_s, actual.shutdown_timeout_s, actual.max_in_flight) == (60, 3, 64)

    def test_an_odd_file_name(self, tmp_path: Path) -> None:
        """A file whose name cannot be printed gives a pipeline with the plain name."""
        path = tmp_path / "odd\n.yaml"
        path.write_text(f"stages: [{{name: a, engine: '{ENGINE}'}}]")

        assert PipelineConfig.from_yaml(path).name == "pipeline"

    def test_defaults_of_data(self) -> None:
        """Data without a directory belongs to the current one."""
        config = PipelineConfig.from_dict(pipeline())

        assert ("pipeline", Path.cwd()) == (config.name, config.base_dir)

    def test_null_where_it_is_the_default(self) -> None:
        """An input and cpus that are null are as good as none."""
        expected = PipelineConfig.from_dict(pipeline())
        assert expected == PipelineConfig.from_dict(pipeline(stage(cpus=None), input=None))

    def test_input_paths(self, tmp_path: Path) -> None:
        """An input is relative to the config's directory, whose own characters are no pattern."""
        base = tmp_path / "[v1]"

        def from_base(**given: str) -> InputConfig | None:
            return PipelineConfig.from_dict(pipeline(input=given), base_dir=base).input

        assert InputConfig(glob=f"{tmp_path}/[[]v1]/*.wav") == from_base(glob="*.wav")
        assert InputConfig(jsonl=f"{base}/r.jsonl") == from_base(jsonl="./r.jsonl")
        assert InputConfig(jsonl="/r.jsonl") == from_base(jsonl="/r.jsonl")

    def test_import_path(self, tmp_path: Path) -> None:
        """Engines are looked for in the config's directory, then in the current one."""
        config = PipelineConfig.from_dict(pipeline(), base_dir=tmp_path)

        assert (str(tmp_path), str(Path.cwd())) == config.import_path

    def test_graph(self) -> None:
        """A stage takes from the one above by default; explicit inputs make any graph without a ring."""
        config = PipelineConfig.from_dict(
            pipeline(
                stage("join", inputs=["left", "right"]),
                stage("left", inputs=["top"]),
                stage("right", inputs=["top", "side"]),
                stage("top", inputs=[]),
                stage("side", inputs=[]),
                stage("after"),
            )
        )
        by_name = {one.name: one for one in config.stages}

        assert (by_name["top"], by_name["side"]) == config.sources
        assert (by_name["left"], by_name["right"]) == config.consumers("top")
        assert (by_name["right"], by_name["after"]) == config.consumers("side")
        assert [name for name in by_name if not config.consumers(name)] == ["join", "after"]
        assert config.sources is config.sources

    def test_arguments_are_a_copy(self) -> None:
        """What happens to the data afterwards does not reach the config."""
        raw = pipeline(stage(args={"sizes": [1]}))
        config = PipelineConfig.from_dict(raw)

        raw["stages"][0]["args"]["sizes"].append(2)

        assert config.stages[0].args == {"sizes": [1]}

    def test_yaml_anchors_and_merge_keys(self, tmp_path: Path) -> None:
        """A key that overrides a merged one is given once, also where the merged mapping is merged again."""
        path = tmp_path / "c.yaml"
        path.write_text(
            f"""
            stages:
              - &one {{name: a, engine: '{ENGINE}', args: &args {{x: 1, y: 1}}}}
              - &two {{<<: *one, name: b, args: {{<<: *args, x: 2}}}}
              - {{<<: *two, name: c}}
            """
        )

        config = PipelineConfig.from_yaml(path)

        assert [(one.name, one.args["x"]) for one in config.stages] == [("a", 1), ("b", 2), ("c", 2)]

    def test_take_on_a_source(self) -> None:
        """`take` says nothing on a stage without inputs, and does no harm there."""
        assert PipelineConfig.from_dict(pipeline(stage(take="final"))).stages[0].take == "final"


class TestProblems:
    def test_all_at_once(self) -> None:
        """A config full of mistakes gives one error with a line for each."""
        raw = pipeline(
            stage("a", inputs=["b"], engin=ENGINE, args={1: 2, "x": {3}}),
            stage("b", replicas=0, take="all"),
            {"nam": "c", "inputs": ["b", "b", "bb"]},
            stage("b", inputs=["b"]),
            max_in_fligth=3,
            max_in_flight="64",
            input={"glob": "*.wav", "jsonl": "r.jsonl"},
        )
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_dict(raw)

        expected = f"""\
stages[0].engin: unknown key, did you mean 'engine'?
stages[0].args: found the number 1 as a key, wanted text; quote it
stages[0].args.x: found a value of type set, wanted {PLAIN}
stages[1].replicas: found the number 0, wanted a whole number of at least 1
stages[1].take: found the text 'all', wanted 'each' or 'final'
stages[2].nam: unknown key, did you mean 'name'?
stages[2].name: missing, wanted {NAME_RULE}
stages[2].engine: missing, wanted package.module:ClassName
max_in_fligth: unknown key, did you mean 'max_in_flight'?
max_in_flight: found the text '64', wanted a whole number of at least 1
input: found both of 'glob' and 'jsonl', wanted exactly one
stages[3].name: 'b' is also the name of stages[1], wanted a name of its own
stages[3].inputs[0]: 'b' is the stage itself, wanted another one; known stages: a
stages[0].inputs: a -> b -> a is a ring, wanted inputs from stages that do not wait for this one"""
        assert expected == str(caught.value)

    @pytest.mark.parametrize("raw", [None, [], "text", 3, date(2024, 1, 1)])
    def test_no_mapping(self, raw: Any) -> None:
        """A config that is no mapping is told what it should be."""
        (problem,) = problems(raw)

        assert problem.startswith("config: found ")
        assert problem.endswith(", wanted a mapping with the key 'stages'")

    @pytest.mark.parametrize(
        ("raw", "found"),
        [
            ({}, "missing"),
            ({"stages": None}, "found null"),
            ({"stages": []}, "found an empty list"),
            ({"stages": {"a": 1}}, "found a mapping"),
        ],
    )
    def test_no_stages(self, raw: Any, found: str) -> None:
        """A pipeline needs stages."""
        assert [f"stages: {found}, wanted a list of at least one stage"] == problems(raw)

    def test_a_stage_that_is_no_mapping(self) -> None:
        """A stage is a mapping with two keys at least."""
        expected = ["stages[1]: found the text 'b', wanted a mapping with the keys 'name' and 'engine'"]
        assert expected == problems({"stages": [stage(), "b"]})

    def test_unknown_keys(self) -> None:
        """An unknown key without a near one is told all known ones, whatever its type."""
        known = "name, input, startup_timeout_s, shutdown_timeout_s, max_in_flight, max_request_bytes, stages"
        expected = [
            f"[True]: unknown key, known keys: {known}",
            f"['a\\nb']: unknown key, known keys: {known}",
            "input.glop: unknown key, did you mean 'glob'?",
            "input: found none of 'glob' and 'jsonl', wanted exactly one",
        ]
        raw: dict[Any, Any] = {**pipeline(), True: 1, "a\nb": 1, "input": {"glop": "*"}}
        assert expected == problems(raw)

    @pytest.mark.parametrize("key", ["startup_timeout_s", "shutdown_timeout_s"])
    @pytest.mark.parametrize(
        ("value", "found"),
        [
            (0, "the number 0"),
            (-1.5, "the number -1.5"),
            (float("nan"), "the number nan"),
            (float("inf"), "the number inf"),
            (10**400, f"the number 1{'0' * 59}…"),
            pytest.param(10**5000, "the number of more than 4300 digits", id="huge"),
            (True, "the boolean true"),
            ("3", "the text '3'"),
            (None, "null"),
            ([3], "a list"),
        ],
    )
    def test_times(self, key: str, value: Any, found: str) -> None:
        """A time is a finite number of seconds above zero."""
        assert [f"{key}: found {found}, wanted {SECONDS}"] == problems(pipeline(**{key: value}))

    @pytest.mark.parametrize(("value", "found"), [(0, "number 0"), (1.5, "number 1.5"), (True, "boolean true")])
    def test_max_in_flight(self, value: Any, found: str) -> None:
        """At least one request is under way."""
        expected = [f"max_in_flight: found the {found}, wanted a whole number of at least 1"]
        assert expected == problems(pipeline(max_in_flight=value))

    @pytest.mark.parametrize("key", ["replicas", "max_in_flight"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
    def test_counts_of_replicas(self, key: str, value: Any) -> None:
        """A stage has at least one process, which takes at least one request."""
        (problem,) = problems(pipeline(stage(**{key: value})))

        assert problem.startswith(f"stages[0].{key}: found ")
        assert problem.endswith(", wanted a whole number of at least 1")

    @pytest.mark.parametrize(
        ("key", "wanted"),
        [
            ("balance", "'least_loaded', 'round_robin' or 'sticky'"),
            ("on_death", "'stop' or 'degrade'"),
            ("lockstep", "true or false"),
            ("drain_timeout_s", "a number of seconds above 0"),
        ],
    )
    @pytest.mark.parametrize("value", ["restart", None, [], -1])
    def test_keys_of_replicas(self, key: str, wanted: str, value: Any) -> None:
        """What is none of the choices is refused, with all of them."""
        (problem,) = problems(pipeline(stage(replicas=2, **{key: value})))

        assert problem.startswith(f"stages[0].{key}: found ")
        assert f", wanted {wanted}" in problem

    @pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "a\n", "ä", "a" * 41])
    def test_bad_stage_names(self, name: str) -> None:
        """A name that would break a file name or an id is refused."""
        assert [f"stages[0].name: found the text {name!r}, wanted {NAME_RULE}"] == problems(pipeline(stage(name)))

    @pytest.mark.parametrize("name", ["a", "_", "0", "A.b-c_d", "a" * 40])
    def test_good_stage_names(self, name: str) -> None:
        """Letters, digits and a few signs make a name."""
        assert PipelineConfig.from_dict(pipeline(stage(name))).stages[0].name == name

    def test_text_that_yaml_read_as_something_else(self) -> None:
        """A number, boolean or date where text belongs is to be quoted."""
        expected = [
            "name: found the number 7, wanted printable text; quote it",
            f"stages[0].name: found the boolean false, wanted {NAME_RULE}; quote it",
            "stages[0].env.OMP_NUM_THREADS: found the number 1, wanted text; quote it",
            "stages[0].env.DAY: found a value of type date, wanted text; quote it",
        ]
        no: Any = False
        raw = {"name": 7, **pipeline(stage(no, env={"OMP_NUM_THREADS": 1, "DAY": date(2024, 1, 1)}))}
        assert expected == problems(raw)

    @pytest.mark.parametrize(
        "engine", ["", "a", "a.b", "a:", ":B", "a.:B", "a..b:B", "a/b.py:B", "a:B.C", "a:B:C", "a-b:C", "1a:B", "a: B"]
    )
    def test_bad_engines(self, engine: str) -> None:
        """An engine is a module and a class, each part an identifier."""
        expected = (
            f"stages[0].engine: found the text {engine!r}, wanted package.module:ClassName, "
            "such as 'stage.engines.countdown:Countdown'"
        )
        assert [expected] == problems(pipeline(stage(engine=engine)))

    def test_environment(self) -> None:
        """What the system would refuse as a variable is refused here."""
        wanted = "wanted the name of a variable"
        expected = [
            f"stages[0].env: found the text '' as a key, {wanted}",
            f"stages[0].env: found the text 'A=B' as a key, {wanted}",
            f"stages[0].env: found the number 1 as a key, {wanted}",
            "stages[0].env.C: found the text 'a\\x00', wanted valid Unicode text without NUL characters",
            "stages[0].env.D: found the text '\\udc80', wanted valid Unicode text without NUL characters",
            "stages[1].env: found a list, wanted a mapping of variables to text",
        ]
        env = {"": "x", "A=B": "x", 1: "x", "C": "a\0", "D": "\udc80"}
        assert expected == problems(pipeline(stage("a", env=env), stage("b", env=["A=1"])))

    def test_cpus(self) -> None:
        """Only a processor that this machine gives us can be asked for."""
        available = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        wanted = f"wanted a cpu that this process may use: {available}"
        expected = [
            f"stages[0].cpus[0]: found the number -1, {wanted}",
            f"stages[0].cpus[1]: found the number 100000, {wanted}",
            f"stages[0].cpus[2]: found the boolean false, {wanted}",
            "stages[1].cpus: found an empty list, wanted a list of cpu numbers, such as [0]",
            "stages[2].cpus: found the number 0, wanted a list of cpu numbers, such as [0]",
        ]
        raw = pipeline(stage("a", cpus=[-1, 100_000, False]), stage("b", cpus=[]), stage("c", cpus=0))
        assert expected == problems(raw)

    def test_inputs(self) -> None:
        """Inputs name other stages, each once, and the nearest name is suggested."""
        expected = [
            (
                "stages[1].inputs: found the text 'segment', wanted a list of stage names; "
                "leave the key out for the stage above"
            ),
            "stages[2].inputs[1]: found the number 3, wanted the name of a stage",
            "stages[2].inputs[0]: unknown stage 'segmnt', did you mean 'segment'?",
            "stages[2].inputs[3]: 'asr' is given twice, wanted each input once",
            "stages[2].inputs[4]: unknown stage 'xyz', known stages: segment, asr",
        ]
        raw = pipeline(
            stage("segment"),
            stage("asr", inputs="segment"),
            stage("out", inputs=["segmnt", 3, "asr", "asr", "xyz"]),
        )
        assert expected == problems(raw)

    def test_every_ring_is_named(self) -> None:
        """Each ring is named from its first stage on, the stage above included as an input by default."""
        wanted = "is a ring, wanted inputs from stages that do not wait for this one"
        expected = [
            f"stages[0].inputs: a -> b -> c -> a {wanted}",
            f"stages[4].inputs: e -> f -> e {wanted}",
        ]
        raw = pipeline(
            stage("a", inputs=["c"]),
            stage("b"),
            stage("c"),
            stage("d"),
            stage("e", inputs=["f"]),
            stage("f", inputs=["e", "d"]),
        )
        assert sorted(expected) == sorted(problems(raw))

    def test_a_lone_stage_that_names_itself(self) -> None:
        """A stage cannot feed itself."""
        expected = ["stages[0].inputs[0]: 'a' is the stage itself, wanted another one; known stages: none"]
        assert expected == problems(pipeline(stage(inputs=["a"])))

    def test_input(self) -> None:
        """An input is one of two paths."""
        expected = ["input.glob: found the text '', wanted the path of a file"]
        assert expected == problems(pipeline(input={"glob": ""}))
        expected = ["input: found the text '*.wav', wanted a mapping with one key, 'glob' or 'jsonl'"]
        assert expected == problems(pipeline(input="*.wav"))

    def test_arguments(self) -> None:
        """Arguments that would not arrive at the engine as they are written are refused."""
        looped: list[Any] = []
        looped.append(looped)
        deep: Any = 0
        for _ in range(100):
            deep = [deep]
        expected = [
            f"stages[0].args.day: found a value of type date, wanted {PLAIN}; quote it",
            f"stages[0].args.big: found the number {2**64}, wanted a whole number of at most 64 bits",
            "stages[0].args.text: found the text '\\udc80', wanted valid Unicode text",
            "stages[0].args.table: found a value of type date as a key, wanted text or a number",
            f"stages[0].args.loop[0]: contains itself, wanted {PLAIN}",
            f"stages[0].args.deep{'[0]' * 49}: nested too deeply, wanted at most 50 levels",
            "stages[1].args: found a list, wanted a mapping of the engine's arguments",
        ]
        args = {
            "day": date(2024, 1, 1),
            "big": 2**64,
            "text": "\udc80",
            "table": {date(2024, 1, 1): 1, 7: 1},
            "loop": looped,
            "deep": deep,
            "fine": {"a": b"\0", 2: float("nan")},
        }
        assert expected == problems(pipeline(stage("a", args=args), stage("b", args=[1])))

    def test_arguments_that_only_the_codec_refuses(self) -> None:
        """A nesting that aliases hide is still found before anything is sent."""
        rungs: list[Any] = [[]]
        for _ in range(100_000):
            rungs.append([rungs[-1]])

        (problem,) = problems(pipeline(stage(args={"rungs": rungs})))

        assert problem.startswith("stages[0].args: cannot be sent to the stage (RecursionError: ")


class TestFiles:
    def test_missing_file(self, tmp_path: Path) -> None:
        """A file that is not there is one problem."""
        path = tmp_path / "none.yaml"
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_yaml(path)
        assert str(caught.value) == f"{path}: cannot be read (No such file or directory), wanted a YAML file"

    def test_directory(self, tmp_path: Path) -> None:
        """A directory is no config."""
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_yaml(tmp_path)
        assert str(caught.value) == f"{tmp_path}: cannot be read (Is a directory), wanted a YAML file"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_unreadable_file(self, tmp_path: Path) -> None:
        """A file that may not be read is one problem."""
        path = tmp_path / "c.yaml"
        path.touch(mode=0)
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_yaml(path)
        assert str(caught.value) == f"{path}: cannot be read (Permission denied), wanted a YAML file"

    def test_a_path_that_is_none(self) -> None:
        """A path that the system cannot take is shown on one line."""
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_yaml("a\0\nb")
        (problem,) = str(caught.value).splitlines()
        assert problem.startswith(r"'a\x00\nb': cannot be read (embedded null ")

    def test_not_utf8(self, tmp_path: Path) -> None:
        """Another encoding is named as the problem."""
        path = tmp_path / "c.yaml"
        path.write_bytes("name: gr\xfc\xdfe".encode("latin-1"))
        with pytest.raises(ConfigError) as caught:
            PipelineConfig.from_yaml(path)
        expected = f"{path}: not UTF-8 text (invalid start byte at byte 8), wanted a YAML file"
        assert expected == str(caught.value)

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("stages: [a\n", "line 2, column 1"),
            ("a: 1\n b: 2\n", "line 2, column 3"),
            ("\ta: 1", "line 1, column 1"),
            ("a: 1\nb: \x01", "line 2, column 4"),
            ("a: 1\n---\nb: 1", "line 2, column 1"),
            ("a: *b", "line 1, column 4"),
            ("a: 1\n? [b]\n: 1", "line 2, column 3"),
            ("a: !!python/object:os.system 1", "line 1, column 4"),
            ("a: 2024-13-01", "line 1, column 4"),
            ("a: !!bool x", "line 1, column 4"),
            ("a: !!timestamp x", "line 1, column 4"),
            ("a: " + "9" * 5000, "line 1, column 4"),
        ],
    )
    def test_no_yaml(self, tmp_path: Path, text: str, where: str) -> None:
        """Text that is no YAML is told by line and column, in one line."""
        path = tmp_path / "c.yaml"

        (problem,) = yaml_problems(path, text)

        assert problem.startswith(f"{path}: no valid YAML at {where}: ")
        assert len(problem.splitlines()) == 1

    def test_yaml_error_in_full(self, tmp_path: Path) -> None:
        """A YAML error says what was being read and what was amiss."""
        path = tmp_path / "c.yaml"
        expected = (
            f"{path}: no valid YAML at line 2, column 1: "
            "while parsing a flow sequence, did not find expected ',' or ']'"
        )
        assert [expected] == yaml_problems(path, "stages: [a\n")

    @pytest.mark.parametrize(
        "text", ["[" * 2000, "{<<: " * 990 + "{}" + "}" * 990, "".join(" " * depth + "a:\n" for depth in range(1500))]
    )
    def test_deep_nesting(self, tmp_path: Path, text: str) -> None:
        """A file that nests without end is refused like any other that is no YAML."""
        path = tmp_path / "c.yaml"

        (problem,) = yaml_problems(path, text)

        assert problem.startswith(f"{path}: no valid YAML at ")

    @pytest.mark.parametrize(("text", "found"), [("", "null"), ("- a", "a list"), ("a", "the text 'a'")])
    def test_no_mapping(self, tmp_path: Path, text: str, found: str) -> None:
        """YAML that is no mapping is told what it should be."""
        path = tmp_path / "c.yaml"
        expected = [f"{path}: found {found}, wanted a mapping with the key 'stages'"]
        assert expected == yaml_problems(path, text)

    def test_duplicate_keys(self, tmp_path: Path) -> None:
        """Keys that are given twice are found at every level, beside all other problems."""
        text = """\
name: a
stages:
  - name: x
    engine: 3
    args: {k: 1, "k": 2, k: 3}
    name: y
name: b
"""
        expected = [
            "stages[0].args.k: given on lines 5, 5, 5, wanted once",
            "stages[0].name: given on lines 3, 6, wanted once",
            "name: given on lines 1, 7, wanted once",
            (
                "stages[0].engine: found the number 3, wanted package.module:ClassName, "
                "such as 'stage.engines.countdown:Countdown'; quote it"
            ),
        ]
        assert expected == yaml_problems(tmp_path / "c.yaml", text)

    def test_duplicate_keys_behind_an_anchor(self, tmp_path: Path) -> None:
        """A mapping with aliases is told once, where its anchor is, also beside text that is no value."""
        text = "stages:\n- args: &one {k: 1, k: 2}\n- args: *one\n- args: 2024-13-01\n"
        path = tmp_path / "c.yaml"
        expected = [
            "stages[0].args.k: given on lines 2, 2, wanted once",
            f"{path}: no valid YAML at line 4, column 9: not a value of type timestamp (month must be in 1..12)",
        ]
        assert expected == yaml_problems(path, text)

    def test_alias_of_itself(self, tmp_path: Path) -> None:
        """A value that contains itself is found, not followed."""
        text = f"stages: [{{name: a, engine: '{ENGINE}', args: &loop {{x: *loop}}}}]"
        expected = [f"stages[0].args.x: contains itself, wanted {PLAIN}"]
        assert expected == yaml_problems(tmp_path / "c.yaml", text)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=3)
    | st.dates()
    | st.sampled_from(["a", "b", "c", ENGINE, "each", "final", 2**63, 2**64])
)
KEYS = SCALARS | st.sampled_from(
    [
        *("name", "engine", "args", "env", "cpus", "inputs", "take", "replicas"),
        *("stages", "input", "startup_timeout_s", "shutdown_timeout_s", "max_in_flight", "glob", "jsonl"),
    ]
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5) | st.tuples(inner),
    max_leaves=15,
)
STAGES = st.fixed_dictionaries(
    {"name": st.sampled_from("abc") | DATA, "engine": st.just(ENGINE) | DATA},
    optional={
        "inputs": st.lists(st.sampled_from("abc"), max_size=3) | DATA,
        "args": st.dictionaries(st.text(max_size=3), DATA, max_size=3) | DATA,
        "env": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2) | DATA,
        "cpus": st.lists(st.integers(-1, 1), max_size=2) | DATA,
        "take": st.sampled_from(["each", "final"]) | DATA,
        "replicas": st.just(1) | DATA,
    },
)
CONFIGS = st.fixed_dictionaries(
    {"stages": st.lists(STAGES | DATA, max_size=4) | DATA},
    optional={
        "name": DATA,
        "input": st.fixed_dictionaries({}, optional={"glob": DATA, "jsonl": DATA}) | DATA,
        "startup_timeout_s": st.floats(0, 100) | DATA,
        "max_in_flight": st.integers(0, 3) | DATA,
    },
)


@given(raw=CONFIGS | DATA)
def test_any_data_gives_a_config_or_a_config_error(raw: Any) -> None:
    """Whatever the data, it gives a typed config, or problems that take a printable line each."""
    made: PipelineConfig | ConfigError
    try:
        made = PipelineConfig.from_dict(raw)
    except ConfigError as error:
        made = error

    if isinstance(made, ConfigError):
        assert made.problems
        assert list(made.problems) == str(made).splitlines()
        assert str(made).encode()


@st.composite
def dags(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Stages in any order, each with inputs that are fewer than itself in a hidden order."""
    names = draw(st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    sources = [
        draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else [] for place in range(len(names))
    ]
    return draw(st.permutations([stage(name, inputs=inputs) for name, inputs in zip(names, sources, strict=True)]))


@given(stages=dags())
def test_any_graph_without_a_ring_is_accepted(stages: list[dict[str, Any]]) -> None:
    """Every DAG is a pipeline; producers and consumers know each other, and something is final."""
    config = PipelineConfig.from_dict({"stages": stages})

    joined = {(source, one.name) for one in config.stages for source in one.inputs}
    consumed = {(one.name, other.name) for one in config.stages for other in config.consumers(one.name)}
    assert joined == consumed
    assert config.sources
    assert any(not config.consumers(one.name) for one in config.stages)


@given(stages=dags(), data=st.data())
def test_any_ring_is_refused(stages: list[dict[str, Any]], data: st.DataObject) -> None:
    """A ring anywhere in a graph is found, and what is named is a ring of that graph."""
    names = [one["name"] for one in stages]
    if len(names) < 2:
        names = ["x", "y"]
        stages = [stage(name, inputs=[]) for name in names]
    ring = data.draw(st.lists(st.sampled_from(names), min_size=2, unique=True))
    inputs = {one["name"]: one["inputs"] for one in stages}
    for source, name in zip(ring, [*ring[1:], ring[0]], strict=True):
        if source not in inputs[name]:
            inputs[name].append(source)

    for problem in problems({"stages": stages}):
        chain = problem.split(": ")[1].split(" is a ring")[0].split(" -> ")
        assert chain[0] == chain[-1]
        assert all(source in inputs[name] for source, name in pairwise(chain))
