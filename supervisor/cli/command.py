"""The command from its arguments to its exit status; `run_pipeline.py` has put the signal handlers up before."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from supervisor.cli.arguments import UsageError, parse_arguments, parse_injections
from supervisor.cli.console import Console
from supervisor.cli.import_check import check_engines
from supervisor.cli.inputs import STANDARD_INPUT, find_input_problem, open_source
from supervisor.cli.jsonl import to_line
from supervisor.cli.line_source import InputError
from supervisor.cli.output import STANDARD_OUTPUT, OutputError, ReaderGoneError, open_output
from supervisor.config import ConfigError, PipelineConfig
from supervisor.errors import StageDiedError, StartupError, StopRequestedError
from supervisor.handle import Outcome
from supervisor.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from stage.protocol import Injection
    from supervisor.cli.arguments import Arguments
    from supervisor.cli.inputs import Source
    from supervisor.cli.output import Output, Stop
    from supervisor.handle import Result
    from supervisor.report import StageDeathReport

FINISHED, FAILED, MISUSED, DIED, READER_GONE = 0, 1, 2, 3, 141


def execute(argv: Sequence[str] | None, stop: Stop) -> int:
    """Do what the arguments say and return the exit status.

    Args:
        argv: the arguments; those of the process if None.
        stop: what signals leave behind.
    """
    try:
        arguments = parse_arguments(argv)
    except SystemExit as exc:
        return _after_parser(exc)
    is_typed = arguments.input == STANDARD_INPUT and os.isatty(0)
    with Console(arguments.log_format, arguments.log_level, is_typed=is_typed) as console:
        try:
            return _execute(arguments, console, stop)
        except ConfigError as exc:
            problems = "\n".join(f"  {problem}" for problem in exc.problems)
            console.say("error", "bad_config", f"{arguments.config} is no good:\n{problems}", problems=exc.problems)
            return MISUSED
        except (UsageError, InputError) as exc:
            console.say("error", "bad_usage", f"error: {exc}")
            return MISUSED
        except Exception as exc:
            if arguments.log_level == "debug":
                raise
            text = f"error: {type(exc).__name__}: {exc} (a bug; its traceback comes with --log-level debug)"
            console.say("error", "bug", text)
            return FAILED


def _after_parser(exc: SystemExit) -> int:
    """Help may go to a reader who has left."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return exc.code if isinstance(exc.code, int) else MISUSED


def _execute(arguments: Arguments, console: Console, stop: Stop) -> int:
    with stop.raising():  # a FIFO, or the import of an engine, may take its time
        config = PipelineConfig.from_yaml(arguments.config)
        injections = parse_injections(arguments.inject, config)
        if arguments.check:
            return _check(arguments, config, console)
        _prepare_report_dir(arguments.report_dir)
        source = open_source(arguments.input, config, serve=arguments.serve)
    with closing(source):
        _protect_files(arguments, config)
        try:
            output = open_output(arguments.output, stop)
        except OutputError as exc:
            raise UsageError(str(exc)) from exc
        with output:
            return _Job(config, arguments.report_dir, injections, output, console, stop).run(source)


def _check(arguments: Arguments, config: PipelineConfig, console: Console) -> int:
    problems = check_engines(config, config.startup_timeout_s)
    input_problem = find_input_problem(arguments.input, config)
    if input_problem is not None:
        problems += (input_problem,)
    if problems:
        raise ConfigError(problems)
    stages = ", ".join(stage.name for stage in config.stages)
    console.say("info", "check_ok", f"ok: {arguments.config}: every engine can be imported ({stages})")
    return FINISHED


def _prepare_report_dir(directory: Path | None) -> None:
    """Find out now, not at a death."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--report-dir {str(directory)!r}: cannot be made ({exc.strerror})") from exc
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"--report-dir {str(directory)!r}: nothing can be written there")


def _protect_files(arguments: Arguments, config: PipelineConfig) -> None:
    """Do not empty a file that is yet to be read, nor the config."""
    output = Path(arguments.output)
    if arguments.output == STANDARD_OUTPUT or not output.is_file():
        return
    source = arguments.input or (config.input and config.input.jsonl)
    for path in (arguments.config, Path(source or STANDARD_INPUT)):
        if path.is_file() and path.samefile(output):
            raise UsageError(f"--output {arguments.output!r}: is the same file as {str(path)!r}, which is read")


class _Job:
    """One run of a pipeline.

    Args:
        config: what to run.
        report_dir: where a JSON file for each death goes, or None.
        injections: faults for stages to act out.
        output: where results go.
        console: what the user sees.
        stop: what signals leave behind.
    """

    def __init__(
        self,
        config: PipelineConfig,
        report_dir: Path | None,
        injections: dict[str, Injection],
        output: Output,
        console: Console,
        stop: Stop,
    ) -> None:
        self._output = output
        self._console = console
        self._stop = stop
        self._pipeline = Pipeline(config, report_dir=report_dir, injections=injections, stop_fd=stop.fd)
        self._report: StageDeathReport | None = None
        self._told = 0
        self._broken = False
        """Whether something that is no stage has failed."""

    def run(self, source: Source) -> int:
        """Run everything and return the exit status."""
        with self._output.watching_reader():
            try:
                self._start_and_stop(source)
            except StopRequestedError:
                pass
            except StartupError as exc:
                self._tell_death(exc.report)
            except OSError as exc:
                self._console.say("error", "not_started", f"error: the pipeline cannot be started: {exc}")
                return DIED
        return self._status()

    def _start_and_stop(self, source: Source) -> None:
        self._pipeline.start()
        with closing(self._pipeline):
            try:
                # Not before: a stage that does not start must not cost the results of the last run.
                self._output.begin()
                self._pass_on(source)
            except ReaderGoneError:
                pass
            except OutputError as exc:
                self._broken = True
                self._console.say("error", "output_failed", f"error: {exc}")
            except StageDiedError as exc:
                self._tell_death(exc.report)
        # A stage may have died after the last request had ended.
        if self._report is None and self._pipeline.died is not None:
            self._tell_death(self._pipeline.died)
        self._tell_losses()
        self._console.summarize()

    def _pass_on(self, source: Source) -> None:
        # It is a generator: closed at once, it leaves no thread that still reads.
        with closing(cast("Generator[Result | Outcome, None, None]", self._pipeline.run(source))) as events:
            for event in events:
                self._write(to_line(event))
                self._console.on_event(event)
                self._tell_losses()
                if isinstance(event, Outcome):
                    source.ended(event.id)

    def _tell_losses(self) -> None:
        """Tell of the deaths that the pipeline has gone on after."""
        deaths = self._pipeline.deaths
        for report in deaths[self._told :]:
            if report.collateral_of is None and report is not self._pipeline.died:
                self._console.say("error", "death_report", report.render())
        self._told = len(deaths)

    def _write(self, line: bytes) -> None:
        if self._output.is_terminal:
            with self._console.screen.aside():
                self._output.write(line)
        else:
            self._output.write(line)

    def _tell_death(self, report: StageDeathReport) -> None:
        """Tell at once, before the others are stopped."""
        self._report = report
        self._console.say("error", "death_report", report.render())

    def _status(self) -> int:
        if self._report is not None:
            return DIED
        if self._stop.signum is not None:
            return 128 + self._stop.signum
        if self._output.reader_gone:
            return READER_GONE
        return FAILED if self._broken or self._console.failed else FINISHED
