"""Messages that nothing of ours sends are counted and dropped, on every socket, and change nothing else."""

from __future__ import annotations

import os
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from harness import HANG_S, Announcements, Events, data_of, in_thread, pid_of, pipeline_config, stage, until

from stage.protocol import Add, ErrorRecord, Failed, Hello, Out, Ready, header_encoder
from supervisor import Pipeline, RequestFailedError, startup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Foreign = Callable[[str, bytes | None, list[list[bytes]]], None]

DEEP = b"\x91" * 100_000 + b"\xc0"
RAW = msgspec.Raw(b"\xc0")
ERROR = ErrorRecord("fatal", "init", "Liar", "I am no stage", "…")

GARBAGE: dict[str, list[bytes]] = {
    "empty": [b""],
    "random": [bytes(range(256))],
    "text": [b"GET / HTTP/1.1\r\n\r\n"],
    "many frames": [b"x"] * 500,
    "oversized": [b"\xc6" + bytes(100 * 1024 * 1024)],
    "nested too deeply": [b"\x91\x96\xa3out\xa1x" + DEEP + b"\x00\xc3"],
    "truncated": [header_encoder.encode([Out("echo#1", RAW, 3, True)]), b"one"],
    "too many frames": [header_encoder.encode([Out("echo#1", RAW, 0, True)]), b"one"],
    "negative frames": [header_encoder.encode([Out("a", RAW, -1, True), Out("b", RAW, 1, True)])],
    "of another kind": [header_encoder.encode([Add("r1", RAW, 0)])],
    "of a later version": [header_encoder.encode([["news", 1, 2]])],
    "not UTF-8": [b"\x91\x92\xa3end\xa2\xff\xfe"],
}

HANDSHAKES: dict[str, list[bytes]] = {
    "an unknown stage": [header_encoder.encode(Hello("nobody", 0, 1))],
    "an early READY": [header_encoder.encode(Ready())],
    "a lie": [header_encoder.encode(Failed(ERROR))],
    "nested too deeply": [b"\x82\xa4type\xa5READY\xa1x" + DEEP],
}


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    """Send messages to an address of the run directory, as a process of the same user could."""
    with zmq.Context() as context:

        def send(name: str, identity: bytes | None, messages: list[list[bytes]]) -> None:
            kind = zmq.PUSH if name.startswith(("output", "collect", "told")) else zmq.DEALER
            (path,) = Path(tempfile.gettempdir()).glob(f"stages-*/{name}.sock")
            with context.socket(kind) as socket:
                socket.linger = int(HANG_S * 1000)
                if identity is not None:
                    socket.identity = identity
                socket.connect(f"ipc://{path}")
                for message in messages:
                    socket.send_multipart(message)

        yield send
        context.destroy(linger=0)


def counted(events: Events, name: str) -> int:
    return sum(event["count"] for event in events.of(name))


def close_and_count(pipeline: Pipeline, events: Events, name: str) -> int:
    """The end tells of what has not been told of."""
    pipeline.close()
    return counted(events, name)


@pytest.mark.parametrize("what", GARBAGE)
def test_on_an_output_socket(foreign: Foreign, events: Events, what: str) -> None:
    """Garbage among a stage's outputs is dropped, requests go on, and a later death is reported as ever."""
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit(["a", "b"], "r1")
        number = 1 if what == "oversized" else 3
        foreign("output-0-0", None, [GARBAGE[what]] * number)
        until(lambda: events.of("message_dropped") or events.of("output_dropped"), "the first one is told of")
        pipeline.utility("gate", "open", (2,))
        assert data_of(handle.result(HANG_S)) == ["a", "b"]
        last = pipeline.submit(["c", "d"], "r2")
        pipeline.utility("gate", "open", (1,))
        assert next(iter(last)).data == "c"
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        with pytest.raises(RequestFailedError):
            last.result(HANG_S)
    assert pipeline.died is not None
    assert (pipeline.died.cause, pipeline.died.requests_lost) == ("signal", ["r2"])
    assert counted(events, "message_dropped") + counted(events, "output_dropped") >= number


@pytest.mark.parametrize("name", ["handshake", "input"])
@pytest.mark.parametrize("what", ["empty", "random", "many frames", "oversized", "nested too deeply"])
def test_on_the_other_sockets(foreign: Foreign, events: Events, name: str, what: str) -> None:
    """Garbage on the handshake and input sockets of a running pipeline is dropped."""
    with Pipeline(pipeline_config(stage("echo"))) as pipeline:
        foreign(name, None, [GARBAGE[what]] * 3)

        def told() -> bool:
            # What comes on the socket for input is looked at when something is sent by it.
            assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
            return bool(events.of("message_dropped"))

        until(told, "it is told of")
        assert pipeline.died is None


