"""A fault in a stage process that has this directory on its PYTHONPATH, before it has become ready.

The variable BOOT_FAULT says how:

- `now exit7`, `later exit7`: at the start of the interpreter, or when the FIFO that BOOT_TRIGGER names is opened for
  writing;
- `POINT ACTION NTH`: as a `FaultEngine` would, at the point `spawned`, which is the start of the interpreter,
  `before_hello`, `after_hello` or `before_ready`, which are right before or after that message is sent. BOOT_ANNOUNCE
  is its `announce`.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines_for_tests import FaultEngine

FAULT = os.environ.get("BOOT_FAULT", "")


def _act() -> None:
    os._exit(int(FAULT.removeprefix("now exit").removeprefix("later exit")))


def _act_later() -> None:
    with open(os.environ["BOOT_TRIGGER"], "rb") as trigger:  # noqa: PTH123 (early in the interpreter's start)
        trigger.read()
    _act()


def _act_at(point: str, action: str, nth: str) -> None:
    from engines_for_tests import FaultEngine  # noqa: PLC0415 (in a stage only, and not where a test ends it early)

    engine = FaultEngine(point, action, int(nth), os.environ["BOOT_ANNOUNCE"])
    _hook_sends(engine)
    try:
        engine.reach("spawned")
    except Exception as exc:
        # The interpreter would print any other one, and go on.
        raise SystemExit(1) from exc


def _hook_sends(engine: FaultEngine) -> None:
    """Let the engine reach its points whenever the handshake's messages pass."""
    import zmq  # noqa: PLC0415 (as above)

    send: Any = zmq.Socket.send

    def send_between(socket: zmq.Socket[Any], data: Any, *args: Any, **kwargs: Any) -> Any:
        of_handshake = socket.type == zmq.DEALER and isinstance(data, bytes)
        if of_handshake and b"HELLO" in data:
            engine.reach("before_hello")
        if of_handshake and b"READY" in data:
            engine.reach("before_ready")
        sent = send(socket, data, *args, **kwargs)
        if of_handshake and b"HELLO" in data:
            engine.reach("after_hello")
        return sent

    zmq.Socket.send = send_between  # type: ignore[assignment]


if "--multiprocessing-fork" in sys.orig_argv:
    if FAULT.startswith("now"):
        _act()
    elif FAULT.startswith("later"):
        threading.Thread(target=_act_later, daemon=True).start()
    elif FAULT:
        _act_at(*FAULT.split())
