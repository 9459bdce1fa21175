"""Names in other libraries and their equivalents here, for errors about an unknown option, attribute or command.

A hint applies only where the equivalent is a known name: ``delay`` means ``enqueue`` among the attributes of a task.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_FOREIGN_NAMES = {
    # options of a job, a task, a worker
    "max_attempts": "max_retries retries retry attempts",
    "delay": "countdown eta schedule_in in_seconds defer_by when",
    "run_at": "countdown eta schedule_in schedule_at scheduled_at defer_until",
    "expires": "ttl expires_in expiry",
    "timeout": "time_limit soft_time_limit job_timeout execution_timeout",
    "backoff": "retry_backoff retry_delay default_retry_delay min_backoff max_backoff retry_strategy",
    "error": "exc exception",
    "retry_on": "autoretry_for retry_exceptions retry_for",
    "give_up_on": "throws dont_autoretry_for",
    "queue": "group routing_key work_queue",
    "queues": "groups",
    "serial": "lock",
    "key": "job_key queueing_lock",
    "key_mode": "job_key_mode",
    "unique": "unique_for deduplicate dedup",
    "concurrency": "jobs workers threads max_workers num_workers",
    "lease": "visibility_timeout",
    "look_ahead": "prefetch prefetch_multiplier prefetch_count",
    "max_jobs": "max_tasks_per_child",
    # attributes of a task, an App, a handle, the context; commands
    "enqueue": "delay apply_async send defer defer_async kiq perform_async submit send_task push call",
    "enqueue_sync": "enqueue_blocking",
    "enqueue_many": "batch_defer batch_defer_async starmap map enqueue_all",
    "options": "configure send_with_options with_options set kicker using schedule enqueue_at enqueue_in_seconds",
    "new_job": "s si signature message",
    "add_job": "send_task configure_task",
    "cron": "periodic periodic_task add_periodic_task on_after_configure crontab beat schedule every",
    "job": "AsyncResult",
    "id": "job_id task_id message_id",
    "result": "get get_result wait_result return_value",
    "state": "status ready successful failed",
    "states": "state status",
    "cancel": "revoke abort",
    "canceled": "is_aborted should_abort",
    "progress": "update_state set_progress",
    "worker": "run_worker run_worker_async consumer start run",
    "web": "flower",
    "migrate": "schema",
    "doctor": "healthchecks",
}
"""Names of other libraries, by Stowhand's name."""

