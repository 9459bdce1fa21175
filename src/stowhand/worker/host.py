"""Interface between a worker and the process around it, used by this package's own processes (service/).

The process passes a Host; the worker offers WorkerControls. The worker's loops record when they last moved, and any
thread can read that: it is the process's health. Code that a worker runs is marked as inside a worker.
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
"""Maximum of each value: a forgotten environment variable must not keep a process alive for ever."""


def resident_bytes() -> int:
    """Return the memory of this process in bytes, shared pages included.

    Where the system reports only a peak, return that. Raises ConfigurationError if it reports neither.
    """
    try:
        return int(STATM_PATH.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        raise ConfigurationError(
            "max_memory: this system does not report the memory of a process; leave it out"
        ) from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits of a process and its worker, in seconds. Not settings: only tests shorten them."""

    same_signal: float = 0.5
    """Signals within this time count once: Ctrl-C reaches a whole process group, and users press it twice."""
    blocked_after: float = 1.0
    """Time without a turn of the loop after which it counts as blocked."""
    suspects_every: float = 5.0
    """Interval of claims of suspects while there is other work and no suspect was due."""

    thread_ends: float = 5.0
    """Time that the thread of a canceled or timed-out attempt has to end, before it counts as abandoned."""

    # The end of a process: a worker that is not stuck ends in order before it is forced to exit, and a child has
    # returned its jobs before the supervisor kills it.
    exited: float = 5.0
    """Time after the grace by which a process has exited in any case."""
    made_to: float = 0.9
    """Time before that at which a process that still runs is forced to exit."""
    give_back: float = 0.5
    """Part of this in which it tries to release its leases."""
    killed: float = 0.2
    """Time before ``exited`` at which a supervisor kills children that still run."""
    last_pause: float = 4.0
    """Time after the grace for cancelled handlers and for the last calls to the store."""
    last_calls: float = 0.5
    """Part of this that is reserved for the store."""

    steady: float = 5.0
    """A child that ran this long is replaced at once; otherwise it counts as failing to start."""
    slowest_restart: float = 10.0
    unable: float = 2.0
    """Delay before a job is returned whose child process could not start."""
    report_every: float = 1.0
    """Interval of reports of a process's health."""
    blocked_at_least: float = 3.0
    """Minimum time that a handler may block the loop before the process counts as not alive."""
    answer_within: float = 1.2
    """Time limit for the store's answer to a probe; ``stowhand health`` waits two seconds in total."""
    answer_fresh: float = 1.0
    """Time for which that answer is reused."""
    count_within: float = 1.0
    counts_fresh: float = 5.0


DEFAULT_TIMINGS = Timings()


class Host(msgspec.Struct, frozen=True):
    """Functions and time limits that the process around a worker provides."""

    isolate: Isolate | None = None
    """Runs a suspect in a child process; without it suspects run in this process, one at a time."""
    on_hang: Callable[[Lease | None], None] = lambda lease: None
    """Called from the heartbeat thread when the loop counts as hung, once per hang, with the lease of the job that
    blocks it."""
    on_threads_exhausted: Callable[[], None] = lambda: None
    """Called on the worker's loop when as many threads have outlived their attempts as jobs may run at once."""
    timings: Timings = DEFAULT_TIMINGS
    resident: Callable[[], int] = resident_bytes
    """Returns the memory of the process in bytes."""