@pytest.mark.parametrize("what", [*GARBAGE, "a nested load"])
def test_on_the_socket_of_a_coordinator(foreign: Foreign, what: str) -> None:
    """Garbage among what the replicas tell is dropped, and said in the coordinator's log."""
    message = [b"\x95\xa4load\x00\x00\x00" + DEEP] if what == "a nested load" else GARBAGE[what]
    with Pipeline(pipeline_config(stage("echo", replicas=2))) as pipeline:
        foreign("collect-0", None, [message] * (1 if what == "oversized" else 3))
        log = pipeline._core.manager.run_dir.log("echo", None)
        until(lambda: "dropped a message" in log.read_text(), "it is told of")
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
        pipeline.scale("echo", 3)
        assert pipeline.died is None


@pytest.mark.parametrize("identity", [None, b"stranger", b"first/0", b"slow/0"])
@pytest.mark.parametrize("what", [*HANDSHAKES, *(f"garbage: {name}" for name in ("empty", "random", "many frames"))])
def test_during_the_start(
    foreign: Foreign,
    events: Events,
    announcements: Announcements,
    monkeypatch: pytest.MonkeyPatch,
    identity: bytes | None,
    what: str,
) -> None:
    """What comes while the stages start, also in the name of one that is connected, changes nothing about the start."""
    message = GARBAGE[what.removeprefix("garbage: ")] if what.startswith("garbage") else HANDSHAKES[what]
    gate = f"{announcements.path}.go"
    os.mkfifo(gate)
    slow = stage("slow", "engines_that_hang:WaitInInit", args={"gate": gate, "announce_to": announcements.path})
    pipeline = Pipeline(pipeline_config(stage("first"), slow))
    connected = threading.Event()
    hear = startup._Startup._hear

    def note(self: Any, who: bytes, content: bytes) -> None:
        hear(self, who, content)
        connected.set()

    monkeypatch.setattr(startup._Startup, "_hear", note)
    starting = in_thread(pipeline.start)
    assert announcements.wait() == "built"
    events.wait("stage_ready")  # the first one is; the slow one is connected for its handshake
    assert connected.wait(HANG_S)  # READY may overtake the first one's connection for input
    foreign("handshake", identity, [message] * 3)
    if identity != b"slow/0":
        foreign("input", identity, [message] * 3)
    if identity not in {b"first/0", b"slow/0"}:  # zmq itself refuses the name of one that is connected
        until(lambda: events.of("message_dropped"), "it is told of")
    Path(gate).write_bytes(b"")
    Path(gate).unlink()
    starting.join(HANG_S)
    assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
    assert (pipeline.died, len(events.of("stage_ready"))) == (None, 2)
    pipeline.close()


def test_hello_after_ready(foreign: Foreign, events: Events) -> None:
    """A second HELLO of a stage that is connected is dropped, with every other word of the handshake."""
    with Pipeline(pipeline_config(stage("echo"))) as pipeline:
        hello = [header_encoder.encode(Hello("echo", 0, pid_of(pipeline, "echo")))]
        foreign("handshake", None, [hello, *HANDSHAKES.values()])
        until(lambda: events.of("message_dropped"), "it is told of")
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
        assert close_and_count(pipeline, events, "message_dropped") == 1 + len(HANDSHAKES)


def test_told_of_once_a_second(foreign: Foreign, events: Events) -> None:
    """However many there are, the log tells of them now and then, and of all of them."""
    with Pipeline(pipeline_config(stage("echo"))) as pipeline:
        for _ in range(10):
            foreign("output-0-0", None, [[b"x"]] * 100)
        until(lambda: pipeline._core.switchboard._strays._strays, "the first has come")
        strays = next(iter(pipeline._core.switchboard._strays._strays.values()))
        until(lambda: strays.count == 1000, "all have come")
        assert data_of(pipeline.submit("x").result(HANG_S)) == ["x"]
        assert close_and_count(pipeline, events, "message_dropped") == 1000
    assert len(events.of("message_dropped")) < 10


def test_no_zmq_at_all(events: Events) -> None:
    """Bytes that are not even zmq's protocol, and connections that end at once, disturb nobody."""
    with Pipeline(pipeline_config(stage("gate", "Gate"))) as pipeline:
        handle = pipeline.submit(["a"], "r1")
        for path in Path(tempfile.gettempdir()).glob("stages-*/*.sock"):
            for content in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100)):
                with sockets.socket(sockets.AF_UNIX) as socket:
                    socket.connect(str(path))
                    socket.sendall(content)
        pipeline.utility("gate", "open", (1,))
        assert data_of(handle.result(HANG_S)) == ["a"]
        os.kill(pid_of(pipeline, "gate"), signal.SIGKILL)
        assert events.wait("stage_died")["cause"] == "signal"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_connect() -> None:
    """A process of another user reaches no socket of the run directory."""
    Path(tempfile.gettempdir()).chmod(0o755)
    code = (
        "import os, socket, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        socket.socket(socket.AF_UNIX).connect(path)\n        print('connected')\n"
        "    except PermissionError:\n        print('refused')\n"
    )
    with Pipeline(pipeline_config(stage("echo"))):
        paths = sorted(str(path) for path in Path(tempfile.gettempdir()).glob("stages-*/*.sock"))
        done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 3
