"""The library's logger: structured events over standard logging, so that an application decides where they go.

Unconfigured structlog prints to standard output, which belongs to the application; so nothing here depends on
structlog's global configuration.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LOGGER_NAME = "supervisor"


def _to_stdlib(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Hand an event to logging: readable as a message, and whole for a handler that wants its fields."""
    fields = {key: value for key, value in event.items() if key != "event"}
    text = " ".join([str(event["event"]), *(f"{key}={value!r}" for key, value in fields.items())])
    return (text.replace("%", "%%"),), {"extra": {"event_dict": dict(event)}}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(LOGGER_NAME),
    processors=[structlog.stdlib.filter_by_level, _to_stdlib],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
