"""What a person or a log collector sees on standard error: logs, messages, the live line, the summary."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import structlog

from supervisor.cli.progress import Progress
from supervisor.cli.screen import STANDARD_ERROR, Screen
from supervisor.log import LOGGER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from supervisor.handle import Outcome, Result

_LONGEST_TEXT = 300
_render_json = structlog.processors.JSONRenderer(default=repr, ensure_ascii=False)


class Console:
    """Set logging up for the command, and speak to its user; a context manager that undoes it.

    Args:
        log_format: `console`, for people; or `json`, where every line of standard error is a JSON object.
        log_level: of the records that are shown.
        is_typed: whether requests are typed on the terminal: a live line would end up among them.
    """

    def __init__(self, log_format: str, log_level: str, *, is_typed: bool) -> None:
        self._is_json = log_format == "json"
        self._level = logging.getLevelNamesMapping()[log_level.upper()]
        self._progress = Progress(time.monotonic())
        is_live = _is_terminal() and not self._is_json and not is_typed
        self.screen = Screen((lambda width: self._progress.live_line(time.monotonic(), width)) if is_live else None)
        render = _render_json if self._is_json else _console_renderer()
        self._handler = _Handler(self._level, render, self.screen, self._on_log)
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        self._ending.enter_context(self.screen)
        logger = logging.getLogger(LOGGER_NAME)
        self._ending.callback(logger.setLevel, logger.level)
        self._ending.callback(setattr, logger, "propagate", logger.propagate)
        self._ending.callback(logger.removeHandler, self._handler)
        # The live line wants to know the stages' states whatever is shown.
        logger.setLevel(min(self._level, logging.INFO))
        logger.propagate = False
        logger.addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def failed(self) -> int:
        """Requests that have failed."""
        return self._progress.failed

    def say(self, level: str, event: str, text: str, **fields: Any) -> None:
        """Tell the user something: as text, or as an event where logs are JSON."""
        if self._is_json:
            text = _render(_render_json, level, {"event": event, **fields, "text": text})
        self.screen.write(f"{text}\n")

    def on_event(self, event: Result | Outcome) -> None:
        """Count a result or an outcome."""
        self._progress.on_event(event)
        self.screen.change()

    def summarize(self) -> None:
        """Tell what was done."""
        if self._level <= logging.INFO:
            now = time.monotonic()
            self.say("info", "summary", self._progress.summary(now), **self._progress.fields(now))

    def _on_log(self, event: MutableMapping[str, Any]) -> None:
        if self._progress.on_log(event, time.monotonic()):
            self.screen.change()


class _Handler(logging.Handler):
    """Render the library's events; the level is checked here, since the live line wants events that are not shown."""

    def __init__(
        self,
        level: int,
        render: Callable[[Any, str, MutableMapping[str, Any]], Any],
        screen: Screen,
        on_log: Callable[[MutableMapping[str, Any]], None],
    ) -> None:
        super().__init__()
        self._shown_from = level
        self._render_event = render
        self._screen = screen
        self._on_log = on_log

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event_dict", None) or {"event": record.getMessage()}
        self._on_log(event)
        if record.levelno >= self._shown_from:
            self._screen.write(_render(self._render_event, record.levelname.lower(), event) + "\n")


def _render(
    render: Callable[[Any, str, MutableMapping[str, Any]], Any], level: str, event: MutableMapping[str, Any]
) -> str:
    stamped = {"timestamp": _timestamp(time.time()), "level": level, "event": event["event"], **event}
    return str(render(None, level, stamped))


def _timestamp(now: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"


def _console_renderer() -> Callable[[Any, str, MutableMapping[str, Any]], Any]:
    colors = _is_terminal() and "NO_COLOR" not in os.environ
    render = structlog.dev.ConsoleRenderer(16, colors=colors, sort_keys=False)

    def render_short(logger: Any, name: str, event: MutableMapping[str, Any]) -> Any:
        return render(logger, name, {key: _shorten(value) for key, value in event.items()})

    return render_short


def _is_terminal() -> bool:
    """True if standard error is a terminal that understands escape sequences."""
    return os.isatty(STANDARD_ERROR) and os.environ.get("TERM") != "dumb"


def _shorten(value: Any) -> Any:
    """Cut what would fill the screen, such as a long error message; the report has all of it."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}…"
    return value
