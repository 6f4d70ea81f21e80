"""Bugs to seed into the product, one at a time: the simulation must find each, or it is not worth its time."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from stage import io_threads
from stage.busy_loop import BusyLoop
from stage.protocol import Abort
from stage.recorded_engine import WatchedEngine
from stage.sockets import readable
from supervisor import autopsy, report, reporter, undertaker
from supervisor.calls import Calls
from supervisor.ledger import Ledger
from supervisor.monitor import Monitor
from supervisor.outbox import Outbox
from supervisor.switchboard import Switchboard

if TYPE_CHECKING:
    import pytest


def believe_the_end_before_draining(patch: pytest.MonkeyPatch) -> None:
    """A death is told before all that the stage had sent has been read."""
    patch.setattr(Monitor, "drain", lambda *_: None)


def drain_only_what_lies_ready(patch: pytest.MonkeyPatch) -> None:
    """The drain takes what can be read at once for all that there will be."""

    def buggy(self: Monitor, proc: Any) -> None:
        pull = self._inlets[proc].socket
        while readable(pull):
            self._read(pull, proc)

    patch.setattr(Monitor, "drain", buggy)


def drain_one_of_several(patch: pytest.MonkeyPatch) -> None:
    """Of several stages that are known to be dead only the first is heard out before the requests fail."""
    drain = Monitor.drain

    def buggy(self: Monitor, proc: Any) -> None:
        if vars(self).setdefault("drained", proc) is proc:
            drain(self, proc)

    patch.setattr(Monitor, "drain", buggy)


def keep_tasks_of_the_aborted(patch: pytest.MonkeyPatch) -> None:
    """The ledger forgets to remove the tasks of a request that is ended."""
    close = Ledger.close

    def buggy(self: Ledger, *about: Any) -> None:
        tasks = dict(self._tasks)
        close(self, *about)
        self._tasks.update(tasks)

    patch.setattr(Ledger, "close", buggy)


def report_after_the_requests_ended(patch: pytest.MonkeyPatch) -> None:
    """The report is built when no request is alive any more."""
    lose = Switchboard.lose
    patch.setattr(Switchboard, "lose", lambda self, report_for: lose(self, lambda _: report_for([])))


def tell_of_the_death_late(patch: pytest.MonkeyPatch) -> None:
    """`died` is set only after the requests have ended."""
    end_all = Switchboard._end_all

    def buggy(self: Switchboard, *about: Any) -> None:
        died, self.died = self.died, None
        end_all(self, *about)
        self.died = died

    patch.setattr(Switchboard, "_end_all", buggy)


def accept_after_a_death(patch: pytest.MonkeyPatch) -> None:
    """The switchboard goes on to take requests."""
    end_all = Switchboard._end_all

    def buggy(self: Switchboard, *about: Any) -> None:
        end_all(self, *about)
        self._refusal = None

    patch.setattr(Switchboard, "_end_all", buggy)


def forget_the_calls(patch: pytest.MonkeyPatch) -> None:
    """Utility calls that wait are not told of a death."""
    end_all = Switchboard._end_all

    def buggy(self: Switchboard, *about: Any) -> None:
        calls, self._calls = self._calls, Calls(())
        end_all(self, *about)
        self._calls = calls

    patch.setattr(Switchboard, "_end_all", buggy)


def send_aborts_first(patch: pytest.MonkeyPatch) -> None:
    """An abort overtakes the request that waits beside it in the outbox."""
    put = Outbox._put

    def buggy(self: Outbox, key: bytes, message: Any, frames: Any) -> None:
        put(self, key, message, frames)
        messages = self._waiting[key][0]
        if isinstance(message, Abort):
            messages.insert(0, messages.pop())

    patch.setattr(Outbox, "_put", buggy)


def send_no_aborts(patch: pytest.MonkeyPatch) -> None:
    """No stage is told of an abort."""
    patch.setattr(Outbox, "abort", lambda *_: None)


def let_a_burst_lie(patch: pytest.MonkeyPatch) -> None:
    """Nobody wakes the thread that polls when a message is left to it."""
    patch.setattr(Outbox, "ring", lambda _: None)


def finish_with_the_first_task(patch: pytest.MonkeyPatch) -> None:
    """A request ends when one stage is done with it, though others are not."""
    finish = Ledger._finish

    def buggy(self: Ledger, engine_id: str, task: Any) -> None:
        finish(self, engine_id, task)
        self.close(task.request, "finished")

    patch.setattr(Ledger, "_finish", buggy)


def count_an_end_as_an_output(patch: pytest.MonkeyPatch) -> None:
    """An end without data moves the index of the output before it."""
    end = Ledger.end

    def buggy(self: Ledger, engine_id: str) -> None:
        if engine_id in self._tasks:
            self._tasks[engine_id].outputs += 1
        end(self, engine_id)

    patch.setattr(Ledger, "end", buggy)


def know_requests_by_id_alone(patch: pytest.MonkeyPatch) -> None:
    """An abort of a request that has ended hits a new one of the same id."""
    close = Ledger.close

    def buggy(self: Ledger, request: Any, *about: Any) -> None:
        close(self, self.requests.get(request.id, request), *about)

    patch.setattr(Ledger, "close", buggy)


def blame_nobody(patch: pytest.MonkeyPatch) -> None:
    """Later deaths are reported as if each had come by itself."""
    build = report.build_report
    patch.setattr(reporter, "build_report", lambda evidence, lost, *_, **__: build(evidence, lost, None))


def look_once_for_further_deaths(patch: pytest.MonkeyPatch) -> None:
    """Who dies while another death is examined gets no report."""
    poll, has_failed = Monitor.poll, autopsy.has_failed

    def buggy_poll(self: Monitor, timeout_s: float | None) -> bool:
        if timeout_s == 0 and self.dying:
            if "looked" in vars(self):
                return True
            vars(self)["looked"] = True
        return poll(self, timeout_s)

    def buggy_has_failed(proc: Any) -> bool:
        return bool(vars(proc).setdefault("looked", has_failed(proc)))

    patch.setattr(Monitor, "poll", buggy_poll)
    patch.setattr(undertaker, "has_failed", buggy_has_failed)


def leave_the_hang_watch_asleep(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at a stage that was at rest when a message was sent to it."""

    def buggy(_: Outbox, watch: Any, messages: int) -> None:
        watch.sent += messages

    patch.setattr(Outbox, "_count", buggy)


