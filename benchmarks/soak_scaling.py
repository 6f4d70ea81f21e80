"""The soak's calls of `Pipeline.scale`: each ends, and what it says of the replicas is so."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from soak_leaks import marked_processes
from soak_plan import GROUP

from supervisor import StageDiedError, StartupError, UtilityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from soak_clients import Account

    from supervisor import Pipeline

SCALE_S = 60.0
"""How long a call may take before it counts as hanging: longer than each limit in the config."""

SHARE_S = 20.0


class ScaleCall:
    """A call on a thread of its own.

    Args:
        pipeline: what to scale.
        replicas: to how many.
    """

    def __init__(self, pipeline: Pipeline, replicas: int) -> None:
        self.error: BaseException | None = None
        self._pipeline, self._replicas = pipeline, replicas
        self._thread = threading.Thread(target=self._run, name="scaler", daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        """Wait for its end; False if it hangs."""
        self._thread.join(SCALE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._pipeline.scale(GROUP, self._replicas)
        except BaseException as exc:
            self.error = exc


def check_call(call: ScaleCall, pids: set[int], account: Account) -> None:
    """See that a call has ended in a way that it may: by itself, by a death of one of `pids`, or by the pipeline's end.

    Args:
        call: under way, or over.
        pids: who may have died.
        account: of the life.
    """
    account.counts["scaled"] += 1
    if not call.ended():
        account.counts["scale calls unanswered"] += 1
        account.notes.append("a call of scale hangs")
    elif isinstance(call.error, StartupError | StageDiedError):
        if call.error.report.pid not in pids:
            account.notes.append(f"scale was ended by the death of a stranger: {call.error!r}")
    elif call.error is not None and type(call.error) is not RuntimeError:
        account.notes.append(f"scale raised {call.error!r}")


def scale_at_ease(pipeline: Pipeline, replicas: int, account: Account, wait: Callable[[float], bool]) -> None:
    """Scale while nobody is struck: it works, all replicas get their share, and those before are gone with all theirs.

    Args:
        pipeline: under load.
        replicas: to how many.
        account: of the life.
        wait: waits so many seconds, and returns True at once if the user has asked to stop.
    """
    call = ScaleCall(pipeline, replicas)
    check_call(call, set(), account)
    if call.error is not None:
        account.notes.append(f"scale({replicas}) raised {call.error!r}")
        return
    numbers = [info.replica or 0 for info in pipeline.stages if info.name == GROUP]
    if len(numbers) != replicas:
        account.notes.append(f"after scale({replicas}) there are the replicas {numbers}")
    until = time.monotonic() + SHARE_S
    idle = set(numbers)
    before = {number: _added(pipeline, number) for number in numbers}
    while idle and time.monotonic() < until and not wait(0.005):
        idle = {number for number in idle if _added(pipeline, number) == before[number]}
    helpers = 0
    while time.monotonic() < until and not wait(0):
        helpers = sum(name.endswith(" sleep") for name in marked_processes())
        if helpers == len(pipeline.stages):
            return
    if time.monotonic() >= until:
        account.notes.append(
            f"after scale({replicas}): {idle} get no requests, {helpers} processes of engines are there"
        )


def _added(pipeline: Pipeline, replica: int) -> int:
    """How many requests a replica has been given so far."""
    with suppress(UtilityError):
        return int(pipeline.utility(GROUP, "added", replica=replica, timeout_s=SHARE_S))
    return -1
