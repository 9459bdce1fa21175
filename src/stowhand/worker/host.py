"""Interface between a worker and the process around it, used by this package's own processes (service/).

The process passes a Host to the worker; the worker offers WorkerControls. The worker's loops record when they last
moved. Any thread can read these times (LoopLiveness), from which the process reports its health. The code that a worker
runs is marked as inside a worker, so that a call that would block its slot is refused (``refuse_inside``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
"""Maximum of each timing, so that a forgotten environment variable cannot keep a process alive for ever."""


def resident_bytes() -> int:
    """Return the memory of this process in bytes, shared pages included; its maximum so far if only that is known.

    Raises ConfigurationError if the system reports neither.
    """
    with suppress(OSError):  # Linux has this file. Its second number counts resident pages.
        return int(STATM_PATH.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:
        raise ConfigurationError(
            "max_memory: this system does not report the memory of a process; leave it out"
        ) from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The unit is a byte on macOS, and a kilobyte elsewhere.
    return peak if sys.platform == "darwin" else peak * 1024


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits and intervals of a process and its worker, in seconds. They are not settings: only tests set them."""

    same_signal_window: float = 0.5
    """Time within which signals count once: Ctrl-C reaches every process of a group, and users press it twice."""
    blocked_threshold: float = 1.0
    """Time without a turn of the loop after which it counts as blocked."""
    suspect_poll_interval: float = 5.0
    """Interval at which a busy worker looks for suspects, after a claim of suspects returned none."""

    thread_end_timeout: float = 5.0
    """Time that the thread of a canceled or timed-out attempt has to end, before it counts as abandoned."""

    # The end of a process. First a worker stops by itself: ``final_timeout`` ends before a process that is stuck is
    # forced to exit. Then that process has released its leases (``lease_release_timeout``) before its supervisor kills
    # it.
    exit_timeout: float = 5.0
    """Time after the grace by which a process has exited in any case."""
    forced_exit_margin: float = 0.9
    """Time before ``exit_timeout`` at which a process that still runs is forced to exit."""
    lease_release_timeout: float = 0.5
    """Part of ``forced_exit_margin`` in which a process that is forced to exit tries to release its leases."""
    kill_margin: float = 0.2
    """Time before ``exit_timeout`` at which a supervisor kills children that still run."""
    final_timeout: float = 4.0
    """Time after the grace for cancelled handlers and for the last calls to the store."""
    final_calls_time: float = 0.5
    """Part of ``final_timeout`` that is reserved for the last calls to the store."""

    min_steady_time: float = 5.0
    """Running time from which a child that ends is replaced at once. Before it, a child counts as failing to start."""
    max_restart_delay: float = 10.0
    """Maximum delay before a child that failed to start is replaced."""
    failed_start_delay: float = 2.0
    """Delay before a suspect whose child process could not start is returned to the queue."""
    report_interval: float = 1.0
    """Interval of reports of a process's health."""
    min_blocked_time: float = 3.0
    """Minimum time that a handler may block the loop before the process counts as not alive."""
    probe_timeout: float = 1.2
    """Time limit for the store's answer to a probe. It is shorter than the two seconds of ``stowhand health``."""
    max_probe_age: float = 1.0
    """Time for which that answer is reused."""
    count_timeout: float = 1.0
    """Time limit for each count of jobs for the metrics."""
    max_count_age: float = 5.0
    """Time for which these counts are reused."""


DEFAULT_TIMINGS = Timings()


class Host(msgspec.Struct, frozen=True):
    """Functions and time limits that the process around a worker provides."""

    isolate: Isolate | None = None
    """Runs a suspect in a child process; if it is ``None``, suspects run in this process, one at a time."""
    on_hang: Callable[[Lease | None], None] = lambda lease: None
    """Called in the heartbeat thread, once each time that the loop hangs, with the lease of the job that blocks it."""
    on_threads_exhausted: Callable[[], None] = lambda: None
    """Called on the worker's loop when as many threads have outlived their attempts as there are slots."""
    timings: Timings = DEFAULT_TIMINGS
    resident: Callable[[], int] = resident_bytes
    """Returns the memory of the process in bytes."""


