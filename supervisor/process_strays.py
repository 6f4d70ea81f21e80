"""What processes have sent that nothing of ours sends: counted and told of for each process apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage.strays import Strays
from supervisor.log import log

if TYPE_CHECKING:
    from supervisor.stage_proc import StageProc


class ProcessStrays:
    """Count, and warn once a second at most."""

    def __init__(self) -> None:
        self._strays: dict[tuple[str, StageProc], Strays] = {}

    def add(self, event: str, proc: StageProc, reason: str) -> None:
        """Count one more.

        Args:
            event: name of the log event.
            proc: the process.
            reason: what is wrong.
        """
        strays = self._strays.get((event, proc))
        if strays is None:
            strays = self._strays[event, proc] = Strays(
                lambda reason, count: log.warning(
                    event, stage=proc.stage, replica=proc.replica, reason=reason, count=count
                )
            )
        strays.add(reason)

    def tell_rest(self) -> None:
        """Tell of what has not been told of."""
        for strays in list(self._strays.values()):
            strays.tell_rest()

    def forget(self, proc: StageProc) -> None:
        """Tell the rest of a process that is gone, and count for it no more."""
        for key in [key for key in self._strays if key[1] is proc]:
            self._strays.pop(key).tell_rest()
