"""The reports of a worker: its entry in the list of workers, the progress of its handlers, its throughput, and changes
that the database refuses.

Reports are for display only, so progress that cannot be written is dropped. Throughput is counted by task and by the
store's minutes. The store's time is the time of its last reply with jobs, plus the time since then by the monotonic
clock, so this machine's wall clock does not matter. The loop counts ended attempts; the heartbeat thread counts resets,
and writes.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

import msgspec

from stowhand.errors import SchemaTooNew, StoreError
from stowhand.events import ChangeRefused, Events, StoreCallFailed, StoreRecovered
from stowhand.jobs.histogram import BUCKET_BOUNDS_SECONDS, BUCKET_COUNT, Histogram
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Pair, ResetJob, Unreadable
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.operator import WORKER_UPDATE_INTERVAL_SECONDS, WorkerDescription, WorkerList, own_version
from stowhand.protocols.store import Heartbeats, RefusedChange
from stowhand.protocols.throughput import (
    COUNT_NAMES,
    MAX_TASKS_PER_MINUTE,
    MINUTE_SECONDS,
    OPEN_MINUTE_SECONDS,
    OTHER_TASKS,
    OutcomeCounts,
    TaskMinute,
    ThroughputKeeper,
)
from stowhand.worker.leases import HeldJob
from stowhand.worker.limits import Limits
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog

RETRY_DELAY_SECONDS = 2.0
"""Delay before an entry that the store has not accepted is written again."""
PROGRESS_INTERVAL_SECONDS = 1.0
"""Minimum interval of writes."""
MAX_REPORTED_REFUSALS = 10_000
"""Number of refused changes that are remembered as reported."""


class Registration:
    """Entry of a worker in the list of workers. Does nothing if the store keeps no such list."""

    def __init__(self, heartbeats: Heartbeats, watchdog: LoopWatchdog, limits: Limits, state: WorkerState) -> None:
        self._watchdog = watchdog
        self._limits = limits
        self._state = state
        self._worker_list = heartbeats if isinstance(heartbeats, WorkerList) else None
        self.is_removing = False
        """Whether the removal of the entry is pending."""
        self.is_recorded = True
        """Whether the store has accepted the last entry."""
        self._written_at = float("-inf")
        self._written: WorkerDescription | None = None

    def remove(self) -> None:
        """Remove the entry at the next tick."""
        self.is_removing = True

    async def tick(self, now: float) -> None:
        """Write the entry if it is new, old or changed, or remove it.

        A failed removal is not repeated: the store's maintenance does it.
        """
        if self._worker_list is None:
            self.is_removing = False
        elif self.is_removing:
            try:
                await self._worker_list.worker_gone(self._state.worker)
            finally:
                self._worker_list = None
                self.is_removing = False
        elif (
            now - self._written_at >= (WORKER_UPDATE_INTERVAL_SECONDS if self.is_recorded else RETRY_DELAY_SECONDS)
            or self._description() != self._written
        ):
            self._written_at = now
            self._written = self._description()
            self.is_recorded = False
            await self._worker_list.worker_seen(self._written, self._state.declarations)
            self.is_recorded = True
            self._state.note_limits_stored()

    def _description(self) -> WorkerDescription:
        state = self._state
        return WorkerDescription(
            name=state.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_version(),
            tasks=state.tasks,
            concurrency=state.options.concurrency,
            stopping=state.is_ending or state.is_quiet,
            app_version=state.options.app_version,
            forbidden_flags=flags if isinstance(flags := state.options.forbidden_flags, tuple) else None,
            abandoned_threads=self._limits.abandoned_threads,
            blocked=self._watchdog.is_blocked,
            queues=state.queues,
        )


class ProgressBoard:
    """Progress of handlers, reported from any thread. The newest report of a job replaces older ones."""

    def __init__(self, keeper: ProgressKeeper, lease: float) -> None:
        self._keeper = keeper
        self._lock_timeout = lease / 10
        self._notes: dict[Pair, Progress] = {}
        self._lock = threading.Lock()
        self._written_at = float("-inf")

    def note(self, progress: Progress) -> None:
        """Keep this progress, which is written within about a second."""
        with self._lock:
            self._notes[progress.lease.pair] = progress

    async def tick(self, now: float, is_beat_due: Callable[[], bool]) -> None:
        """Write the progress if the interval is over and no beat is due."""
        if not self._notes or now - self._written_at < PROGRESS_INTERVAL_SECONDS or is_beat_due():
            return
        with self._lock:
            notes, self._notes = self._notes, {}
        self._written_at = now
        with suppress(StoreError):
            await self._keeper.keep_progress(tuple(notes.values()), self._lock_timeout)


WRITE_INTERVAL_SECONDS = 10.0
"""Interval of writes. If a worker dies, its counts since the last write are lost."""
MAX_KEPT_MINUTES = OPEN_MINUTE_SECONDS // MINUTE_SECONDS + 2
"""Minutes on either side of the current one (the clock may be set back); a store refuses older ones."""


def _zeros() -> list[int]:
    return [0] * BUCKET_COUNT


class _Count(msgspec.Struct):
    """Counts of one task in one minute."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    """Counts by the names of the fields of OutcomeCounts."""
    waits: list[int] = msgspec.field(default_factory=_zeros)
    runs: list[int] = msgspec.field(default_factory=_zeros)
    is_changed: bool = True
    """Whether the counts have changed since ``take``."""
    written: int = 0
    """Number of attempts that the store has accepted, or that are counted as late in another minute."""

    def tally(self) -> OutcomeCounts:
        counts = {name: self.counts[name] for name in COUNT_NAMES}
        return OutcomeCounts(**counts, waits=_histogram(self.waits), runs=_histogram(self.runs))

    def change(self) -> None:
        """Include the counts in the next write."""
        self.is_changed = True

    def take(self) -> OutcomeCounts:
        """Return the counts for writing."""
        self.is_changed = False
        return self.tally()

    def accept(self, number: int) -> None:
        """Note the number of attempts that the store has accepted."""
        self.written = number

    def lose(self) -> int:
        """Return the number of attempts that were not written, and treat them as written."""
        tally = self.take()
        lost = max(tally.ended + tally.late - self.written, 0)
        self.written += lost
        return lost

    def add_other(self, name: str) -> None:
        """Count an attempt with another outcome. ``add_runs`` counts it as completed, so subtract it there."""
        self.counts[name] += 1
        self.counts["ok"] -= 1

    def add_runs(self, seconds: list[float]) -> None:
        """Count run times. They are sorted, so that each bucket is counted at once."""
        self.counts["ok"] += len(seconds)
        self.change()
        seconds.sort()
        start = 0
        while start < len(seconds):
            bucket = bisect_left(BUCKET_BOUNDS_SECONDS, seconds[start])
            end = (
                bisect_right(seconds, BUCKET_BOUNDS_SECONDS[bucket], start)
                if bucket < len(BUCKET_BOUNDS_SECONDS)
                else len(seconds)
            )
            self.runs[bucket] += end - start
            start = end


_minute: partial[defaultdict[str, _Count]] = partial(defaultdict, _Count)


class ThroughputCounter:
    """Counts of a worker's attempts by minute and task. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._store_offset: float | None = None
        """Store's time since 1970 minus the monotonic clock, in seconds; ``None`` if not known yet."""
        self._synced_at = float("-inf")
        self._lock = threading.Lock()
        self._minutes: defaultdict[int, defaultdict[str, _Count]] = defaultdict(_minute)
        self._early_resets: list[ResetJob] = []
        """Jobs reset before the store's time was known."""
        self._discarded = _Count()

    def count(self, recorded: Sequence[HeldJob]) -> None:
        """Count attempts whose settlements are recorded. This is a hot path: common values of a batch are read once.

        A record that could not be read has no times, so it is not counted.
        """
        if not recorded:
            return
        last = recorded[-1]
        count = self._discarded
        with self._lock:
            if not isinstance(last.claim.record, Unreadable):
                self._sync_clock(last.claim.record.started_at, last.claimed_at)
            minute = self._minutes[self._current_minute()]
            seconds: defaultdict[str, list[float]] = defaultdict(list)
            task_seconds: list[float] = []
            current_task = due = start = None
            wait_bucket = same_wait = 0
            for job in recorded:
                claim = job.claim
                record, task = claim.record, claim.task
                if job.settlement is not COMPLETED and isinstance(record, Unreadable):
                    continue  # it never completes, and has no times
                if task != current_task or record.run_at is not due or record.started_at is not start:
                    count.waits[wait_bucket] += same_wait
                    same_wait = 0
                    current_task, due, start = task, record.run_at, record.started_at
                    count = minute[task if task in minute or len(minute) < MAX_TASKS_PER_MINUTE else OTHER_TASKS]
                    task_seconds = seconds[task]
                    wait_bucket = bisect_left(BUCKET_BOUNDS_SECONDS, (start - due).total_seconds())
                same_wait += 1
                task_seconds.append(job.seconds)
                if job.settlement is not COMPLETED and job.settlement.ended is not AttemptOutcome.OK:
                    count.add_other(job.settlement.ended.value)
            count.waits[wait_bucket] += same_wait
            for task, task_seconds in seconds.items():
                minute[task if task in minute else OTHER_TASKS].add_runs(task_seconds)

    def add(self, task: str, ended: str, due: datetime | None, start: datetime | None, seconds: float | None) -> None:
        """Count one attempt.

        Args:
            task: Task of the job.
            ended: Outcome.
            due: When the job was due, by the store's clock, if known.
            start: When the job was claimed, by the store's clock, if known.
            seconds: Run time, if known.

        """
        with self._lock:
            if self._store_offset is None:
                return
            count = self._now(task)
            count.counts[ended] += 1
            if due is not None and start is not None:
                count.waits[bisect_left(BUCKET_BOUNDS_SECONDS, (start - due).total_seconds())] += 1
            if seconds is not None:
                count.runs[bisect_left(BUCKET_BOUNDS_SECONDS, seconds)] += 1

    def sync_clock(self, claimed_at: datetime, answered_at: float) -> None:
        """Set the store's time by a reply: the time of its claim, and the monotonic time at which the reply arrived."""
        with self._lock:
            self._sync_clock(claimed_at, answered_at)

    def count_resets(self, jobs: Sequence[ResetJob]) -> None:
        """Count jobs that were reset because their workers died."""
        with self._lock:
            self._early_resets += jobs
            if self._store_offset is not None:
                self._count_early()

    def _sync_clock(self, claimed_at: datetime, answered_at: float) -> None:
        if answered_at > self._synced_at:
            self._synced_at = answered_at
            self._store_offset = claimed_at.timestamp() - answered_at
            if self._early_resets:
                self._count_early()

    def take(self) -> list[TaskMinute]:
        """Return the counts that have changed since the last call. Call ``mark_written`` or ``mark_unwritten`` next."""
        with self._lock:
            if self._store_offset is None:
                return []
            current = self._current_minute()
            for number in [number for number in self._minutes if abs(number - current) > MAX_KEPT_MINUTES]:
                for task in self._minutes[number]:
                    self._lose(number, task)
                del self._minutes[number]
            changed = [
                (number, task, count)
                for number, minute in self._minutes.items()
                for task, count in minute.items()
                if count.is_changed
            ]
            return [TaskMinute(number, task, count.take()) for number, task, count in changed]

    def mark_unwritten(self, task_minutes: Sequence[TaskMinute]) -> None:
        """Include these counts in the next write: they were not written, or the reply was lost."""
        with self._lock:
            for counts in task_minutes:
                self._minutes[counts.minute][counts.task].change()

    def mark_written(self, task_minutes: Sequence[TaskMinute], closed: Collection[tuple[int, str]]) -> None:
        """Note that these counts were written. Those of ``closed`` minutes were not, and count as late."""
        with self._lock:
            for counts in task_minutes:
                if (counts.minute, counts.task) in closed:
                    self._lose(counts.minute, counts.task)
                else:
                    self._minutes[counts.minute][counts.task].accept(counts.tally.ended + counts.tally.late)

    def _lose(self, number: int, task: str) -> None:
        """Count as late, in the current minute, what the store has not accepted of an earlier minute."""
        if late := self._minutes[number][task].lose():
            self._now(task).counts["late"] += late

    def _count_early(self) -> None:
        resets, self._early_resets = self._early_resets, []
        for job in resets:
            count = self._now(job.task)
            count.counts["resets"] += 1
            if job.state is not State.QUEUED:  # failed: reset too often; canceled: requested before the reset
                count.counts[job.state.value] += 1

    def _now(self, task: str) -> _Count:
        minute = self._minutes[self._current_minute()]
        count = minute[task if task in minute or len(minute) < MAX_TASKS_PER_MINUTE else OTHER_TASKS]
        count.change()
        return count

    def _current_minute(self) -> int:
        return int(self._monotonic() + (self._store_offset or 0.0)) // MINUTE_SECONDS