_RATE_HINT = "a task limits how often its jobs start: @app.task(limits=[Rate(10, per='1m')]), with stowhand.limits"
_QUEUE_HINT = "queue=... is the class of work, and serial=... runs jobs one at a time"
_QUEUES_HINT = "a worker chooses by queue, the class of work; serial=... of a task or job runs jobs one at a time"
_APP_QUEUE_HINT = f"a task or a job has a queue: @app.task(queue='mail'). {_QUEUE_HINT}"
_RETRY_HINT = "for another attempt: raise Retry('why', delay='5m')"
_SYNC_HINT = "without an event loop: app.sync.enqueue(task, …), or task.enqueue_sync(…)"
_FLOW_HINT = "for jobs that follow others: ctx.enqueue_after(task, …), or a flow; for many results: await gather(jobs)"
_ATTEMPTS_HINT = "the number of attempts belongs to a task or to a job: @app.task(max_attempts=5)"
_CONTEXT_HINT = "a task that needs its job has a parameter `ctx: Context`"
_STORE_HINT = "the store is the first argument, and keeps results too: App('postgresql:///shop')"
_APP_HINT = "an App declares tasks and enqueues their jobs: app = App('postgresql:///shop')"
_TASK_HINT = "an App declares tasks: app = App('postgresql:///shop'), and @app.task above a function"
_TIME_ZONE_HINT = (
    "a cron item with options is declared below its task: app.cron('0 7 * * mon', task, tz='Europe/Berlin')"
)
_JITTER_HINT = "it is part of the backoff: backoff=exponential('30s', cap='1h', jitter=0.2)"
_ADVICE = {
    ("Celery", "App"): _APP_HINT,
    ("Huey", "App"): _APP_HINT,
    ("Queue", "App"): _APP_HINT,
    ("shared_task", "App"): _TASK_HINT,
    ("task", "App"): _TASK_HINT,
    ("actor", "App"): _TASK_HINT,
    ("chain", "App"): _FLOW_HINT,
    ("chord", "App"): _FLOW_HINT,
    ("group", "App"): _FLOW_HINT,
    ("queue_name", "serial"): _QUEUE_HINT,
    ("queue_name", "queues"): _QUEUES_HINT,
    ("queue_name", "pool_size"): _APP_QUEUE_HINT,
    ("rate_limit", "serial"): _RATE_HINT,
    ("rate_limit", "concurrency"): _RATE_HINT,
    ("rate_limit", "pool_size"): _RATE_HINT,
    ("max_retries", "poll_interval"): _ATTEMPTS_HINT,
    ("retries", "poll_interval"): _ATTEMPTS_HINT,
    ("max_attempts", "poll_interval"): _ATTEMPTS_HINT,
    ("max_retries", "error_class"): _ATTEMPTS_HINT,
    ("tz", "retry_on"): _TIME_ZONE_HINT,
    ("timezone", "retry_on"): _TIME_ZONE_HINT,
    ("identifier", "retry_on"): _TIME_ZONE_HINT,
    ("backfill_period", "retry_on"): _TIME_ZONE_HINT,
    ("retry_jitter", "backoff"): _JITTER_HINT,
    ("retry_backoff_max", "backoff"): _JITTER_HINT,
    ("acks_late", "serial"): "a job of a lost worker runs again, as with acks_late=True; leave it out",
    ("ignore_result", "serial"): "a task that returns None keeps no result; leave it out",
    ("serializer", "serial"): "arguments and results are JSON; annotate the parameters, and leave it out",
    ("bind", "serial"): _CONTEXT_HINT,
    ("pass_context", "serial"): _CONTEXT_HINT,
    ("broker", "pool_size"): _STORE_HINT,
    ("broker_url", "pool_size"): _STORE_HINT,
    ("backend", "pool_size"): _STORE_HINT,
    ("dsn", "pool_size"): _STORE_HINT,
    ("connector", "pool_size"): _STORE_HINT,
    ("enqueue_sync", "enqueue_many"): _SYNC_HINT,
    ("apply", "new_job"): "to run it at once in this process: call the task as a function",
    ("control", "discover"): "to cancel a job: await app.cancel(id); to see what runs: stowhand top",
    ("retry", "new_job"): _RETRY_HINT,
    ("retry", "enqueue_after"): _RETRY_HINT,
    ("request", "enqueue_after"): "the job of this attempt is ctx.job",
    ("conf", "enqueue_many"): "options are arguments of App(…), or settings: docs/reference/settings.md",
    ("autodiscover_tasks", "enqueue_many"): "name the modules of tasks: App(include=['shop.tasks'])",
}
"""Advice by a foreign name and a name that is known in its place."""

MIN_SIMILARITY = 0.85
"""Minimum similarity of a misspelling."""
NAMES_BY_FOREIGN_NAME: dict[str, list[str]] = {}
"""Stowhand's names by the name in another library, the nearest first."""
for _ours, _theirs in _FOREIGN_NAMES.items():
    for _word in _theirs.split():
        NAMES_BY_FOREIGN_NAME.setdefault(_word, []).append(_ours)
KNOWN_NAMES_BY_FOREIGN_NAME = {name: set(known) for name, known in NAMES_BY_FOREIGN_NAME.items()}
"""The names that give a hint where they are known, equivalents and those with advice, by the foreign name."""
for _theirs, _ours in _ADVICE:
    KNOWN_NAMES_BY_FOREIGN_NAME.setdefault(_theirs, set()).add(_ours)


def find_equivalents(word: object, known: Collection[str]) -> list[str]:
    """Return the known names that mean the same as ``word``, or a misspelling of it, in another library."""
    candidates = dict.fromkeys([*(name.lower() for name in known), *NAMES_BY_FOREIGN_NAME])
    nearest = difflib.get_close_matches(str(word).lower(), candidates, 1, MIN_SIMILARITY)
    foreign_names = [name for name in nearest if name not in known]
    return [ours for name in foreign_names for ours in NAMES_BY_FOREIGN_NAME.get(name, ()) if ours in known]


def find_advice(word: object, known: Collection[str]) -> str | None:
    """Return the advice for a name of another library; ``None`` if there is none."""
    return next((text for (theirs, ours), text in _ADVICE.items() if theirs == word and ours in known), None)
