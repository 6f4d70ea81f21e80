"""The users of a simulated pipeline: they submit, abort, call utilities, and read a run, at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sim_engine import data_of, model_of
from sim_watch import Life, Watch, WatchedHandle

from stage.codec import encode
from supervisor.errors import RequestAbortedError, RequestFailedError, StageDiedError
from supervisor.handle import Outcome
from supervisor.run import Request, _Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim_switchboard import WatchedSwitchboard
    from sim_world import World

    from stage.codec import Payload
    from supervisor.core import Core
    from supervisor.handle import Result

MAX_TASKS = 12
"""A larger request would make a history long, and no wiser."""


class Callers:
    """Threads that use `submit`, `abort` and `utility`.

    Args:
        world: decides what they do.
        watch: knows of all that they do.
        core: what they use.
        labels: of the replicas that they may call, which need not be there any more.
        budget: how many things they do.
    """

    def __init__(self, world: World, watch: Watch, core: Core, labels: list[str], budget: int) -> None:
        self._world = world
        self._watch = watch
        self._core = core
        self._labels = labels
        self._budget = budget
        self._handles: list[WatchedHandle] = []
        world.add("user", lambda: self._budget > 0, self._act)

    def _act(self) -> None:
        self._budget -= 1
        dice = self._world.rng.random()
        if dice < 0.6 or not self._handles:
            self.submit()
        elif dice < 0.8:
            self._abort(self._world.rng.choice(self._handles))
        else:
            self.call()

    def submit(self) -> None:
        """Submit a request, sometimes under an id that has been used, or is in use."""
        world, switchboard = self._world, self._core.switchboard
        used = [handle.id for handle in self._handles]
        user_id = world.rng.choice(used) if used and world.chance(0.4) else f"r{len(used)}"
        in_use = any(life.user_id == user_id for life in self._watch.alive())
        life = self._watch.begin(user_id, pick_value(world, self._watch), _pick_session(world))
        handle = WatchedHandle(life, self._watch, switchboard, self._core.turns)
        payload = encode(data_of(life.serial, life.value))
        if not switchboard.has_slot():
            world.expect(not switchboard.open(handle, payload), "a request is accepted without a slot")
            return
        accepted = self._submit(life, handle, payload, in_use)
        world.note("user", f"submits {user_id} ({life.serial}): {'accepted' if accepted else 'refused'}")
        if accepted:
            self._handles.append(handle)

    def _submit(self, life: Life, handle: WatchedHandle, payload: Payload, in_use: bool) -> bool:
        world, switchboard = self._world, self._core.switchboard
        died, refusal = switchboard.died, switchboard.refusal()
        world.expect(died is None or refusal is not None, "requests are accepted after a death")
        # Before it is open: whatever it gets belongs to it.
        life.request = None if in_use or refusal is not None else handle
        try:
            self._core.submit(handle, payload)
        except StageDiedError as exc:
            world.expect(exc.report is died, "a request is refused because of another death")
        except ValueError:
            world.expect(in_use, f"{life.user_id} is refused, though its id may be used again")
        except RuntimeError:
            world.expect(died is None, "a request is refused without naming the death")
        else:
            world.expect(life.request is handle, f"{life.user_id} is accepted, against the rules")
            return True
        world.expect(life.request is None, f"{life.user_id} is refused, against the rules")
        return False

    def _abort(self, handle: WatchedHandle) -> None:
        was_alive = handle.life.is_alive
        handle.life.may_abort = True
        self._world.note("user", f"aborts {handle.id} ({handle.life.serial})")
        handle.abort()
        self._world.expect(handle.outcome == "aborted" or not was_alive, f"{handle.id} was aborted, and lives on")

    def call(self) -> None:
        """Call a utility of any replica, and sometimes forget it."""
        world = self._world
        label = world.rng.choice(self._labels)
        name = world.rng.choice(("echo", "echo", "raise", "odd", "forgotten"))
        switchboard = cast("WatchedSwitchboard", self._core.switchboard)
        refused = switchboard.refusal() is not None
        call_id, call = switchboard.call(label.encode(), name, encode([world.events]))
        world.note("user", f"calls {name} of {label}")
        refused = refused or label in switchboard.parted
        world.expect(call.error if refused else not call.answered(), "a call is answered before it is sent")
        self._watch.calls.append((call, label, name, world.events))
        if name == "forgotten":
            switchboard.forget_call(call_id)

    def expect_outcomes(self) -> None:
        """See that `result()` says of every request what was seen of it."""
        for handle in self._handles:
            life = handle.life
            try:
                got = [(result.stage, tuple(result.part)) for result in handle.result(timeout_s=0)]
            except (RequestFailedError, RequestAbortedError) as exc:
                failed = isinstance(exc, RequestFailedError)
                self._world.expect(handle.outcome == ("failed" if failed else "aborted"), f"{handle.id} raises {exc!r}")
                self._world.expect(not failed or exc.report is handle.report, f"{handle.id} raises the wrong report")  # type: ignore[union-attr]
            else:
                self._world.expect(handle.outcome == "finished", f"{handle.id} gives results, and has not finished")
                self._world.expect(
                    got == [(stage, part) for stage, part, _ in life.results], f"{handle.id} gives {got}"
                )


class InOrder(dict[Any, None]):
    """A set that keeps its order: that of a real one depends on addresses, and a history on its seed alone."""

    def add(self, item: Any) -> None:
        """Put it in."""
        self[item] = None

    def discard(self, item: Any) -> None:
        """Take it out, if it is there."""
        self.pop(item, None)


class WatchedRun(_Run):
    """A run that tells of what it gets."""

    def __init__(self, core: Core, watch: Watch) -> None:
        super().__init__(core)
        self.alive = cast("Any", InOrder())
        self.witness = watch
        self.current: dict[str, Life] = {}

    def put(self, event: tuple[str, str, list[int], Payload]) -> None:
        self.witness.delivered(self.current[event[0]], *event[1:])
        super().put(event)

    def put_end(self, request: Any, outcome: Outcome) -> None:
        self.witness.ended(self.current[request.id], request)
        super().put_end(request, outcome)


class Runner:
    """A user of `Pipeline.run`: its feeder and its reader.

    Args:
        world: decides what they do.
        watch: knows of all that they do.
        core: what they use.
        budget: how many requests it feeds.
    """

    def __init__(self, world: World, watch: Watch, core: Core, budget: int) -> None:
        self._world = world
        self._watch = watch
        self._core = core
        self._run = WatchedRun(core, watch)
        self._events: Iterator[Result | Outcome] | None = self._run.events()
        self._left_to_feed = budget
        self._fed: list[Life] = []
        self._told: list[Outcome] = []
        world.add("feeder", self._can_feed, self._feed)
        world.add("reader", lambda: self._events is not None and self._run._has_news(), self._read)

    def _can_feed(self) -> bool:
        return self._left_to_feed > 0 and self._events is not None and self._run._has_room()

    def _feed(self) -> None:
        """Do with one request what `_Run.feed` does with each."""
        self._left_to_feed -= 1
        value, session = pick_value(self._world, self._watch), _pick_session(self._world)
        life = self._watch.begin(f"q{self._left_to_feed}", value, session)
        self._run.current[life.user_id] = life
        accepted = self._run._submit(Request(life.user_id, data_of(life.serial, life.value), session=session))
        self._world.note("feeder", f"feeds {life.user_id} ({life.serial}): {accepted}")
        refused = self._core.switchboard.refusal() is not None
        self._world.expect(accepted != refused, f"{life.user_id} is {'accepted' if accepted else 'refused'} wrongly")
        if accepted:
            life.request = next(request for request in self._run.alive if request.id == life.user_id)
            self._fed.append(life)
        if not accepted or not self._left_to_feed:
            self.finish_feeding()

    def finish_feeding(self) -> None:
        """Say that no more comes, as `_Run.feed` does at its end."""
        self._left_to_feed = 0
        self._run._fed = True
        self._run._tell(None)

    def _read(self) -> None:
        assert self._events is not None
        died = self._core.switchboard.died
        try:
            event = next(self._events)
        except StopIteration:
            self._world.expect(died is None, "a run ends as if nothing had died")
            self._events = None
        except StageDiedError as exc:
            self._world.expect(exc.report is died, "a run raises another death")
            self._events = None
        else:
            if isinstance(event, Outcome):
                self._told.append(event)

    def leave(self) -> None:
        """Stop reading, and abort what is left."""
        if self._events is not None:
            self._world.note("reader", "leaves the run")
            for life in self._fed:
                life.may_abort = True
            self._events = None
            self._run.leave()

    @property
    def is_over(self) -> bool:
        """True when nobody feeds or reads any more."""
        return self._events is None

    def expect_outcomes(self, *, left: bool) -> None:
        """See that the run has told the outcome of each of its requests, once."""
        told = [(outcome.id, outcome.outcome) for outcome in self._told]
        seen = [(life.user_id, life.request.outcome) for life in self._fed if life.request is not None]
        missing = set(seen) - set(told)
        self._world.expect(left or not missing, f"the run never tells {missing}")
        self._world.expect(set(told) <= set(seen) and len(set(told)) == len(told), f"the run tells {told}")


def pick_value(world: World, watch: Watch) -> int:
    """A value that makes a request of a fair size."""
    while model_of(watch.graph, value := world.rng.randrange(200)).tasks > MAX_TASKS:
        pass
    return value


def _pick_session(world: World) -> str | None:
    """One of a few sessions, or none."""
    return world.rng.choice((None, "s1", "s2", "s3"))