def count_what_nobody_sent(patch: pytest.MonkeyPatch) -> None:
    """An abort that a stage's own output thread asks for counts as a message that was handled."""
    begin = WatchedEngine._begin
    patch.setattr(WatchedEngine, "_begin", lambda self, call, **_: begin(self, call))


def step_before_all_is_applied(patch: pytest.MonkeyPatch) -> None:
    """The busy loop takes one message before each step, instead of all."""

    def buggy(self: BusyLoop) -> None:
        try:
            message = self._input_queue.get_nowait()
        except queue.Empty:
            return
        self._handle(message)

    patch.setattr(BusyLoop, "_drain", buggy)


def lose_the_frames_of_replies(patch: pytest.MonkeyPatch) -> None:
    """A large answer of a utility is announced, and its frames are not sent: who reads on takes those of others."""
    encode = io_threads._encode_reply
    patch.setattr(io_threads, "_encode_reply", lambda emit, _, max_bytes: encode(emit, [], max_bytes))


BUGS = (
    believe_the_end_before_draining,
    drain_only_what_lies_ready,
    drain_one_of_several,
    keep_tasks_of_the_aborted,
    report_after_the_requests_ended,
    tell_of_the_death_late,
    accept_after_a_death,
    forget_the_calls,
    send_aborts_first,
    send_no_aborts,
    let_a_burst_lie,
    finish_with_the_first_task,
    count_an_end_as_an_output,
    know_requests_by_id_alone,
    blame_nobody,
    look_once_for_further_deaths,
    leave_the_hang_watch_asleep,
    count_what_nobody_sent,
    step_before_all_is_applied,
    lose_the_frames_of_replies,
)
