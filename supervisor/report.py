"""The report of a stage's death (pure): evidence in, fields and text out."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stage.black_box import BlackBoxRecord

Cause = Literal["fatal", "exit", "signal", "startup_timeout", "hung", "io_thread"]
Role = Literal["stage", "coordinator"]
_SHOWN_REQUESTS = 10
_SHOWN_CHARACTERS = 600


@dataclass(frozen=True)
class StageDeathReport:
    """What is known of the unexpected end of a stage process.

    Args:
        stage: the stage's name.
        replica: its number; None for a coordinator.
        pid: its process id.
        phase: spawned, hello, import, init, io, ready or stopping.
        exit_code: as `multiprocessing` gives it, -n for signal n; None where it is unknown.
        signal: the name of the signal that killed it, such as `SIGKILL`, or None.
        cause: what began it.
        error_type: class name of the exception behind it, or None.
        error_message: its text, or None.
        traceback: its traceback with all its causes, or None.
        oom_killed: whether the kernel killed it for lack of memory; None without evidence.
        requests_lost: the users' ids of the requests that failed because of it.
        steps: engine steps begun.
        uptime_s: seconds from its start to its end.
        log_tail: last lines of its standard output and standard error.
        log_path: the file they come from.
        collateral_of: `stage/replica` of the death that caused this one, or None.
        role: `stage`, or `coordinator` of a stage's replicas.
    """

    stage: str
    replica: int | None
    pid: int
    phase: str
    exit_code: int | None
    signal: str | None
    cause: Cause
    error_type: str | None
    error_message: str | None
    traceback: str | None
    oom_killed: bool | None
    requests_lost: list[str]
    steps: int
    uptime_s: float
    log_tail: list[str]
    log_path: str | None
    collateral_of: str | None
    role: Role = "stage"

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)

    def summary(self) -> str:
        """One sentence: who died, when, and of what."""
        if not self.pid:
            return f"{self._subject()} could not be started: {_one_line(self._error())}"
        who = f"{self._subject()} (pid {self.pid})"
        verb = "did not start" if self.phase not in {"ready", "stopping"} else "died"
        return f"{who} {verb}, phase {self.phase.upper()}: {_one_line(self._what())}"

    def render(self) -> str:
        """The text that a person reads first."""
        lines = [self.summary()]
        lost = self.requests_lost
        if lost:
            more = f" and {len(lost) - _SHOWN_REQUESTS} more" if len(lost) > _SHOWN_REQUESTS else ""
            lines.append(f"  {_count(len(lost), 'request')} lost: {', '.join(lost[:_SHOWN_REQUESTS])}{more}")
        lines.append(f"  after {self.uptime_s:.1f} s and {_count(self.steps, 'step')}")
        if self.collateral_of:
            lines.append(f"  caused by the death of {self.collateral_of}")
        if self.traceback:
            ours = self.cause in {"hung", "startup_timeout"}
            lines += [
                "  where its threads were:" if ours else "  its traceback:",
                *_indent(self.traceback.rstrip().splitlines()),
            ]
        if self.log_tail:
            lines += ["  its last output:", *_indent(self.log_tail)]
        if self.log_path:
            lines.append(f"  log: {self.log_path}")
        return "\n".join(lines)

    def _subject(self) -> str:
        if self.role == "coordinator":
            return f"the coordinator of stage {self.stage!r}"
        return f"stage {self.stage!r} replica {self.replica}"

    def _what(self) -> str:
        match self.cause:
            case "startup_timeout" | "hung":
                return f"{self.error_message or self.cause}, and was killed"
            case "io_thread":
                return f"an IO thread died: {self._error()}"
            case "fatal":
                return self._error()
            case _:
                return self._how_it_ended()

    def _how_it_ended(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal} ({self._sender()})"
        if self.exit_code is None:
            return "it ended, exit status unknown (another part of this program has reaped it)"
        if self.error_message is not None:
            return f"{self.error_message}, and exited with status {self.exit_code}"
        return f"it exited with status {self.exit_code}, though nobody asked it to stop"

    def _error(self) -> str:
        return ": ".join(part for part in (self.error_type, self.error_message) if part) or "it said no more"

    def _sender(self) -> str:
        if self.signal in {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"}:
            return "a crash in native code"
        if self.oom_killed:
            return "by the kernel: out of memory"
        if self.oom_killed is None:
            return "sender unknown"
        return "sender unknown; no oom_kill recorded"


def _one_line(text: str) -> str:
    """Shorten a text of any kind to what a log line, or a terminal, can take."""
    text = " ".join(text[: 4 * _SHOWN_CHARACTERS].split())
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class Evidence:
    """What the shell found out about a death.

    Args:
        stage: the stage's name.
        replica: its number; None for a coordinator.
        pid: its process id.
        exit_code: None where it is unknown.
        box: its black box.
        said: error text of its `fatal` message, or what our verdict rests on, or None.
        verdict: `startup_timeout` or `hung` where the supervisor itself ended it, else None.
        stacks: the stacks of all its threads before that, or None.
        oom_kills: how many processes of its cgroup the kernel killed for lack of memory meanwhile; None if unknown.
        uptime_s: seconds from its start to its end.
        log_tail: the last lines of its log.
        log_path: the log's path.
    """

    stage: str
    replica: int | None
    pid: int
    exit_code: int | None
    box: BlackBoxRecord
    said: str | None
    verdict: Cause | None
    stacks: str | None
    oom_kills: int | None
    uptime_s: float
    log_tail: list[str]
    log_path: str


def build_report(evidence: Evidence, requests_lost: list[str], collateral_of: str | None) -> StageDeathReport:
    """Name the first cause: our own verdict, then the error that the stage recorded, then how it ended."""
    error = evidence.box.error
    exit_code = evidence.exit_code
    died_of_signal = exit_code is not None and exit_code < 0
    cause: Cause
    if evidence.verdict is not None:
        cause = evidence.verdict
    elif error is not None:
        cause = "io_thread" if error.cause == "io_thread" else "fatal"
    elif evidence.said is not None:
        cause = "fatal"
    else:
        cause = "signal" if died_of_signal else "exit"
    error_type, message, traceback = None, evidence.said, None
    if evidence.box.signal and message is None:
        message = f"it was asked to end by a {_signal_name(evidence.box.signal)} that the supervisor did not send"
    if evidence.verdict is not None:
        traceback = evidence.stacks
    elif error is not None:
        error_type, message, traceback = error.error_type, error.message, error.traceback
    return StageDeathReport(
        stage=evidence.stage,
        replica=evidence.replica,
        pid=evidence.pid,
        phase=error.phase if error is not None and evidence.verdict is None else evidence.box.phase,
        exit_code=exit_code,
        signal=_signal_name(-exit_code) if exit_code is not None and exit_code < 0 else None,
        cause=cause,
        error_type=error_type,
        error_message=message,
        traceback=traceback,
        oom_killed=_oom_killed(evidence),
        requests_lost=requests_lost,
        steps=evidence.box.steps,
        uptime_s=round(evidence.uptime_s, 3),
        log_tail=evidence.log_tail,
        log_path=evidence.log_path,
        collateral_of=collateral_of,
        role=role_of(evidence.replica),
    )


def role_of(replica: int | None) -> Role:
    """What a process of a stage is: the coordinator is the one without a number."""
    return "coordinator" if replica is None else "stage"


def _oom_killed(evidence: Evidence) -> bool | None:
    """Tell only what is known: the killer's signal is SIGKILL, and the kernel counts its victims."""
    if evidence.exit_code is None:
        return None
    if evidence.exit_code != -signal.SIGKILL or evidence.verdict is not None:
        return False
    return None if evidence.oom_kills is None else evidence.oom_kills > 0


def spawn_failure(stage: str, replica: int | None, exc: OSError) -> StageDeathReport:
    """The report of a process that never was: its pid is 0."""
    return StageDeathReport(
        stage=stage,
        replica=replica,
        pid=0,
        phase="spawned",
        exit_code=None,
        signal=None,
        cause="fatal",
        error_type=type(exc).__name__,
        error_message=str(exc),
        traceback=None,
        oom_killed=None,
        requests_lost=[],
        steps=0,
        uptime_s=0.0,
        log_tail=[],
        log_path=None,
        collateral_of=None,
        role=role_of(replica),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
