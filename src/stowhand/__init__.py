"""Stowhand: background jobs in Python on the store you already have. One worker, any store.

    jobs/       what a job is and what may become of it
    protocols/  the seams: store, handler, options
    worker/     the life of a job; worker.py: claim, run, settle, renew leases, stop        (start reading here)
    stores/     postgres, sqlite, memory: the queue we own, and any table of a user's;  remote/: one that is lent
    tasks/      @app.task, dispatch;  cron/, commands/, flows/: what else a job can be
    app/        declare, enqueue, embed; settings/: what can be set
    service/    supervised processes, signals, health;  runner/: the same as a library
    observe/    log lines, metrics, traces, made of events
    testing/    what users test with
    cli/        one file per command
    events.py, retry.py, errors.py, clock.py    the list of events, backoff, every exception, the only door to time

Importing this package imports no driver, and each name only when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stowhand.app.answers import ids_of
    from stowhand.app.app import App
    from stowhand.app.results import as_completed, gather
    from stowhand.errors import (
        ConfigurationError,
        InvalidJob,
        JobCanceled,
        JobFailed,
        JobNotVisible,
        JobRemoved,
        JobReplaced,
        NonRetryable,
        NoResult,
        OutcomeUnknown,
        Poison,
        QueueFull,
        ResultNotKept,
        StoreUnreachable,
        StowhandError,
        UnknownJob,
    )
    from stowhand.events import Events
    from stowhand.jobs.conditions import Where, sql
    from stowhand.jobs.execution_log import ExecutionLogEntry
    from stowhand.jobs.failure import Failure
    from stowhand.jobs.job import Job, KeyMode, NewJob, State
    from stowhand.jobs.lease import Lease, ResetJob
    from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Settlement, Snooze
    from stowhand.observe.correlation import CorrelationFilter
    from stowhand.observe.flow_metrics import FlowMetrics
    from stowhand.observe.listener import LogListener
    from stowhand.observe.queue_metrics import QueueMetrics
    from stowhand.observe.table_metrics import TableMetrics
    from stowhand.observe.traces import Traces
    from stowhand.observe.worker_metrics import WorkerMetrics
    from stowhand.protocols.attempt import Attempt
    from stowhand.protocols.handler import Claimable, Handler, PostHandle, PreHandle
    from stowhand.protocols.operating import Ages
    from stowhand.protocols.options import WorkerOptions
    from stowhand.protocols.queue_store import Answer, Done, JobFilter, Reschedule
    from stowhand.protocols.searching import Search
    from stowhand.protocols.store import (
        Capabilities,
        Claim,
        ClaimRequest,
        Foreign,
        Heartbeats,
        Pulse,
        Refusal,
        Store,
        StoreOptions,
        Terms,
        Unwritten,
        Verdict,
    )
    from stowhand.remote.client.options import HttpOptions
    from stowhand.remote.client.store import HttpStore
    from stowhand.service.run_all import run_all
    from stowhand.stores.table.attempt_store import AttemptStore
    from stowhand.stores.table.backend import Finding
    from stowhand.stores.table.options import TableOptions
    from stowhand.stores.table.store import TableStore
    from stowhand.stores.url import open_store
    from stowhand.tasks.context import BlockingHelpers, Context, Helpers
    from stowhand.tasks.job_handle import JobHandle
    from stowhand.tasks.resource import resource
    from stowhand.worker.budget import Budget
    from stowhand.worker.policy import Policy
    from stowhand.worker.resetter import Resetter, ResetterOptions
    from stowhand.worker.worker import Worker

__version__ = "0.1.0"

_ROOMS = {
    "app.answers": "ids_of",
    "app.app": "App",
    "app.results": "as_completed gather",
    "errors": "ConfigurationError InvalidJob JobCanceled JobFailed JobNotVisible JobRemoved JobReplaced NoResult "
    "NonRetryable OutcomeUnknown Poison QueueFull ResultNotKept StoreUnreachable StowhandError UnknownJob",
    "events": "Events",
    "jobs.conditions": "Where sql",
    "jobs.execution_log": "ExecutionLogEntry",
    "jobs.failure": "Failure",
    "jobs.job": "Job KeyMode NewJob State",
    "jobs.lease": "Lease ResetJob",
    "jobs.lifecycle": "Cancel Complete Fail Outcome Retry Settlement Snooze",
    "observe.correlation": "CorrelationFilter",
    "observe.flow_metrics": "FlowMetrics",
    "observe.listener": "LogListener",
    "observe.queue_metrics": "QueueMetrics",
    "observe.table_metrics": "TableMetrics",
    "observe.traces": "Traces",
    "observe.worker_metrics": "WorkerMetrics",
    "protocols.attempt": "Attempt",
    "protocols.handler": "Claimable Handler PostHandle PreHandle",
    "protocols.operating": "Ages",
    "protocols.options": "WorkerOptions",
    "protocols.queue_store": "Answer Done JobFilter Reschedule",
    "protocols.searching": "Search",
    "protocols.store": "Capabilities Claim ClaimRequest Foreign Heartbeats Pulse Refusal Store StoreOptions Terms "
    "Unwritten Verdict",
    "remote.client.options": "HttpOptions",
    "remote.client.store": "HttpStore",
    "service.run_all": "run_all",
    "stores.url": "open_store",
    "stores.table.attempt_store": "AttemptStore",
    "stores.table.backend": "Finding",
    "stores.table.options": "TableOptions",
    "stores.table.store": "TableStore",
    "tasks.context": "BlockingHelpers Context Helpers",
    "tasks.job_handle": "JobHandle",
    "tasks.resource": "resource",
    "worker.budget": "Budget",
    "worker.policy": "Policy",
    "worker.resetter": "Resetter ResetterOptions",
    "worker.worker": "Worker",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "Ages",
    "Answer",
    "App",
    "Attempt",
    "AttemptStore",
    "BlockingHelpers",
    "Budget",
    "Cancel",
    "Capabilities",
    "Claim",
    "ClaimRequest",
    "Claimable",
    "Complete",
    "ConfigurationError",
    "Context",
    "CorrelationFilter",
    "Done",
    "Events",
    "ExecutionLogEntry",
    "Fail",
    "Failure",
    "Finding",
    "FlowMetrics",
    "Foreign",
    "Handler",
    "Heartbeats",
    "Helpers",
    "HttpOptions",
    "HttpStore",
    "InvalidJob",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobNotVisible",
    "JobRemoved",
    "JobReplaced",
    "KeyMode",
    "Lease",
    "LogListener",
    "NewJob",
    "NoResult",
    "NonRetryable",
    "Outcome",
    "OutcomeUnknown",
    "Poison",
    "Policy",
    "PostHandle",
    "PreHandle",
    "Pulse",
    "QueueFull",
    "QueueMetrics",
    "Refusal",
    "Reschedule",
    "ResetJob",
    "Resetter",
    "ResetterOptions",
    "ResultNotKept",
    "Retry",
    "Search",
    "Settlement",
    "Snooze",
    "State",
    "Store",
    "StoreOptions",
    "StoreUnreachable",
    "StowhandError",
    "TableMetrics",
    "TableOptions",
    "TableStore",
    "Terms",
    "Traces",
    "UnknownJob",
    "Unwritten",
    "Verdict",
    "Where",
    "Worker",
    "WorkerMetrics",
    "WorkerOptions",
    "__version__",
    "as_completed",
    "gather",
    "ids_of",
    "open_store",
    "resource",
    "run_all",
    "sql",
]


def __getattr__(name: str) -> object:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value
