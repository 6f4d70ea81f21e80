"""The command's parts that need no process: lines, sources, injections, the live line, the output."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_pipeline import Interrupted, Stop
from stage.protocol import Injection
from supervisor import ConfigError, Outcome, PipelineConfig, Request, Result
from supervisor.cli.arguments import UsageError, parse_injections
from supervisor.cli.held_back import HeldBack
from supervisor.cli.inputs import Serving, Source, open_source
from supervisor.cli.jsonl import LineSplitter, read_request, to_line
from supervisor.cli.line_source import HELD_BACK_LIMIT, JsonLines
from supervisor.cli.output import open_output
from supervisor.cli.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

HANG_S = 30


@given(st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_lines_do_not_depend_on_how_they_are_cut(content: list[bytes], data: st.DataObject) -> None:
    """However a stream is cut into chunks, the same numbered lines come out; only a long one is missing."""
    stream = b"\n".join(content)
    splitter = LineSplitter(max_bytes=4)
    found: list[tuple[int, bytes | None]] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    found += splitter.finish()
    expected = content[:-1] if content and not content[-1] else content
    assert found == [(number, line if len(line) <= 4 else None) for number, line in enumerate(expected, 1)]


@given(st.binary(max_size=40))
def test_any_line_is_a_request_or_a_failure(line: bytes) -> None:
    """Nothing that a line can hold raises."""
    request = read_request(7, line)
    assert request is None or request.error is None or request.error.startswith("input line 7: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"data": 1, "session": 7}', "the session 7 is no text"),
        (None, "longer than"),
        (b"[" * 100_000, "nested too deeply"),
        (b"null", "JSON null"),
        (b'"x"', "JSON text"),
    ],
)
def test_what_is_wrong_with_a_line(line: bytes | None, said: str) -> None:
    """Each problem has its words."""
    request = read_request(3, line)
    assert request is not None
    assert (request.id, said in (request.error or "")) == ("line-3", True)


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(min_size=1), json_data)
def test_a_request_comes_out_as_it_was_written(request_id: str, data: Any) -> None:
    """JSON that is encoded elsewhere is understood."""
    line = msgspec.json.encode({"id": request_id, "data": data})
    request = read_request(1, line)
    assert request is not None
    assert request == Request(request_id, msgspec.json.decode(msgspec.json.encode(data)))


def test_a_line_of_output_is_json_whatever_the_data() -> None:
    """An object that JSON has no words for does not stop the others."""
    line = to_line(Result("r", "s", [0], {"odd": object(), "z": 1j}))
    data = msgspec.json.decode(line)["data"]
    assert data["z"] == [0.0, 1.0]
    assert data["odd"].startswith("<object")
    assert to_line(Outcome("r", "finished", None)) == b'{"id":"r","outcome":"finished","error":null}\n'


@pytest.fixture
def pipe() -> Any:
    """A pipe: both ends, closed at the end."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0) as stream:
        yield reader, stream


@pytest.mark.parametrize("serving", [False, True])
def test_close_wakes_a_blocked_read(pipe: Any, serving: bool) -> None:
    """`close` ends an iteration that waits for a line; the half of a line that has come is no request."""
    reader, writer = pipe
    lines = JsonLines(reader, "pipe", owned=False)
    source = Serving(lines) if serving else lines
    got: list[Request] = []
    first = threading.Event()

    def take() -> None:
        for request in source:
            got.append(request)
            first.set()

    thread = threading.Thread(target=take)
    thread.start()
    writer.write(b'{"data": 1}\n{"data": 2')
    assert first.wait(HANG_S)
    source.close()
    source.close()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert got == [Request("line-1", 1)]


def pass_on(source: Source, got: SimpleQueue[Request]) -> None:
    for request in source:
        got.put(request)


