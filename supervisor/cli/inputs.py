"""Where the command's requests come from: a stream of JSON lines, files that match a pattern, or nothing.

Every source is iterated over on a thread of its own, and has a `close()` for other threads, which ends the iteration
at once, also while it waits for more.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from supervisor.cli.line_source import InputError, JsonLines
from supervisor.run import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisor.config import PipelineConfig

STANDARD_INPUT = "-"


class Source(Protocol):
    """Requests, taken lazily."""

    def __iter__(self) -> Iterator[Request]:
        """Take them, once."""

    def ended(self, request_id: str) -> None:
        """Hear that a request has ended; called from any thread."""

    def close(self) -> None:
        """End the iteration; called from any thread, as often as one likes."""


class Files:
    """One request for each file: data `{"path": …}`, id the file's name.

    Args:
        paths: absolute. Where two have the same name, the ids are the paths from their common directory on.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = sorted(paths)
        self._closed = False

    def __iter__(self) -> Iterator[Request]:
        names = [os.path.basename(path) for path in self._paths]  # noqa: PTH119 (as text)
        if len(set(names)) < len(names):
            common = os.path.commonpath([os.path.dirname(path) for path in self._paths])  # noqa: PTH120
            names = [os.path.relpath(path, common) for path in self._paths]
        for name, path in zip(names, self._paths, strict=True):
            if self._closed:
                return
            yield _file_request(name, path)

    def ended(self, request_id: str) -> None:
        """Nothing depends on it: every id is another one."""

    def close(self) -> None:
        """End the iteration."""
        self._closed = True


class Nothing:
    """No requests."""

    def __iter__(self) -> Iterator[Request]:
        return iter(())

    def ended(self, request_id: str) -> None:
        """Never happens."""

    def close(self) -> None:
        """End the iteration, which has no beginning."""


class Serving:
    """The requests of another source, and then the wait for `close`.

    Args:
        source: the other source.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Request]:
        yield from self._source
        self._closed.wait()

    def ended(self, request_id: str) -> None:
        """Tell the other source."""
        self._source.ended(request_id)

    def close(self) -> None:
        """End the iteration."""
        self._closed.set()
        self._source.close()


def open_source(argument: str | None, config: PipelineConfig, *, serve: bool) -> Source:
    """Open what there is to run.

    Args:
        argument: the command line's `--input`, or None.
        config: names the input otherwise.
        serve: whether to stay when the input is done.

    Raises:
        InputError: there is nothing, or it cannot be opened.
    """
    source = _open(argument, config, serve=serve)
    return Serving(source) if serve else source


def _open(argument: str | None, config: PipelineConfig, *, serve: bool) -> Source:
    if argument == STANDARD_INPUT:
        return JsonLines(0, "standard input", owned=False)
    if argument is not None:
        return _open_lines(argument, "--input")
    if config.input is not None and config.input.jsonl is not None:
        return _open_lines(config.input.jsonl, "the config's input.jsonl")
    if config.input is not None and config.input.glob is not None:
        return _find_files(config.input.glob)
    if serve:
        return Nothing()
    raise InputError(
        "there is nothing to run: use --input FILE.jsonl, --input - for standard input, or 'input' in the config; "
        "or --serve to run without"
    )


def find_input_problem(argument: str | None, config: PipelineConfig) -> str | None:
    """Say what is wrong with the input that is named, if one is; nothing is opened, since a FIFO's writer would notice.

    Args:
        argument: the command line's `--input`, or None.
        config: names the input otherwise.
    """
    if argument is not None:
        return None if argument == STANDARD_INPUT else _lines_problem(f"--input {argument!r}", argument)
    if config.input is None:
        return None
    if config.input.jsonl is not None:
        return _lines_problem(f"input.jsonl: {config.input.jsonl!r}", config.input.jsonl)
    if config.input.glob is not None and not _matches(config.input.glob):
        return f"input.glob: {config.input.glob!r} matches no file"
    return None


def _lines_problem(name: str, path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 (a path may hold a null character)
    except (OSError, ValueError) as exc:
        return _cannot_open(name, exc)
    if stat.S_ISDIR(mode):
        return _is_directory(name)
    return None if os.access(path, os.R_OK) else _cannot_open(name, PermissionError(errno.EACCES, "Permission denied"))


def _cannot_open(name: str, exc: OSError | ValueError) -> str:
    return f"{name}: cannot be opened ({exc.strerror if isinstance(exc, OSError) else exc})"


def _is_directory(name: str) -> str:
    return f"{name}: is a directory, wanted a file of JSON lines"


def _open_lines(path: str, where: str) -> JsonLines:
    name = f"{where} {path!r}"
    try:
        # Non-blocking, so that the opening of a FIFO does not wait for a writer; `poll` does.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as exc:
        raise InputError(_cannot_open(name, exc)) from exc
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError(_is_directory(name))
    return JsonLines(fd, name, owned=True)


def _find_files(pattern: str) -> Files:
    paths = _matches(pattern)
    if not paths:
        raise InputError(f"the config's input.glob {pattern!r} matches no file")
    return Files(paths)


def _matches(pattern: str) -> list[str]:
    return [path for path in glob.glob(pattern, recursive=True) if Path(path).is_file()]  # noqa: PTH207 (absolute)


def _file_request(name: str, path: str) -> Request:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "backslashreplace").decode()
        return Request(shown, error="its file name is not UTF-8")
    return Request(name, {"path": path})
