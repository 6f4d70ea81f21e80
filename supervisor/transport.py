"""The supervisor's sockets: who binds what, and the context they belong to.

Each socket has one user at a time: the handshake socket is the start-up's, the ROUTER the start-up's and then the
outbox's, the PULLs the monitor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from stage.sockets import Context, Socket, batch_scheduling, open_socket

if TYPE_CHECKING:
    from supervisor.manager import StageProcManager


class Transport:
    """Bind every socket of the supervisor in the manager's run directory, before a stage is started.

    Args:
        manager: whose stages will connect.
    """

    def __init__(self, manager: StageProcManager) -> None:
        run_dir = manager.run_dir
        self.context: Context = zmq.Context()
        self.input_address = run_dir.address("input")
        self.output_addresses = {
            f"{stage.name}/{replica}": run_dir.address(f"output-{number}-{replica}")
            for number, stage in enumerate(manager.config.stages)
            for replica in range(stage.replicas)
        }
        try:
            with batch_scheduling():  # the first socket starts zmq's threads
                self.handshake = open_socket(self.context, zmq.ROUTER, bind=run_dir.address("handshake"))
            self.router = open_socket(self.context, zmq.ROUTER, bind=self.input_address)
            self.pulls: dict[str, Socket] = {
                label: open_socket(self.context, zmq.PULL, bind=address)
                for label, address in self.output_addresses.items()
            }
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every socket and the context; what is unsent is dropped."""
        self.context.destroy(linger=0)
