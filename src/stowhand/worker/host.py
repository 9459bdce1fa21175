"""What the process around a worker provides, how long both wait for what, and what the process asks of the worker.

This package's own processes use it (service/): their health is how long each loop of the worker has been at what it
does, written by the loops and read from any thread. Code that a worker runs is marked as inside of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

import msgspec

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, Misuse, StoreError
from stowhand.events import Events, WorkerStarted
from stowhand.jobs.lease import Lease
from stowhand.protocols.handler import Isolate

STATM_PATH = Path("/proc/self/statm")
TIMINGS_VARIABLE = "STOWHAND_TIMINGS"
MAX_TIMING_SECONDS = 300.0
"""Seconds that may be given: a variable that is left behind must not keep a process from its end for ever."""


def resident_bytes() -> int:
    """Memory of this process, shared pages included; where the system only says that, the most it ever used. Raises
    ConfigurationError where it says neither."""
    try:
        return int(STATM_PATH.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        raise ConfigurationError("max_memory: this system does not say how much memory a process uses") from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. These are no settings: the suite shortens them for the processes that it starts."""

    same_signal: float = 0.5
    """Signals within it count once: a terminal's Ctrl-C reaches a whole group, and people press twice."""
    blocked_after: float = 1.0
    """Without a sign of life after which the loop counts as blocked."""
    suspects_every: float = 5.0
    """Between two claims of suspects while there is other work and no suspect was due."""

    thread_ends: float = 5.0
    """For the thread of an attempt that was canceled or timed out to end by itself, before it counts as abandoned."""

    # The end of a process: a worker that is not stuck ends in order before it is made to exit, and a child has given
    # back what it holds before the supervisor kills it.
    exited: float = 5.0
    """After the grace, within which a process has exited, whatever happens."""
    made_to: float = 0.9
    """Before that, when a process that still runs is made to exit."""
    give_back: float = 0.5
    """How many of these it tries to give its leases back."""
    killed: float = 0.2
    """Before ``exited``, when a supervisor kills the children that still run."""
    last_pause: float = 4.0
    """After the grace, for handlers that were cancelled and for the last calls to the store."""
    last_calls: float = 0.5
    """Of these, kept for the store."""

    steady: float = 5.0
    """A child that lived so long is replaced at once; one that did not counts as failing to start."""
    slowest_restart: float = 10.0
    unable: float = 2.0
    """Before a job goes back whose child process could not begin."""
    report_every: float = 1.0
    """Between two reports of a process's health."""
    blocked_at_least: float = 3.0
    """For which a handler may block the loop before the process is not alive, however short the leases."""
    answer_within: float = 1.2
    """For the store to answer a probe: ``stowhand health`` waits two for all of it."""
    answer_fresh: float = 1.0
    """For which that answer is reused."""
    count_within: float = 1.0
    counts_fresh: float = 5.0


DEFAULT_TIMINGS = Timings()


class Host(msgspec.Struct, frozen=True):
    """What the process around a worker provides."""

    isolate: Isolate | None = None
    """Runs suspects in a child process; without it they run in this process, one at a time."""
    on_hang: Callable[[Lease | None], None] = lambda lease: None
    """Called from the heartbeat thread when the loop counts as hung, once per hang, with the lease of the job that
    blocks it."""
    on_threads_exhausted: Callable[[], None] = lambda: None
    """Called on the worker's loop when as many threads have outlived their attempts as jobs may run at once."""
    timings: Timings = DEFAULT_TIMINGS
    resident: Callable[[], int] = resident_bytes
    """Gives the bytes of memory that the process uses."""


