"""The public names of each module. Django's are not here: they need Django."""

from __future__ import annotations

from stowhand import events

PUBLIC = {
    "stowhand": "App Cancel Context Events Fail Failure Job JobHandle NewJob NonRetryable Retry Snooze State"
    " StowhandError SyncContext Task Worker WorkerOptions __version__ as_completed exponential gather resource run_all",
    "stowhand.commands": "Command CommandHandler Step step",
    "stowhand.errors": "ConfigurationError CrontabError DuplicateTask InvalidJob JobCanceled JobFailed"
    " JobNotVisible JobRemoved JobReplaced LeaseLost LogRefused Misuse NoResult OutcomeUnknown PayloadMismatch"
    " Poison QueueFull ResourceUnavailable ResultNotKept SchemaError SchemaMissing SchemaOutdated SchemaTooNew"
    " StoreError StoreRefused StoreTooSlow StoreUnreachable TableUnsuitable UndecodablePayload UnknownJob"
    " UnknownTask",
    "stowhand.flows": "DelayError Flow FlowJob FlowJobFailed FlowJobView FlowMonitor FlowShape FlowWorker"
    " Layout Limiter Position Queue QueueCount Stage Status",
    "stowhand.handler": "Attempt ClaimDecision Handler Policy PostHandle PreHandle",
    "stowhand.limits": "Concurrency LimitValues Rate RateLimited",
    "stowhand.steps": "ChildFailed ChildrenFailed",
    "stowhand.observe": "CorrelationFilter FlowMetrics LogListener QueueMetrics TableMetrics Traces WorkerMetrics",
    "stowhand.outcomes": "Complete Outcome",
    "stowhand.query": "Ages Answer ActionResult JobFilter Reschedule Search ids_of",
    "stowhand.remote": "HttpOptions HttpStore",
    "stowhand.retry": "constant natural",
    "stowhand.runner": "BlockingHelpers CronDate CronItem CronOptions Helpers Logger Runner WorkerEvents"
    " WorkerUtils make_worker_utils parse_cron_items parse_crontab quick_add_job run run_migrations run_once",
    "stowhand.stores.api": "Capabilities Claim ClaimRequest Foreign Heartbeats KeyMode Lease Pulse RefusedChange"
    " ResetJob Settlement Store StoreOptions Terms RefusedSettlement Verdict open_store",
    "stowhand.table": "AttemptStore Budget ExecutionLogEntry Finding Resetter ResetterOptions TableOptions"
    " TableStore Where sql",
    "stowhand.testing": "DrainResult FakeClock Jobs MemoryStore RecordedAttempt run_task_list_once",
    "stowhand.web": "Right Visitor dashboard",
    "stowhand.wsgi": "dashboard",
}


def public_names(module: str) -> set[str]:
    """Return the names that programs of users import from this module; empty: it is internal."""
    if module == "stowhand.events":
        return {
            name for name, kind in vars(events).items() if isinstance(kind, type) and issubclass(kind, events.Event)
        }
    return set(PUBLIC.get(module, "").split())