@pytest.mark.parametrize("serving", [False, True])
def test_an_id_that_is_alive_waits_for_its_end(pipe: Any, serving: bool) -> None:
    """A second request of an id goes once the first has ended, though no line comes; others overtake it."""
    reader, writer = pipe
    writer.write(b'{"id": "a", "data": 1}\n{"id": "a", "data": 2}\n{"id": "b", "data": 3}\n')
    lines = JsonLines(reader, "pipe", owned=False)
    source = Serving(lines) if serving else lines
    got: SimpleQueue[Request] = SimpleQueue()
    thread = threading.Thread(target=pass_on, args=(source, got))
    thread.start()
    assert [got.get(timeout=HANG_S) for _ in range(2)] == [Request("a", 1), Request("b", 3)]
    source.ended("b")
    source.ended("a")
    assert got.get(timeout=HANG_S) == Request("a", 2)
    source.close()
    thread.join(HANG_S)
    assert not thread.is_alive()
    source.ended("a")


def test_no_more_lines_are_read_than_may_wait(pipe: Any) -> None:
    """When too many of an id wait, the lines behind them wait too; every end lets one more be read."""
    reader, writer = pipe
    count = HELD_BACK_LIMIT + 1
    writer.write(b'{"id": "a", "data": 0}\n' * count + b'{"id": "b", "data": 1}\n')
    lines = JsonLines(reader, "pipe", owned=False)
    got: SimpleQueue[Request] = SimpleQueue()
    thread = threading.Thread(target=pass_on, args=(lines, got))
    thread.start()
    assert got.get(timeout=HANG_S).id == "a"
    assert got.empty()
    lines.ended("a")
    assert [got.get(timeout=HANG_S).id for _ in range(2)] == ["a", "b"]
    lines.close()
    thread.join(HANG_S)
    assert not thread.is_alive()


@given(st.lists(st.sampled_from("abc"), max_size=20), st.data())
def test_every_id_is_alive_once_at_most(ids: list[str], data: st.DataObject) -> None:
    """Whenever requests come and end, each goes once, none beside another of its id, in the order of its id."""
    held_back = HeldBack()
    coming = [Request(request_id, number) for number, request_id in enumerate(ids)]
    alive: list[str] = []
    gone: list[Request] = []
    while coming or alive:
        if coming and (not alive or data.draw(st.booleans())):
            request = coming.pop(0)
            went: Request | None = request if held_back.admit(request) else None
        else:
            ended = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            went = held_back.take() if held_back.ended(ended) else None
        if went is not None:
            assert went.id is not None
            assert went.id not in alive
            alive.append(went.id)
            gone.append(went)
    assert held_back.count == 0
    assert held_back.take() is None
    for name in set(ids):
        order = [request.data for request in gone if request.id == name]
        assert order == [number for number, request_id in enumerate(ids) if request_id == name]