def _histogram(buckets: Sequence[int]) -> Histogram:
    return {bucket: number for bucket, number in enumerate(buckets) if number}


def uncounted(recorded: Sequence[HeldJob]) -> None:
    """Count nothing: the store keeps no throughput."""


class ThroughputWriter:
    """Writer of the throughput, on the heartbeat thread's loop. Does nothing if the store keeps no throughput."""

    def __init__(self, worker: str, counter: ThroughputCounter, events: Events) -> None:
        self._worker = worker
        self._counter = counter
        self._events = events
        self._writer = f"{worker}:{uuid.uuid4().hex[:12]}"
        """Identifies this run, because workers may share a name."""
        self._written_at = float("-inf")
        self._failures = 0
        self.is_finishing = False
        """Whether the last write is pending."""

    def finish(self) -> None:
        """Write at the next tick, whatever the interval."""
        self.is_finishing = True

    async def tick(self, heartbeats: object, now: float) -> None:
        """Write the counts if it is time. After a failure, report it and include them in the next write."""
        is_last, self.is_finishing = self.is_finishing, False
        if not isinstance(heartbeats, ThroughputKeeper) or not (
            is_last or now - self._written_at >= WRITE_INTERVAL_SECONDS
        ):
            return
        task_minutes = self._counter.take()
        if not task_minutes:
            return
        self._written_at = now
        try:
            closed = await heartbeats.write_throughput(self._writer, task_minutes)
        except BaseException as error:
            self._counter.mark_unwritten(task_minutes)
            if isinstance(error, SchemaTooNew) or not isinstance(error, StoreError):
                raise
            self._failures += 1
            if self._failures == 1 or self._failures % 10 == 0:
                self._events.emit(StoreCallFailed(self._worker, "throughput", str(error), WRITE_INTERVAL_SECONDS))
            return
        self._counter.mark_written(task_minutes, closed)
        if self._failures:
            self._events.emit(StoreRecovered(self._worker, "throughput", self._failures))
            self._failures = 0


class RefusalReporter:
    """Reporter of refused changes: one event for each job and operation. Called on the heartbeat thread."""

    def __init__(self, heartbeats: Heartbeats, events: Events, name: str) -> None:
        self._heartbeats = heartbeats
        self._events = events
        self._name = name
        self._reported: dict[tuple[JobId, str], None] = {}

    def report(self) -> Sequence[RefusedChange]:
        """Return the changes refused since the last call, and emit an event for each new one."""
        refused = self._heartbeats.refused()
        for refusal in refused:
            key = refusal.job_id, refusal.operation
            if key not in self._reported:
                if len(self._reported) >= MAX_REPORTED_REFUSALS:
                    del self._reported[next(iter(self._reported))]
                self._reported[key] = None
                self._events.emit(ChangeRefused(self._name, refusal.job_id, refusal.operation, refusal.reason))
        return refused
