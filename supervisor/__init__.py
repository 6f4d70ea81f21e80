"""Supervise a pipeline of stage processes: start, route, watch, report, stop."""

from supervisor.config import ConfigError, PipelineConfig
from supervisor.errors import (
    RequestAbortedError,
    RequestFailedError,
    SpawnError,
    StageDiedError,
    StartupError,
    StopRequestedError,
    UtilityError,
)
from supervisor.handle import Outcome, Result
from supervisor.manager import StageProcManager
from supervisor.pipeline import Pipeline
from supervisor.report import StageDeathReport
from supervisor.run import Request

__all__ = [
    "ConfigError",
    "Outcome",
    "Pipeline",
    "PipelineConfig",
    "Request",
    "RequestAbortedError",
    "RequestFailedError",
    "Result",
    "SpawnError",
    "StageDeathReport",
    "StageDiedError",
    "StageProcManager",
    "StartupError",
    "StopRequestedError",
    "UtilityError",
]