def test_a_source_that_nobody_reads_leaves_nothing(tmp_path: Path) -> None:
    """Closed before it was read, it gives its descriptors back, and stays empty."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b'{"data": 1}\n')
    config = pipeline_config()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a count)
    source = open_source(str(path), config, serve=False)
    source.close()
    assert list(source) == []
    source = open_source(str(path), config, serve=False)
    assert list(source) == [Request("line-1", 1)]
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def pipeline_config() -> PipelineConfig:
    stages = [{"name": "a", "engine": "x:Y"}, {"name": "b", "engine": "x:Y"}]
    return PipelineConfig.from_dict({"stages": stages})


def test_injections() -> None:
    """Both forms of WHEN, with and without a replica."""
    parsed = parse_injections(["a:sigkill@2s", "b/0:raise@step=3"], pipeline_config())
    assert parsed == {"a/0": Injection("sigkill", after_s=2.0), "b/0": Injection("raise", step=3)}
    with pytest.raises(UsageError, match=r"ACTION is one of sigkill, .* and STAGE one of a, b"):
        parse_injections(["c:raise@1s"], pipeline_config())
    with pytest.raises(ConfigError):
        PipelineConfig.from_dict({})


def test_the_live_line_and_the_summary() -> None:
    """States come from log events, counts from results and outcomes, rates from the time since all were ready."""
    progress = Progress(0.0)
    assert progress.live_line(1.0, 80).startswith("starting | 0 done")
    for replica in (0, 1):
        assert progress.on_log({"event": "stage_spawned", "stage": "asr", "replica": replica}, 1.0)
    progress.on_log({"event": "stage_ready", "stage": "asr", "replica": 1}, 2.0)
    progress.on_log({"event": "pipeline_ready"}, 2.0)
    assert not progress.on_log({"event": "report_written"}, 2.0)
    progress.on_event(Result("r", "asr", [0], None))
    progress.on_event(Outcome("r", "finished", None))
    progress.on_event(Outcome("q", "failed", "no"))
    line = "asr/0 starting asr/1 ready | 2 done (1 failed), 1 result | 0.5 requests/s"
    assert progress.live_line(6.0, len(line)) == line
    summary = "requests: 1 finished, 1 failed, 0 aborted; 1 result in 4.0 s, 0.5 requests/s"
    assert progress.summary(6.0) == summary


def test_the_live_line_with_replicas() -> None:
    """The coordinator has a state, and a replica that has left has none."""
    progress = Progress(0.0)
    for event, replica in (("coordinator_spawned", None), ("stage_spawned", 0), ("stage_spawned", 1)):
        assert progress.on_log({"event": event, "stage": "asr", "replica": replica}, 0.0)
    progress.on_log({"event": "coordinator_ready", "stage": "asr", "replica": None}, 0.0)
    assert progress.live_line(1.0, 120).startswith("asr/coordinator ready asr/0 starting asr/1 starting | ")
    progress.on_log({"event": "stage_died", "stage": "asr", "replica": 1}, 0.0)
    assert progress.on_log({"event": "replica_left", "stage": "asr", "replica": 1}, 0.0)
    assert progress.live_line(1.0, 120).startswith("asr/coordinator ready asr/0 starting | ")


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "asr ready tts ready vad starting | 3 done (1 failed), 2 results | 1.5 requests/s"),
        (79, "2 ready 1 starting | 3 done (1 failed), 2 results | 1.5 requests/s"),
        (65, "2 ready 1 starting | 3 done (1 failed)"),
        (37, "3 done (1 failed)"),
        (10, "3 done (1 "),
        (0, ""),
    ],
)
def test_the_live_line_of_a_narrow_terminal(width: int, line: str) -> None:
    """Where not everything fits, what was done is told before the states of stages."""
    progress = Progress(0.0)
    for stage, event in (("asr", "stage_ready"), ("tts", "stage_ready"), ("vad", "stage_spawned")):
        progress.on_log({"event": event, "stage": stage, "replica": 0}, 0.0)
    for outcome in (Outcome("r", "finished", None), Outcome("s", "finished", None), Outcome("q", "failed", "no")):
        progress.on_event(outcome)
    for _ in range(2):
        progress.on_event(Result("r", "asr", [0], None))
    assert progress.live_line(2.0, width) == line


def test_stop_raises_only_where_it_was_told_to() -> None:
    """A signal that has come already counts; the clean-up that follows is not cut off."""
    stop = Stop()
    try:
        with stop.raising():
            pass
        stop.notice([15])
        with stop.raising(nth=2):
            pass
        with pytest.raises(Interrupted), stop.raising():
            pass
        stop.notice([2])
        assert (stop.signum, stop.count, os.eventfd_read(stop.fd)) == (15, 2, 2)
    finally:
        os.close(stop.fd)


def test_an_output_file_gets_whole_lines(tmp_path: Path) -> None:
    """A file keeps what it holds until results can come, and then gets each line at once."""
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    stop = Stop()
    try:
        with open_output(str(path), stop) as output:
            assert path.read_text() == "before"
            output.begin()
            output.write(b"line\n")
            assert path.read_bytes() == b"line\n"
            with output.watching_reader():
                assert not output.reader_gone
    finally:
        os.close(stop.fd)
