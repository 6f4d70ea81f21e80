"""The one checker: what the library promises, looked for in whatever a run with a fault has shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness import until
from table import BOOT_POINTS

from supervisor import Outcome, Result, UtilityError

if TYPE_CHECKING:
    from scenario import Seen

    from supervisor import StageDeathReport

KILL_S = 2.0
"""What a stop may take beyond `shutdown_timeout_s`."""

SLACK_S = 10.0
"""What a machine that is busy with other things may add."""

DATA = {"held": ["x"], "r1": ["a", "b"]}


def check(seen: Seen) -> None:
    """Assert every promise; what the fault itself does is in the table."""
    _check_deaths(seen)
    _check_requests(seen)
    _check_late_request(seen)
    _check_utilities(seen)
    _check_strays(seen)
    _check_stop(seen)
    _check_nothing_left(seen)


def _report(seen: Seen) -> StageDeathReport | None:
    return seen.startup_error or seen.died


def _check_deaths(seen: Seen) -> None:
    """One report for an unexpected death, with its true cause, and none otherwise."""
    wanted = seen.cell.wanted
    death = wanted.death if seen.fired_in is not None else None
    report = _report(seen)
    told = [(event["stage"], event["pid"]) for event in seen.events.of("stage_died")]
    if death is None:
        assert (report, told) == (None, [])
        return
    assert report is not None, "no death was reported"
    assert seen.fired_in is not None
    assert [("faulty", seen.fired_in)] == told == [(report.stage, report.pid)]
    assert (wanted.at_start, not wanted.at_start) == (seen.startup_error is not None, seen.died is not None)
    assert (death.cause, death.phase) == (report.cause, report.phase)
    assert (death.exit_code, death.signal) == (report.exit_code, report.signal)
    assert death.error_type == report.error_type
    assert (report.replica, report.collateral_of) == (0, None)
    assert f"(pid {report.pid})" in report.render()
    if wanted.stalls:
        _check_explanation(seen.cell.point, seen.cell.action, report)


def _check_explanation(point: str, action: str, report: StageDeathReport) -> None:
    """The report of a stage that we ended ourselves names the limit, and shows where the stage was."""
    text = report.render()
    assert ("startup_timeout_s" if point in BOOT_POINTS else "step_timeout_s") in text
    if action == "sigstop":
        assert "stopped by a signal" in text
    elif point != "spawned":  # nothing of ours runs there that could tell
        assert "fault_actions.py" in text


def _check_requests(seen: Seen) -> None:
    """Every accepted request has exactly one outcome, and a failed one names the death."""
    for watched in seen.requests:
        assert len(watched.ends) == 1, f"{watched.handle.id}: {watched.ends}"
        outcome, report = watched.ends[0]
        assert (outcome, report) == (watched.handle.outcome, watched.handle.report)
        assert outcome in _outcomes_allowed(seen, watched.handle.id)
        assert report is (seen.died if outcome == "failed" else None)
        if outcome == "finished":
            assert DATA[watched.handle.id] == watched.data
    if seen.died is not None:
        lost = [watched.handle.id for watched in seen.requests if watched.handle.outcome == "failed"]
        lost += [event.id for event in seen.late if isinstance(event, Outcome) and event.outcome == "failed"]
        assert lost == seen.died.requests_lost
        assert len(seen.refusals) >= 2, "after the death more was accepted"
        assert all(report is seen.died for report in seen.refusals)


def _outcomes_allowed(seen: Seen, request_id: str) -> set[str]:
    allowed = {"aborted"} if request_id == "held" else {"finished"}
    if seen.died is not None:
        allowed |= {"failed"}
    if any(isinstance(answer, TimeoutError) for answer in seen.utilities):
        allowed |= {"aborted"}
    return allowed


def _check_late_request(seen: Seen) -> None:
    """`run` ends with an outcome for a request that was accepted, and raises after a death."""
    outcomes = [event.outcome for event in seen.late if isinstance(event, Outcome)]
    if seen.late_error is not None:
        assert seen.late_error.report is seen.died
        # Not accepted, or failed, or finished just before the death.
        assert outcomes in [[], ["failed"], ["finished"]]
    elif seen.late:
        assert outcomes == ["finished"]
        assert [event.data for event in seen.late if isinstance(event, Result)] == ["c"]


def _check_utilities(seen: Seen) -> None:
    """A call is answered, or fails with its stage, or alone."""
    wanted, fired = seen.cell.wanted, seen.fired_in is not None
    wrong = [answer for answer in seen.utilities if answer != [1]]
    if seen.cell.point == "utility" and fired and wanted.death is None and (wanted.utility_fails or wanted.stalls):
        assert [UtilityError if wanted.utility_fails else TimeoutError] == [type(answer) for answer in wrong]
    elif seen.died is None:
        assert wrong == []
    else:
        assert all(isinstance(answer, UtilityError) for answer in wrong)


def _check_strays(seen: Seen) -> None:
    """What strangers send is logged once a second at most, and once more at the end."""
    for name in ("handshake_dropped", "message_dropped", "output_dropped"):
        logged = Counter(event.get("stage") for event in seen.events.of(name))
        assert all(count <= seen.took_s + 2 for count in logged.values())
        assert not logged or seen.cell.action == "garbage"


def _check_stop(seen: Seen) -> None:
    """The stop is bounded, and tells of a stage that it had to kill or that ended badly."""
    wanted, fired = seen.cell.wanted, seen.fired_in is not None
    assert seen.close_s < seen.shutdown_timeout_s + KILL_S + SLACK_S
    killed = {event["stage"] for event in seen.events.of("stage_killed")}
    if wanted.killed:
        # With a timeout that short the other one may be late by itself.
        assert ("faulty" in killed) or not fired
    else:
        assert killed == set()
    bad = {event["stage"]: event["exit_code"] for event in seen.events.of("stage_stopped_badly")}
    assert ({"faulty": wanted.bad_end} if fired and wanted.bad_end is not None else {}) == bad
    assert seen.events.of("stage_unkillable") == seen.events.of("pipeline_failed") == []


def _check_nothing_left(seen: Seen) -> None:
    """Both stages are gone, already after the death, and so is whatever the engine has started."""
    assert sorted(seen.stages.values()) == ["faulty", "other"]
    assert (seen.outlived_death, seen.outlived_close) == ([], [])
    for pid in seen.grandchildren:
        until(lambda pid=pid: not _is_alive(pid), f"grandchild {pid} is gone")  # type: ignore[misc]


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
