"""Every metric: its name, help text, labels and buckets. Tests compare the reference pages with this file.

Each definition is called with a registry to create the metric. A counter is exported as ``<name>_total``.

Dashboards and alerts use these names and labels, so they never change, even where two labels mean the same: ``kind`` of
a worker and ``task`` of a store are both the name of a task; ``op`` of a table is a hook or a call.
"""

from __future__ import annotations

from functools import partial

from stowhand.observe.prometheus import Counter, Gauge, GaugeMetricFamily, Histogram

OTHER_LABEL = "other"
"""Label of all tasks, serial keys or limits without their own series."""
LOST_OUTCOME = "lost"
UNKNOWN_OUTCOME = "unknown"
"""Outcomes that no handler returns: the lease was lost; the store cannot tell whether it was recorded."""


def exponential(first: float, factor: float, number: int) -> tuple[float, ...]:
    """Return the upper bounds of ``number`` buckets, each ``factor`` times the one before."""
    return tuple(round(first * factor**power, 9) for power in range(number))


JOB_BUCKETS_SECONDS = exponential(0.005, 2.5, 12)
WAIT_BUCKETS_SECONDS = exponential(0.001, 4, 12)
CALL_BUCKETS_SECONDS = exponential(0.001, 2.5, 12)
LAG_BUCKETS_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LATE_BUCKETS_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Buckets for durations of unknown magnitude."""
PEAK_WINDOW_SECONDS = 5.0
"""Window for the largest number of handlers at once. The current number alone would miss short handlers."""
SIZE_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)

# -- a worker ------------------------------------------------------------------------------------


Calls = tuple[partial[Histogram], partial[Histogram]]
"""Metrics of store calls: duration, and number of jobs per call."""


def _calls(call: str, subject: str) -> Calls:
    name = f"stowhand_worker_{call}"
    help_text = f"How long the store took to answer: {call}"
    return (
        partial(Histogram, f"{name}_duration_seconds", help_text, buckets=CALL_BUCKETS_SECONDS),
        partial(Histogram, f"{name}_{subject}", f"{subject.capitalize()} in one call: {call}", buckets=SIZE_BUCKETS),
    )


WORKER_JOBS = partial(Counter, "stowhand_worker_jobs_processed", "Attempts that have ended", ("kind", "outcome"))
WORKER_JOB_SECONDS = partial(
    Histogram, "stowhand_worker_job_duration_seconds", "How long handlers took", ("kind",), buckets=JOB_BUCKETS_SECONDS
)
WORKER_WAIT_SECONDS = partial(
    Histogram,
    "stowhand_worker_job_wait_seconds",
    "How long jobs were due before they were claimed",
    ("kind",),
    buckets=WAIT_BUCKETS_SECONDS,
)
WORKER_RUNNING = partial(Gauge, "stowhand_worker_in_flight", "Running handlers", ("kind",), multiprocess_mode="livesum")
WORKER_ABANDONED = partial(
    Gauge,
    "stowhand_worker_abandoned_threads",
    "Threads that still run a handler whose attempt has ended",
    multiprocess_mode="livesum",
)
WORKER_CLAIMS, WORKER_SETTLES = _calls("claim", "jobs"), _calls("settle", "jobs")
WORKER_BEATS = _calls("heartbeat", "leases")
WORKER_LAG = partial(
    Histogram,
    "stowhand_worker_loop_lag_seconds",
    "Largest delay of the event loop within each second",
    buckets=LAG_BUCKETS_SECONDS,
)
WORKER_RESETS = partial(
    Counter, "stowhand_worker_resets", "Jobs of lost workers that were reset, by their new state", ("state",)
)
WORKER_LOST = partial(Counter, "stowhand_worker_lost_leases", "Leases that were lost before the outcome was recorded")
WORKER_CRON_LATE = partial(
    Histogram,
    "stowhand_worker_cron_lateness_seconds",
    "Delay from the scheduled minute of a recurring job to its creation, without backfilled jobs",
    buckets=LATE_BUCKETS_SECONDS,
)
WORKER_INFO = partial(
    Gauge,
    "stowhand_worker_info",
    "Version of the worker and kind of its store; always 1",
    ("version", "store"),
    multiprocess_mode="livemax",
)

# -- a queue store -------------------------------------------------------------------------------

_STATES_TEXT = "waiting, due (part of waiting), running, failed"
QUEUE_JOBS = partial(GaugeMetricFamily, "stowhand_queue_jobs", "Jobs in the store, by state", labels=("state",))
QUEUE_TASK_JOBS = partial(
    GaugeMetricFamily, "stowhand_queue_task_jobs", f"Live jobs, by task: {_STATES_TEXT}", labels=("task", "state")
)
QUEUE_LIVE_JOBS = partial(
    GaugeMetricFamily, "stowhand_queue_live_jobs", f"Live jobs, by queue: {_STATES_TEXT}", labels=("queue", "state")
)
QUEUE_SERIAL_JOBS = partial(
    GaugeMetricFamily,
    "stowhand_queue_serial_jobs",
    f"Live jobs that have a serial key, by key: {_STATES_TEXT}",
    labels=("serial", "state"),
)
QUEUE_PAUSED = partial(GaugeMetricFamily, "stowhand_queue_paused", "Serial keys, tasks and queues that are paused")
QUEUE_IS_PAUSED = partial(
    GaugeMetricFamily,
    "stowhand_queue_is_paused",
    "Whether the queue itself is paused (1) or not (0); pauses of tasks and serial keys do not count",
    labels=("queue",),
)
QUEUE_PAUSED_SINCE = partial(
    GaugeMetricFamily,
    "stowhand_queue_paused_since_timestamp_seconds",
    "Start of the oldest pause in Unix seconds; absent if nothing is paused",
)
QUEUE_LIMIT_JOBS = partial(
    GaugeMetricFamily,
    "stowhand_queue_limit_jobs",
    "Jobs of a limit of tasks: used (they hold one of its slots), waiting, due (part of waiting)",
    labels=("limit", "state"),
)
QUEUE_LIMIT_SLOTS = partial(
    GaugeMetricFamily,
    "stowhand_queue_limit_slots",
    "Number of jobs of the limit that may run at once, over all workers",
    labels=("limit",),
)
QUEUE_CRON_UNSCHEDULED = partial(
    GaugeMetricFamily,
    "stowhand_queue_cron_unscheduled",
    "Whether no live scheduler has the recurring item (1) or one has (0)",
    labels=("item",),
)
QUEUE_CRON_MISSED = partial(
    GaugeMetricFamily,
    "stowhand_queue_cron_missed",
    "Whether the recurring item missed a tick within the last day and has created no job since (1) or not (0)",
    labels=("item",),
)
QUEUE_OLDEST_DUE = partial(
    GaugeMetricFamily,
    "stowhand_queue_oldest_due_seconds",
    "How long the oldest due job of the queue has been due; 0 if none is due. Paused jobs do not count",
    labels=("queue",),
)

# -- a user's table ------------------------------------------------------------------------------


Operations = tuple[partial[Counter], partial[Counter], partial[Histogram]]
"""Metrics of an operation: number, failures, and duration."""


def _operations(name: str, of: str, subject: str) -> Operations:
    return (
        partial(Counter, name, subject, (of, "op")),
        partial(Counter, f"{name}_errors", f"{subject} that failed", (of, "op")),
        partial(
            Histogram,
            f"{name}_duration_seconds",
            f"How long they took: {subject.lower()}",
            (of, "op"),
            buckets=DURATION_BUCKETS_SECONDS,
        ),
    )


TABLE_HOOKS = _operations("stowhand_table_worker", "worker", "Hooks of handlers")
TABLE_CALLS = _operations("stowhand_table_store", "store", "Calls to stores")
TABLE_HANDLERS = partial(
    Gauge,
    "stowhand_table_worker_handlers",
    f"Largest number of handlers running at once within {PEAK_WINDOW_SECONDS:g} s",
    ("worker",),
)
TABLE_WAITING = partial(Gauge, "stowhand_table_queue_total", "Waiting records", ("store",))
TABLE_LONGEST_WAIT = partial(
    Gauge, "stowhand_table_queue_longest_wait_seconds", "How long the oldest due record has been due", ("store",)
)
TABLE_OLDEST_CLAIM = partial(Gauge, "stowhand_table_queue_oldest_claim_seconds", "Age of the oldest claim", ("store",))
TABLE_RESETS = partial(Counter, "stowhand_table_resetter_resets", "Records returned to the queue", ("resetter",))
TABLE_RESET_FAILURES = partial(
    Counter, "stowhand_table_resetter_reset_failures", "Records reset too often", ("resetter",)
)
TABLE_RESET_ERRORS = partial(Counter, "stowhand_table_resetter_errors", "Sweeps that failed", ("resetter",))

# -- a flow --------------------------------------------------------------------------------------

FLOW_JOBS = partial(Counter, "stowhand_flow_jobs", "Executions of jobs", ("flow", "queue", "outcome"))
FLOW_JOB_SECONDS = partial(
    Histogram,
    "stowhand_flow_job_duration_seconds",
    "How long executions took",
    ("flow", "queue"),
    buckets=DURATION_BUCKETS_SECONDS,
)
FLOW_RESETS = partial(Counter, "stowhand_flow_resets", "Jobs of lost workers that were reset", ("flow",))
FLOW_QUEUE_JOBS = partial(Gauge, "stowhand_flow_queue_jobs", "Jobs in a queue", ("flow", "queue", "priority", "state"))

# -- a lent store --------------------------------------------------------------------------------

LENDING_REQUESTS = partial(Counter, "stowhand_lending_requests", "Requests answered", ("call", "status"))
LENDING_RECORDS = partial(Counter, "stowhand_lending_records", "Records lent to workers")
LENDING_VERDICTS = partial(Counter, "stowhand_lending_verdicts", "Verdicts on settlements", ("verdict",))
