"""Who polls: one thread at a time has the turn; the others wait until it wakes them.

A thread that waits for a result takes the turn itself, so that a message needs no hand-over between threads. While
nobody waits, a background thread has the turn, so that outputs go on to the next stage and a death is seen. It gives
the turn up when a caller comes, and stays away for one `LEASE_S`, so that a caller who comes again at once need not
ask again. Known as leader/followers (Schmidt et al., 2000).
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.monitor import Monitor
    from supervisor.outbox import Outbox

LEASE_S = 0.001
"""How long the background thread leaves the turn to callers: also how long an output may lie when they are gone."""

VISIT_S = 0.0005
"""A caller whose result lies ready polls in passing if nobody has for this long."""

Token: TypeAlias = "SimpleQueue[None]"  # noqa: S105 (no secret: a thing to wait on)


class Waitable:
    """Something that a thread can wait for: whoever changes it calls `wake`, under the switchboard's lock."""

    __slots__ = ()

    tokens: tuple[Token, ...]  # a subclass has it, as a slot or not, and begins with `()`

    def wake(self) -> None:
        """Let every thread that waits look again."""
        for token in self.tokens:
            token.put(None)

    def watch(self, token: Token) -> None:
        """Put something into `token` at each change."""
        self.tokens = (*self.tokens, token)  # type: ignore[misc]

    def unwatch(self, token: Token) -> None:
        """Undo `watch`."""
        self.tokens = tuple(other for other in self.tokens if other is not token)  # type: ignore[misc]


class Turns:
    """Share the monitor between the threads that wait.

    Args:
        monitor: polled by the thread whose turn it is.
        outbox: sent by that thread before it polls.
        lock: the switchboard's, under which things change.
    """

    def __init__(self, monitor: Monitor, outbox: Outbox, lock: threading.Lock) -> None:
        self._monitor = monitor
        self._outbox = outbox
        outbox.wake = monitor.wake
        self._lock = lock
        # It knows its owner, as `threading.Condition` asks it to: a thread that was interrupted right after it took the
        # turn gives it back.
        self._turn = threading.RLock()
        self._has_turn: Callable[[], bool] = self._turn._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
        self._followers: list[Token] = []
        self._background_leads = False
        self._asked = False
        self._taken = 0
        self._polled_at = 0.0
        self._away = threading.Event()
        self.over = False
        """A process is dying, or the pipeline closes: from now on only the background thread may poll."""
        self._ended = False

    def wait(self, thing: Waitable, ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until `ready()`; False if the deadline, on the monotonic clock, came first."""
        if ready():
            self._visit()
            return True
        while True:
            try:
                if (self._take() or self._follow(thing, ready, deadline)) and self._lead(ready, deadline):
                    return True
            finally:
                self._leave()
            if ready():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def _visit(self) -> None:
        """Poll in passing, if nobody has for a while: who collects results that lie ready must not hold up the rest."""
        if self._background_leads:
            self._asked = True
        elif time.monotonic() - self._polled_at > VISIT_S:
            try:
                if self._take():
                    self._poll(0)
            finally:
                self._leave()

    def end(self) -> None:
        """Make `run_background` return, once whoever polls has noticed."""
        self._ended = True
        self.over = True
        self._leave()
        self._away.set()
        self._monitor.wake()

    def resume(self) -> None:
        """Let callers take the turn again, after `run_background` has returned; not once the end was asked for."""
        self._away.clear()
        self.over = False
        if self._ended:  # in this order: `end` may be called between any two of these lines
            self.over = True

    def run_background(self) -> None:
        """Poll while nobody else does; return with the turn kept, when a process is dying or at the end."""
        while True:
            self._turn.acquire()
            self._background_leads = True
            # Who became a follower before it could see that we lead has not asked us.
            while not (self.over or self._asked or self._followers):
                self._poll(None)
            self._background_leads = self._asked = False
            if self.over:
                return
            self._leave()
            self._stay_away()

    def _stay_away(self) -> None:
        """Leave the turn to callers until none has taken it for one lease; one who holds it long does not count."""
        seen = -1
        while seen != self._taken and not self.over:
            seen = self._taken
            self._away.wait(LEASE_S)
            with self._lock:
                self._outbox.flush()

    def _take(self) -> bool:
        if self.over or not self._turn.acquire(blocking=False):
            return False
        self._taken += 1
        return True

    def _lead(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Poll until `ready()`; False if it is not, since the deadline has come or the turns are over."""
        timeout_s = None
        while not ready():
            if deadline is not None:
                timeout_s = deadline - time.monotonic()
            if self.over or (timeout_s is not None and timeout_s <= 0):
                return False
            self._poll(timeout_s, ready)
        return True

    def _poll(self, timeout_s: float | None, ready: Callable[[], bool] | None = None) -> None:
        outbox = self._outbox
        with self._lock:
            if outbox.count:
                outbox.flush()
            if ready is not None and ready():
                return  # since we looked; whoever changes it from now on finds us asleep, and rings
            outbox.asleep = True
        try:
            if self._monitor.poll(timeout_s):
                self.over = True
                self._away.set()
        finally:
            outbox.asleep = False
        self._polled_at = time.monotonic()

    def _leave(self) -> None:
        """Give the turn back if this thread has it, be it from a wait that was interrupted."""
        if not self._has_turn():
            return
        try:
            with self._lock:
                if self._outbox.count:
                    self._outbox.flush()
                # Taken out: one that was interrupted before it could do so itself must not be asked for ever.
                follower = self._followers.pop(0) if self._followers else None
        finally:
            while self._has_turn():
                self._turn.release()
        if follower is not None:
            follower.put(None)

    def _follow(self, thing: Waitable, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for a change of `thing`, or for a chance to lead; True if the turn has been taken meanwhile."""
        token: Token = SimpleQueue()
        try:
            with self._lock:
                if ready():
                    return False
                thing.watch(token)
                self._followers.append(token)
            # Not `Lock.locked()`: it is False for as long as a thread that got the lock waits for the GIL.
            if self._take():
                return True
            if self._background_leads:
                self._asked = True
                self._monitor.wake()
            token.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            pass
        finally:
            with self._lock:
                thing.unwatch(token)
                if token in self._followers:
                    self._followers.remove(token)
        return False
