"""The exceptions that users see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.report import StageDeathReport


class StageDiedError(Exception):
    """A stage has died and the pipeline with it.

    Attributes:
        report: the death that ended the pipeline, the cause of those that followed.
    """

    def __init__(self, report: StageDeathReport) -> None:
        super().__init__(report.render())
        self.report = report


class StartupError(Exception):
    """A stage did not become ready; its siblings have been taken down, unless it was to join a stage that runs.

    Attributes:
        report: what is known of it, with the stage's own traceback.
    """

    def __init__(self, report: StageDeathReport) -> None:
        super().__init__(report.render())
        self.report = report


class SpawnError(StartupError):
    """A stage process could not even be started, for lack of a resource."""


class RequestFailedError(Exception):
    """A request failed.

    Attributes:
        request_id: the user's id.
        report: the death that caused it, or None.
    """

    def __init__(self, request_id: str, error: str, report: StageDeathReport | None) -> None:
        super().__init__(f"request {request_id!r} failed: {error}")
        self.request_id = request_id
        self.report = report


class RequestAbortedError(Exception):
    """A request was aborted before it had finished."""


class UtilityError(Exception):
    """A utility call was answered by an exception, or its process has died, left its stage, or not joined it yet."""


class StopRequestedError(Exception):
    """The user asked to stop before the pipeline was ready."""