class CallTimer:
    """Timer of a call that a loop repeats: ``with timer: reply = await store.claim(…)``."""

    __slots__ = ("_clock", "answered_at", "refused_since", "seconds", "started_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at: float | None = None
        """Monotonic start time of the call under way; ``None`` if there is none."""
        self.seconds = 0.0
        """Duration of the last call."""
        self.answered_at: float | None = None
        """When a call last succeeded; ``None`` before the first success."""
        self.refused_since: float | None = None
        """When the store first failed after the last success; ``None`` if the last call succeeded."""

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
        """Return the age of the call under way in seconds; 0 if there is none."""
        started_at = self.started_at
        return 0.0 if started_at is None else max(now - started_at, 0.0)


class LoopLiveness:
    """Times at which a worker's loops last moved. Its sources may be replaced when the worker opens its store."""

    lag: Callable[[], float]
    """Returns the largest delay of the loop in seconds since the last call; 0 or less if there was none."""

    unready: Callable[[], str | None]
    """Returns why the worker claims nothing new, if so. Callable from any thread."""

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
        """Set the sources.

        Args:
            moved_at_by_loop: Functions that return when a loop last moved, by loop.
            calls: Timers of the loops' calls to the store, by loop.
            lag: See the attribute.
            refused_since: Returns since when the store refuses the heartbeater's writes.
            unready: See the attribute.

        """
        self._moved_at_by_loop = moved_at_by_loop
        self._calls = calls
        self._heartbeat_refused_since = refused_since
        self.lag = lag
        self.unready = unready

    def ages(self) -> dict[str, float]:
        """Return, by loop, the seconds since it moved or since its call to the store started; 0 if it is idle."""
        now = self._clock.monotonic()
        ages = {name: max(now - moved_at(), 0.0) for name, moved_at in self._moved_at_by_loop.items()}
        return ages | {name: call.age(now) for name, call in self._calls.items()}

    def refused(self) -> dict[str, float]:
        """Return, by loop, for how many seconds the store has returned only errors. Wake-ups fall back to polling."""
        refused_since = {name: self._calls[name].refused_since for name in ("claiming", "settling")}
        now = self._clock.monotonic()
        refused_since["heartbeat"] = self._heartbeat_refused_since()
        return {
            name: max(now - refused_at, 0.0) for name, refused_at in refused_since.items() if refused_at is not None
        }

    @property
    def heard(self) -> float | None:
        """Monotonic time of the store's last answer to a claim or settlement; ``None`` before the first."""
        answered = (self._calls["claiming"].answered_at, self._calls["settling"].answered_at)
        return max((time for time in answered if time is not None), default=None)

    @property
    def claimed(self) -> bool:
        """Whether a claim has been answered, so that the worker counts as started."""
        return self._calls["claiming"].answered_at is not None


class WorkerControls(msgspec.Struct, frozen=True):
    """Functions of a worker for the process around it."""

    liveness: LoopLiveness
    quiet: Callable[[bool], None]
    """True: claim nothing new, let running jobs go on, and return unstarted ones to the queue. False: claim again.
    May be repeated. Call it on the worker's own loop."""
    set_tasks: Callable[[tuple[str, ...] | None], None]
    """Claim jobs of these tasks from now on. Call it on the worker's own loop."""
    held: Callable[[], list[Lease]]
    """Returns all current leases. Callable from any thread; release them only as the last write of the process."""
    give_up: Callable[[], None]
    """Emits an event for each outcome that the store has not recorded. Callable from any thread, as the last call."""
    renewal_reason: Callable[[], str | None]
    """Returns the limit that the worker has reached, if any: its process then exits, and another replaces it."""


def read_timings(environ: Mapping[str, str]) -> Timings:
    """Return the timings of a process: the defaults, unless a test sets others. Raises ConfigurationError."""
    try:
        timings = msgspec.json.decode(environ.get(TIMINGS_VARIABLE) or "{}", type=Timings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{TIMINGS_VARIABLE}: {error}") from None
    for name in timings.__struct_fields__:
        if not 0 <= getattr(timings, name) <= MAX_TIMING_SECONDS:
            raise ConfigurationError(f"{TIMINGS_VARIABLE}: {name}: give seconds, at most {MAX_TIMING_SECONDS:g}")
    return timings


def log_by_default(events: Events) -> None:
    """Log the events unless they have a listener; to stderr unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        # Imported here: it takes 10 ms, and a worker with its own listeners does not need it.
        from stowhand.observe.listener import LogListener
        from stowhand.observe.logs import configure_unless_configured

        configure_unless_configured()
        LogListener(events)


_inside: ContextVar[bool] = ContextVar("stowhand inside a worker", default=False)


def is_inside_worker() -> bool:
    """Return whether the caller runs in an attempt, or was started by one."""
    return _inside.get()


def refuse_inside(operation: str) -> None:
    """Raise Misuse if the caller runs in an attempt, or was started by one."""
    if is_inside_worker():
        raise Misuse(
            f"{operation} was called inside an attempt, which would keep its slot while it waits; with one slot it"
            " waits for ever. Return, and enqueue the next job with ctx.enqueue_after(…), or make a flow of the steps"
        )


@contextmanager
def inside_a_worker() -> Iterator[None]:
    """Mark the block, and the tasks and threads started in it, as inside a worker."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