class CallTimer:
    """Timer of a call to the store that a loop repeats: ``with timer: reply = await store.claim(…)``."""

    __slots__ = ("_clock", "answered_at", "refused_since", "seconds", "started_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at: float | None = None
        """Monotonic start time of the call under way; ``None`` if there is none."""
        self.seconds = 0.0
        """Duration of the last call."""
        self.answered_at: float | None = None
        """Monotonic time at which a call last succeeded; ``None`` before the first success."""
        self.refused_since: float | None = None
        """Monotonic time of the first StoreError since a call succeeded; ``None`` if there was none."""

    def __enter__(self) -> None:
        self.started_at = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock.monotonic()
        self.seconds = 0.0 if self.started_at is None else now - self.started_at
        self.started_at = None
        if kind is None:
            self.answered_at = now
            self.refused_since = None
        elif issubclass(kind, StoreError) and self.refused_since is None:
            self.refused_since = now

    def age(self, now: float) -> float:
        """Return the age of the call under way in seconds; 0 if there is none."""
        started_at = self.started_at  # Read it once: another thread may end the call meanwhile.
        return 0.0 if started_at is None else max(now - started_at, 0.0)


class LoopLiveness:
    """Times at which a worker's loops last moved. All values may be read from any thread, once ``bind`` was called."""

    lag: Callable[[], float]
    """Returns the largest delay of the event loop since the last call, in seconds; 0 or less if it was never late."""

    unready: Callable[[], str | None]
    """Returns why the worker claims no new jobs; ``None`` if it claims."""

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
        """Set the functions and timers that this object reads. A worker does so each time that it opens its store.

        Args:
            moved_at_by_loop: By name of a loop, a function that returns the monotonic time at which it last moved.
            calls: By name of a loop, the timer of its calls to the store; at least ``claiming`` and ``settling``.
            lag: See the attribute.
            refused_since: Returns the monotonic time since which the store has failed each heartbeat, if it has.
            unready: See the attribute.

        """
        self._moved_at_by_loop = moved_at_by_loop
        self._calls = calls
        self._heartbeat_refused_since = refused_since
        self.lag = lag
        self.unready = unready

    def ages(self) -> dict[str, float]:
        """Return, by loop, the seconds since it moved, or since its current call to the store started (else 0)."""
        now = self._clock.monotonic()
        ages = {name: max(now - moved_at(), 0.0) for name, moved_at in self._moved_at_by_loop.items()}
        return ages | {name: call.age(now) for name, call in self._calls.items()}

    def refused(self) -> dict[str, float]:
        """Return, by loop, for how many seconds the store has returned only errors.

        The loop that waits for wake-ups is left out, because a worker without wake-ups polls.
        """
        refused_since = {name: self._calls[name].refused_since for name in ("claiming", "settling")}
        now = self._clock.monotonic()
        refused_since["heartbeat"] = self._heartbeat_refused_since()
        return {name: max(now - since, 0.0) for name, since in refused_since.items() if since is not None}

    @property
    def last_answer_at(self) -> float | None:
        """Monotonic time of the store's last answer to a claim or settlement; ``None`` before the first."""
        answer_times = (self._calls["claiming"].answered_at, self._calls["settling"].answered_at)
        return max((time for time in answer_times if time is not None), default=None)

    @property
    def has_claimed(self) -> bool:
        """Whether a claim has succeeded, so that the worker counts as started."""
        return self._calls["claiming"].answered_at is not None


class WorkerControls(msgspec.Struct, frozen=True):
    """Functions of a worker that the process around it calls."""

    liveness: LoopLiveness
    pause_claims: Callable[[bool], None]
    """With True: claims no new jobs, continues the running ones, and returns unstarted ones to the queue. With False:
    claims again. May be repeated. Call it on the worker's own loop."""
    set_tasks: Callable[[tuple[str, ...] | None], None]
    """Sets the tasks whose jobs are claimed from now on; ``None`` means all. Call it on the worker's own loop."""
    current_leases: Callable[[], list[Lease]]
    """Returns all current leases. Callable from any thread. Only a process that exits next may release them."""
    report_unrecorded: Callable[[], None]
    """Emits an event for each outcome that the store has not recorded. Callable from any thread, before the exit."""
    renewal_reason: Callable[[], str | None]
    """Returns the limit that the worker has reached; ``None`` if it has not. Its process then exits and is replaced."""


def read_timings(environ: Mapping[str, str]) -> Timings:
    """Return the timings of a process: the defaults, unless a test sets others. Raises ConfigurationError."""
    try:
        timings = msgspec.json.decode(environ.get(TIMINGS_VARIABLE) or "{}", type=Timings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{TIMINGS_VARIABLE}: {error}") from None
    for name in timings.__struct_fields__:
        if not 0 <= getattr(timings, name) <= MAX_TIMING_SECONDS:
            raise ConfigurationError(f"{TIMINGS_VARIABLE}: {name}: use seconds, at most {MAX_TIMING_SECONDS:g}")
    return timings


def log_by_default(events: Events) -> None:
    """Log the events, unless they already have a listener. Log to stderr, unless the program has configured logging."""
    if not events.wants(WorkerStarted):
        # These imports are here, because they take 10 ms and a worker with listeners does not need them.
        from stowhand.observe.listener import LogListener
        from stowhand.observe.logs import configure_unless_configured

        configure_unless_configured()
        LogListener(events)


_is_inside: ContextVar[bool] = ContextVar("stowhand inside a worker", default=False)


def is_inside_worker() -> bool:
    """Return whether the caller runs in an attempt, or was started by one."""
    return _is_inside.get()


def refuse_inside(operation: str) -> None:
    """Raise Misuse if the caller runs in an attempt, or was started by one. ``operation``: its name in the message."""
    if is_inside_worker():
        raise Misuse(
            f"{operation} was called inside an attempt, which would keep its slot while it waits; with one slot it"
            " waits for ever. Return, and enqueue the next job with ctx.enqueue_after(…), or make a flow of the steps"
        )


@contextmanager
def inside_a_worker() -> Iterator[None]:
    """Mark the block, and the asyncio tasks and threads started in it, as inside a worker."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)