class CallTimer:
    """A call that one loop makes again and again: ``with call: reply = await store.claim(…)``."""

    __slots__ = ("_clock", "answered_at", "refused_since", "seconds", "started_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at: float | None = None
        """When the one under way began, by the monotonic clock; ``None``: none is."""
        self.seconds = 0.0
        """How long the last one took."""
        self.answered_at: float | None = None
        """When the last one was answered; ``None``: never yet."""
        self.refused_since: float | None = None
        """Since when the store has answered with errors alone; ``None``: the last call succeeded."""

    def __enter__(self) -> None:
        self.started_at = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock.monotonic()
        self.seconds = now - (self.started_at or now)
        self.started_at = None
        if kind is None:
            self.answered_at = now
            self.refused_since = None
        elif issubclass(kind, StoreError) and self.refused_since is None:
            self.refused_since = now

    def age(self, now: float) -> float:
        """Seconds since the one under way began; 0 when none is."""
        started_at = self.started_at
        return 0.0 if started_at is None else max(now - started_at, 0.0)


class LoopLiveness:
    """Signs of life of a worker's loops. The parts that it asks may be replaced when the worker opens its store."""

    lag: Callable[[], float]
    """Seconds by which the loop was late, the most since the last call of this; 0 or less: it was not."""

    unready: Callable[[], str | None]
    """Why the worker claims nothing new, if it does not. From any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def bind(
        self,
        moved_at_by_loop: Mapping[str, Callable[[], float]],
        calls: Mapping[str, CallTimer],
        lag: Callable[[], float],
        refused_since: Callable[[], float | None],
        unready: Callable[[], str | None],
    ) -> None:
        """By loop: ``moments``, when it last moved; ``calls``, its calls to the store. ``refused_since``: since when
        the store refuses what the heartbeater writes."""
        self._moved_at_by_loop = moved_at_by_loop
        self._calls = calls
        self._heartbeat_refused_since = refused_since
        self.lag = lag
        self.unready = unready

    def ages(self) -> dict[str, float]:
        """Return, by loop, the seconds since it moved, or that its call to the store has taken; 0 when it rests."""
        now = self._clock.monotonic()
        ages = {name: max(now - moved_at(), 0.0) for name, moved_at in self._moved_at_by_loop.items()}
        return ages | {name: call.age(now) for name, call in self._calls.items()}

    def refused(self) -> dict[str, float]:
        """Return, by loop, the seconds for which the store has answered with errors alone. Waking polls instead."""
        refused_since = {name: self._calls[name].refused_since for name in ("claiming", "settling")}
        now = self._clock.monotonic()
        refused_since["heartbeat"] = self._heartbeat_refused_since()
        return {
            name: max(now - refused_at, 0.0) for name, refused_at in refused_since.items() if refused_at is not None
        }

    @property
    def heard(self) -> float | None:
        """When the store last answered a claim or a settlement, by the monotonic clock; ``None``: never yet."""
        answered = (self._calls["claiming"].answered_at, self._calls["settling"].answered_at)
        return max((time for time in answered if time is not None), default=None)

    @property
    def claimed(self) -> bool:
        """A claim has been answered: the worker has started."""
        return self._calls["claiming"].answered_at is not None


class WorkerControls(msgspec.Struct, frozen=True):
    """What the process around a worker calls."""

    liveness: LoopLiveness
    quiet: Callable[[bool], None]
    """True: claim nothing new, and stay; what runs goes on, what was claimed ahead goes back. False: claim again.
    Harmless when repeated. On the worker's own loop."""
    set_tasks: Callable[[tuple[str, ...] | None], None]
    """Claim jobs of these tasks from now on. On the worker's own loop."""
    held: Callable[[], list[Lease]]
    """Every lease of the worker just now. From any thread; release them only as the last write."""
    give_up: Callable[[], None]
    """Emit an event for each outcome that no store has recorded, once. From any thread, as the last thing."""
    renewal_reason: Callable[[], str | None]
    """Which limit of the worker was reached, if one was: its process ends well, and another is to take its place."""


def read_timings(environ: Mapping[str, str]) -> Timings:
    """Return the timings of a process: the usual ones, unless a test gives others. Raises ConfigurationError."""
    try:
        timings = msgspec.json.decode(environ.get(TIMINGS_VARIABLE) or "{}", type=Timings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{TIMINGS_VARIABLE}: {error}") from None
    for name in timings.__struct_fields__:
        if not 0 <= getattr(timings, name) <= MAX_TIMING_SECONDS:
            raise ConfigurationError(f"{TIMINGS_VARIABLE}: {name}: give seconds, at most {MAX_TIMING_SECONDS:g}")
    return timings


def log_by_default(events: Events) -> None:
    """Log what happens, unless there is a listener already; to stderr, unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        # Imported here: a worker with listeners of its own needs no logging, which takes 10 ms to import.
        from stowhand.observe.listener import LogListener
        from stowhand.observe.logs import configure_unless_configured

        configure_unless_configured()
        LogListener(events)


_inside: ContextVar[bool] = ContextVar("stowhand inside a worker", default=False)


def is_inside_worker() -> bool:
    """Return whether an attempt, or what it has started, is asking."""
    return _inside.get()


def refuse_inside(operation: str) -> None:
    """Raise Misuse in an attempt, and in what it has started."""
    if is_inside_worker():
        raise Misuse(
            f"{operation} was called inside an attempt, which would keep its slot while it waits: with one slot for "
            "ever. Return, and let the next job be enqueued with ctx.enqueue_after(…), or make a flow of the steps"
        )


@contextmanager
def inside_a_worker() -> Iterator[None]:
    """Mark the block, and tasks and threads that are started in it, as inside a worker."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
