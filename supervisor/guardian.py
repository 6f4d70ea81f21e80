"""The guardian: a small process beside the stages that ends what is left when the supervisor ends without warning.

It sleeps on a pipe from the supervisor. If that ends before the guardian is dismissed, it asks the stages to stop,
kills them soon after, and looks for what they have started, sessions of their own included (see `guard`). If somebody
kills the guardian, too, the kernel still ends the stages (see `stage.parent_watch`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.guard import DISMISSED
from supervisor.held import hold, let_go
from supervisor.log import log

if TYPE_CHECKING:
    from supervisor.run_dir import RunDir

_PROGRAM = Path(__file__).with_name("guard.py")
_END_S = 1.0


class Guardian:
    """Start the guardian of a run directory; without one, should it not start, everything else goes on.

    Args:
        run_dir: whose mark it looks for.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        hold(self._pipe)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and program)
                [sys.executable, "-I", "-S", str(_PROGRAM), run_dir.mark],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[run_dir.lifeline_fd],
                cwd="/",
                start_new_session=True,  # what kills our group must not reach it
            )
        except OSError as exc:
            log.warning("guardian_not_started", reason=str(exc))
        except BaseException:
            self._let_go()  # that ends it, if it was started
            raise
        finally:
            os.close(reader)

    def tell(self, pid: int) -> None:
        """Let it know a stage."""
        self._say(b"%d" % pid)

    def dismiss(self) -> None:
        """End it: everything is cleaned up."""
        self._say(DISMISSED)
        self._let_go()
        if self._process is None:
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # stopped, say
            self._process.kill()
            self._process.wait()

    def _let_go(self) -> None:
        if let_go(self._pipe):
            os.close(self._pipe)

    def _say(self, line: bytes) -> None:
        with suppress(OSError):  # somebody has killed it
            os.write(self._pipe, line + b"\n")
