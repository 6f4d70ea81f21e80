"""`Pipeline`: what users hold. Requests in, results out; the parts behind it live in `core`."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from stage.codec import check_size, encode
from supervisor.config import PipelineConfig
from supervisor.core import Core
from supervisor.errors import UtilityError
from supervisor.handle import Handle, open_payload
from supervisor.ledger import check_id
from supervisor.log import log
from supervisor.run import run_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stage.protocol import Injection
    from supervisor.handle import Outcome, Result
    from supervisor.report import Role, StageDeathReport
    from supervisor.run import Request


@dataclass(frozen=True)
class ProcessInfo:
    """A process of the pipeline at this moment.

    Args:
        name: the stage's name.
        replica: its number, from 0; None for a coordinator.
        pid: its process id.
        state: spawned, starting, ready, stopping or dead.
        role: `stage`, or `coordinator` of a stage's replicas.
    """

    name: str
    replica: int | None
    pid: int
    state: str
    role: Role


class Pipeline:
    """Run the stages of a config; a context manager that returns when every stage is READY.

    Leaving the block aborts what is under way, stops the stages, and raises nothing for a death.

    Args:
        config: what to run.
        report_dir: where a JSON file for each death goes, or None.
        injections: faults for stages to act out, by `stage/replica`.
        stop_fd: a non-blocking eventfd that a signal handler writes to: requests then end as aborted, and a second
            write makes the stop immediate.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        report_dir: Path | None = None,
        injections: Mapping[str, Injection] | None = None,
        stop_fd: int | None = None,
    ) -> None:
        if not isinstance(config, PipelineConfig):
            raise TypeError(f"config must be a PipelineConfig, not {config!r:.100}: see PipelineConfig.from_yaml")
        self._config = config
        self._report_dir = report_dir
        self._injections = injections or {}
        self._stop_fd = stop_fd
        self._core_or_none: Core | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def start(self) -> None:
        """Start every stage and wait until all are READY.

        Raises:
            StartupError: a stage failed, died, or was not ready within `startup_timeout_s`; the others are down.
                `SpawnError`, one of it, if its process could not be started.
            StopRequestedError: `stop_fd` was written to meanwhile.
            RuntimeError: it has been started before.
        """
        if self._core_or_none is not None:
            raise RuntimeError("a pipeline starts once: make another one")
        began = time.monotonic()
        core = Core(self._config, self._report_dir, self._injections, self._stop_fd)
        self._core_or_none = core
        self._finalizer = weakref.finalize(self, _close_elsewhere, core)
        # At exit it is `atexit` that closes, on the main thread: no other one can be started any more.
        self._finalizer.atexit = False
        atexit.register(core.close)
        log.info("pipeline_ready", name=self._config.name, startup_s=round(time.monotonic() - began, 3))

    def close(self) -> None:
        """Abort what is under way and stop every stage, within `shutdown_timeout_s` and the time a kill takes."""
        if self._core_or_none is not None:
            self._core_or_none.close()
            atexit.unregister(self._core_or_none.close)
            if self._finalizer is not None:
                self._finalizer.detach()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, data: Any, request_id: str | None = None, *, session: str | None = None) -> Handle:
        """Send a request; wait while `max_in_flight` are under way.

        Args:
            data: bytes, text, numbers, lists, dicts and numpy arrays; large arrays are not copied, so they must not
                change until the request has ended.
            request_id: an id of no request that is alive; made up if None.
            session: in a stage whose balance is `sticky`, requests of one session go to the same replica; None for
                the id.

        Raises:
            StageDiedError: a stage has died.
            ValueError: a request of this id is alive, the id is empty or no valid Unicode, or the data is larger than
                `max_request_bytes` (TooLargeError).
            TypeError: the id or the session is no str, or the data cannot be sent (EncodeError).
            RuntimeError: the pipeline is not running.
        """
        core = self._core
        if request_id is None:
            request_id = core.switchboard.new_id()
        else:
            check_id(request_id)
        handle = Handle(request_id, core.switchboard, core.turns, session)
        payload = encode(data)
        max_bytes = self._config.max_request_bytes
        if payload.frames or len(payload.body) > max_bytes:  # seen here: a call costs more than all the rest
            check_size(payload, max_bytes, "the data")
        core.submit(handle, payload)
        return handle

    def run(self, requests: Iterable[Request]) -> Iterator[Result | Outcome]:
        """Submit `requests`, taken lazily, and yield results and outcomes as they come.

        Each request ends with one `Outcome`. If `requests` has a `close()`, it is called at the end.

        Raises:
            StageDiedError: a stage has died; each request under way has had its failed `Outcome` before.
        """
        return run_requests(self._core, requests)

    def utility(
        self, stage: str, name: str, args: Sequence[Any] = (), *, replica: int = 0, timeout_s: float = 5.0
    ) -> Any:
        """Call `engine.utility(name, args)` of a stage between its steps, and return its answer.

        Args:
            stage: the stage's name.
            name: what to call, as the engine knows it.
            args: its arguments, plain data as in `submit`.
            replica: which process of the stage, from 0.
            timeout_s: seconds to wait for the answer.

        Raises:
            UtilityError: the engine raised, or the process has died, has left its stage, or has yet to join it.
            TimeoutError: no answer within `timeout_s` seconds; the stage goes on.
            ValueError: there is no such stage, the name is no valid Unicode, or the arguments are larger than
                `max_request_bytes` (TooLargeError).
            TypeError: the name is no str, or an argument cannot be sent (EncodeError).
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a utility must be a str, not {name!r:.100}")
        name.encode()
        core = self._core
        label = f"{stage}/{replica}"
        known = [f"{info.name}/{info.replica}" for info in self.stages]
        if label not in known:
            raise ValueError(f"there is no stage process {label!r}: there are {', '.join(known)}")
        payload = encode(list(args))
        check_size(payload, self._config.max_request_bytes, "the list of arguments")
        call_id, call = core.switchboard.call(label.encode(), name, payload)
        try:
            answered = core.turns.wait(call, call.answered, time.monotonic() + timeout_s)
        finally:
            core.switchboard.forget_call(call_id)
        if not answered:
            raise TimeoutError(f"stage {label!r} has not answered utility {name!r} within {timeout_s} s (timeout_s)")
        if call.answer is None:
            raise UtilityError(f"utility {name!r} of stage {label!r}: {call.error}")
        return open_payload(call.answer)

    def scale(self, stage: str, replicas: int) -> None:
        """Let a stage have so many replicas, and return when it has.

        New ones join the running group. Those that leave, the last ones first, take no more requests and finish what
        they have, for `drain_timeout_s` at most; what they have not finished by then fails.

        Args:
            stage: the stage's name.
            replicas: how many it shall have, at least 1.

        Raises:
            StartupError: a new replica failed, died, or was not ready within `startup_timeout_s`; the others go on.
                `SpawnError`, one of it, if its process could not be started.
            ValueError: there is no such stage, it began with one replica and so has no coordinator, its replicas step
                together, or the number is no whole number of at least 1.
            StageDiedError: a stage has died.
            RuntimeError: the pipeline is not running.
        """
        core = self._core
        core.raise_refusal()
        known = {config.name: config for config in self._config.stages}
        if stage not in known:
            raise ValueError(f"there is no stage {stage!r}: there are {', '.join(known)}")
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise ValueError(f"replicas must be a whole number of at least 1, not {replicas!r:.100}")
        if known[stage].replicas < 2:
            raise ValueError(f"stage {stage!r} began with one replica, without a coordinator: set its replicas to 2")
        if known[stage].lockstep:
            raise ValueError(f"stage {stage!r} has lockstep set: its engines form a group of a fixed size")
        core.scaling.scale(known[stage], replicas)
        core.raise_refusal()

    @property
    def stages(self) -> list[ProcessInfo]:
        """Every stage process."""
        return [info for info in self.processes if info.role == "stage"]

    @property
    def processes(self) -> list[ProcessInfo]:
        """Every process: those of the stages, and the coordinators of stages with several replicas."""
        procs = [proc for proc in self._core.manager.procs if not proc.has_left]
        return [ProcessInfo(proc.stage, proc.replica, proc.pid, proc.state.value, proc.role) for proc in procs]

    @property
    def died(self) -> StageDeathReport | None:
        """The death that ended the pipeline, or None."""
        return self._core.switchboard.died

    @property
    def deaths(self) -> tuple[StageDeathReport, ...]:
        """Every death so far, also of replicas that their stages have gone on without (`on_death: degrade`)."""
        return tuple(self._core.reporter.deaths)

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._core.switchboard.in_flight

    @property
    def _core(self) -> Core:
        if self._core_or_none is None:
            raise RuntimeError("the pipeline has not been started: use it as `with Pipeline(config) as pipeline:`")
        return self._core_or_none


def _close_elsewhere(core: Core) -> None:
    """Close for a pipeline that was dropped: on a thread, since the collector may run in the middle of anything."""
    atexit.unregister(core.close)
    try:
        threading.Thread(target=core.close, name="pipeline-close").start()
    except RuntimeError:  # the interpreter is about to end: nothing else runs any more
        core.close()
