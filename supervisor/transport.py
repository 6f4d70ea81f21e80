"""The supervisor's sockets: who binds what, and the context they belong to.

Each socket has one user at a time: the handshake socket and the ROUTER are the start-up's, and then the monitor's and
the outbox's; the PULLs are the monitor's.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from stage.names import label_of
from stage.protocol import GroupAddresses
from stage.sockets import Context, batch_scheduling, open_socket, readable
from stage.strays import Strays
from supervisor.log import log

if TYPE_CHECKING:
    from supervisor.manager import StageProcManager


ROUTER_LIMIT = 1000
"""Messages that wait at the ROUTER at most: nothing of ours sends more than one."""


class Inlet:
    """A PULL socket, and what tells when the last message of a peer has been read.

    Args:
        context: the context of this process.
        address: the endpoint to bind.
    """

    def __init__(self, context: Context, address: str) -> None:
        self._address = address
        self.socket = open_socket(context, zmq.PULL, bind=address)
        try:
            self.events = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            """Readable when there is a change for `count_peers`."""
        except BaseException:
            self.socket.close()
            raise
        self._peers = 0

    def count_peers(self) -> int:
        """How many are connected, as far as has been told."""
        while readable(self.events):
            self._peers += 1 if recv_monitor_message(self.events)["event"] == zmq.EVENT_ACCEPTED else -1
        return self._peers

    def close(self) -> None:
        """Stop the events, close the socket and remove its file; once more does nothing."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.events.close()
            self.socket.close()
            Path(self._address.removeprefix("ipc://")).unlink(missing_ok=True)


class Transport:
    """Bind every socket of the supervisor in the manager's run directory, before a stage is started.

    Args:
        manager: whose stages will connect.
    """

    def __init__(self, manager: StageProcManager) -> None:
        run_dir = self._run_dir = manager.run_dir
        self._stages = manager.config.stages
        self._closing = threading.Lock()
        self.context: Context = zmq.Context()
        self.strays = Strays(lambda reason, count: log.warning("message_dropped", reason=reason, count=count))
        """What came on the handshake socket, or the ROUTER, and was none of ours."""
        self.pulls: dict[str, Inlet] = {}
        self.input_address = run_dir.address("input")
        self.output_addresses: dict[str, str] = {}
        self.groups: dict[str, GroupAddresses] = {}
        """Where the coordinators of stages with several replicas are met."""
        for number, stage in enumerate(manager.config.stages):
            for replica in range(stage.replicas):
                self.output_addresses[label_of(stage.name, replica)] = run_dir.address(f"output-{number}-{replica}")
            if stage.replicas > 1:
                self.output_addresses[label_of(stage.name, None)] = run_dir.address(f"told-{number}")
                publish, collect = run_dir.address(f"publish-{number}"), run_dir.address(f"collect-{number}")
                self.groups[stage.name] = GroupAddresses(publish, collect, stage.lockstep)
        try:
            with batch_scheduling():  # the first socket starts zmq's threads
                self.handshake = open_socket(self.context, zmq.ROUTER, bind=run_dir.address("handshake"))
            self.router = open_socket(self.context, zmq.ROUTER, bind=self.input_address, receive_limit=ROUTER_LIMIT)
            for label, address in self.output_addresses.items():
                self.pulls[label] = Inlet(self.context, address)
        except BaseException:
            self.close()
            raise

    def add(self, stage: str, replica: int) -> Inlet:
        """Open the inlet of one more replica; for any thread.

        Raises:
            RuntimeError: all is closed.
            zmq.ZMQError: there are no descriptors left, say.
        """
        label = label_of(stage, replica)
        number = next(number for number, config in enumerate(self._stages) if config.name == stage)
        address = self.output_addresses[label] = self._run_dir.address(f"output-{number}-{replica}")
        with self._closing:
            if self.context.closed:
                raise RuntimeError("the pipeline is closed")
            # Those of replicas that have left are closed.
            self.pulls = {label: inlet for label, inlet in self.pulls.items() if not inlet.socket.closed}
            inlet = self.pulls[label] = Inlet(self.context, address)
        return inlet

    def drop(self, inlet: Inlet) -> None:
        """Close an inlet that nobody reads; for any thread."""
        with self._closing:
            inlet.close()

    def close(self) -> None:
        """Close every socket and the context; what is unsent is dropped."""
        self.strays.tell_rest()
        with self._closing:
            for pull in self.pulls.values():
                pull.close()
            self.context.destroy(linger=0)
