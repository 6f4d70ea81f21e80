"""The supervisor's sockets: who binds what, and the context they belong to.

Each socket has one user at a time: the handshake socket is the start-up's, the ROUTER the start-up's and then the
outbox's, the PULLs the monitor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

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
        self.socket = open_socket(context, zmq.PULL, bind=address)
        self.events = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        """Readable when there is a change for `count_peers`."""
        self._peers = 0

    def count_peers(self) -> int:
        """How many are connected, as far as has been told."""
        while readable(self.events):
            self._peers += 1 if recv_monitor_message(self.events)["event"] == zmq.EVENT_ACCEPTED else -1
        return self._peers

    def close(self) -> None:
        """Stop the events, and close the socket."""
        self.socket.disable_monitor()
        self.socket.close()


class Transport:
    """Bind every socket of the supervisor in the manager's run directory, before a stage is started.

    Args:
        manager: whose stages will connect.
    """

    def __init__(self, manager: StageProcManager) -> None:
        run_dir = manager.run_dir
        self.context: Context = zmq.Context()
        self.strays = Strays(lambda reason, count: log.warning("message_dropped", reason=reason, count=count))
        """What came on the handshake socket, or the ROUTER, and was none of ours."""
        self.pulls: dict[str, Inlet] = {}
        self.input_address = run_dir.address("input")
        self.output_addresses = {
            f"{stage.name}/{replica}": run_dir.address(f"output-{number}-{replica}")
            for number, stage in enumerate(manager.config.stages)
            for replica in range(stage.replicas)
        }
        try:
            with batch_scheduling():  # the first socket starts zmq's threads
                self.handshake = open_socket(self.context, zmq.ROUTER, bind=run_dir.address("handshake"))
            self.router = open_socket(self.context, zmq.ROUTER, bind=self.input_address, receive_limit=ROUTER_LIMIT)
            for label, address in self.output_addresses.items():
                self.pulls[label] = Inlet(self.context, address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every socket and the context; what is unsent is dropped."""
        self.strays.tell_rest()
        for pull in self.pulls.values():
            pull.close()
        self.context.destroy(linger=0)
