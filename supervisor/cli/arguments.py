"""The command's arguments: what they may be, and their meaning (pure)."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stage.injection import ACTIONS
from stage.protocol import Injection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.config import PipelineConfig

LOG_LEVELS = ("debug", "info", "warning", "error")
_INJECT_FORM = "STAGE[/REPLICA]:ACTION@WHEN"
_INJECT = re.compile(r"(?P<stage>[^/:@]+)(/(?P<replica>[0-9]{1,6}))?:(?P<action>[^:@]+)@(?P<when>[^@]+)")
_WHEN = re.compile(r"step=0*(?P<step>[1-9][0-9]{0,15})|(?P<seconds>[0-9]{1,8}(\.[0-9]*)?|\.[0-9]+)s")
_EXIT_STATUS = """\
exit status:
  0      every request finished
  1      some request failed, the pipeline lived
  2      bad usage, config or input
  3      a death ended the pipeline, or a stage did not start
  128+n  ended by signal n; a second SIGINT or SIGTERM makes the stop immediate
  141    the reader of standard output has gone
"""


class UsageError(Exception):
    """The arguments do not make sense; the text says which ones would."""


class Arguments(argparse.Namespace):
    """What the command line says."""

    config: Path
    input: str | None
    output: str
    check: bool
    serve: bool
    log_format: str
    log_level: str
    report_dir: Path | None
    inject: list[str]


def parse_arguments(argv: Sequence[str] | None) -> Arguments:
    """Parse a command line.

    Raises:
        SystemExit: it cannot be parsed, or asks for help only.
    """
    parser = argparse.ArgumentParser(
        description="Run each stage of an inference pipeline in a process of its own.",
        epilog=_EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", required=True, type=Path, metavar="FILE", help="the pipeline, a YAML file")
    add("--input", metavar="FILE.jsonl|-", help='requests, a line each: {"id": "r1", "data": …}; - is standard input')
    add("--output", default="-", metavar="FILE.jsonl|-", help="where results go (default: -, standard output)")
    add("--check", action="store_true", help="check config and input and import each engine, but run nothing")
    add("--serve", action="store_true", help="stay up when the input is done, until SIGINT or SIGTERM")
    add("--log-format", choices=("console", "json"), default="console", help="of the logs on standard error")
    add("--log-level", type=str.lower, choices=LOG_LEVELS, default="info", help="default: info")
    add("--report-dir", type=Path, metavar="DIR", help="where a JSON file for each death goes")
    help_text = f"act a death out: ACTION is one of {', '.join(ACTIONS)}, WHEN is seconds after READY, as 2s, or step=N"
    add("--inject", action="append", default=[], metavar=_INJECT_FORM, help=help_text)
    return parser.parse_args(argv, namespace=Arguments())


def parse_injections(texts: Iterable[str], config: PipelineConfig) -> dict[str, Injection]:
    """Turn every `--inject` into what a `Pipeline` takes.

    Raises:
        UsageError: one of them cannot be parsed, or names no stage or action that there is.
    """
    replicas = {stage.name: stage.replicas for stage in config.stages}
    injections: dict[str, Injection] = {}
    for text in texts:
        target, injection = _parse_injection(text, replicas)
        if target in injections:
            raise UsageError(f"--inject {text!r}: {target} has another fault already, and can act out one only")
        injections[target] = injection
    return injections


def _parse_injection(text: str, replicas: dict[str, int]) -> tuple[str, Injection]:
    found = _INJECT.fullmatch(text)
    if found is None:
        raise UsageError(f"--inject {text!r}: wanted {_INJECT_FORM}, {_choices(replicas)}")
    stage, replica, action = found["stage"], int(found["replica"] or 0), found["action"]
    if stage not in replicas:
        raise UsageError(f"--inject {text!r}: there is no stage {stage!r}, {_choices(replicas)}")
    if replica >= replicas[stage]:
        raise UsageError(f"--inject {text!r}: stage {stage!r} has the replicas 0 to {replicas[stage] - 1} only")
    if action not in ACTIONS:
        raise UsageError(f"--inject {text!r}: there is no action {action!r}, {_choices(replicas)}")
    return f"{stage}/{replica}", _parse_when(text, action, found["when"])


def _parse_when(text: str, action: str, when: str) -> Injection:
    found = _WHEN.fullmatch(when)
    if found is None:
        raise UsageError(
            f"--inject {text!r}: WHEN is seconds after READY, as 2s or 0.5s, or step=N from 1 on, not {when!r}"
        )
    if found["step"] is not None:
        return Injection(action, step=int(found["step"]))
    return Injection(action, after_s=float(found["seconds"]))


def _choices(replicas: dict[str, int]) -> str:
    return f"where ACTION is one of {', '.join(ACTIONS)} and STAGE one of {', '.join(replicas)}"
