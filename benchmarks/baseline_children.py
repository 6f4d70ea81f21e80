"""What the baselines' processes run. It imports nothing at the top: a child must pay for no more than it is told to."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.queues import Queue


def echo(there: Queue[bytes], back: Queue[bytes]) -> None:
    """Give back what comes, until terminated."""
    while True:
        back.put(there.get())


def identity(data: bytes) -> bytes:
    """Give it back."""
    return data


def import_stage() -> None:
    """Import what a stage process with a Countdown imports."""
    import stage.engines.countdown  # noqa: PLC0415
    import stage.process  # noqa: F401, PLC0415
