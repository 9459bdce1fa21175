"""Background jobs in Python on the store you already have. One worker, any store.

Declare a function as a task, and enqueue a job for it:

    # jobs.py
    import asyncio

    from stowhand import App

    app = App("sqlite:///jobs.db")

    @app.task
    async def send(to: str) -> None:
        print("to", to)

    async def main() -> None:
        await send.enqueue("ada@example.org")

    if __name__ == "__main__":
        app.sync.install()
        asyncio.run(main())

Run it with a worker:

    $ python jobs.py
    $ stowhand worker jobs:app

Most programs need the names of this module only. Others are in modules by topic:

    stowhand.errors      every exception
    stowhand.events      what a worker reports
    stowhand.retry       backoff
    stowhand.outcomes    Complete, Outcome
    stowhand.limits      how many jobs of a task run and start, over all workers
    stowhand.steps       errors of child jobs (``ctx.call``, ``ctx.map``)
    stowhand.query       which jobs to list, search and change
    stowhand.handler     protocols for your own handlers and middleware
    stowhand.table       your own table as a queue
    stowhand.observe     log lines, metrics, traces
    stowhand.remote      a store that is lent over HTTP
    stowhand.stores.api  protocols and types for your own store
    stowhand.flows, stowhand.commands, stowhand.runner, stowhand.testing, stowhand.web, stowhand.wsgi, stowhand.django

Importing this package imports no driver, and each name only when it is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stowhand.lazy_names import lazy_names

if sys.platform == "win32":
    raise ImportError(
        "Stowhand runs on Linux and macOS. On Windows, run it in WSL 2 or in a container (deploy/Dockerfile)."
    )

if TYPE_CHECKING:
    from stowhand.app.app import App
    from stowhand.app.results import as_completed, gather
    from stowhand.errors import NonRetryable, StowhandError
    from stowhand.events import Events
    from stowhand.jobs.failure import Failure
    from stowhand.jobs.job import Job, NewJob, State
    from stowhand.jobs.lifecycle import Cancel, Fail, Retry, Snooze
    from stowhand.protocols.options import WorkerOptions
    from stowhand.retry import exponential
    from stowhand.service.run_all import run_all
    from stowhand.tasks.context import Context, SyncContext
    from stowhand.tasks.job_handle import JobHandle
    from stowhand.tasks.resource import resource
    from stowhand.tasks.task import Task
    from stowhand.worker.worker import Worker

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "app.app": "App",
    "app.results": "as_completed gather",
    "errors": "NonRetryable StowhandError",
    "events": "Events",
    "jobs.failure": "Failure",
    "jobs.job": "Job NewJob State",
    "jobs.lifecycle": "Cancel Fail Retry Snooze",
    "protocols.options": "WorkerOptions",
    "retry": "exponential",
    "service.run_all": "run_all",
    "tasks.context": "Context SyncContext",
    "tasks.job_handle": "JobHandle",
    "tasks.resource": "resource",
    "tasks.task": "Task",
    "worker.worker": "Worker",
}
_NAMES_OF_OTHER_MODULES = {
    "commands": "Command CommandHandler Step step",
    "errors": "ConfigurationError CrontabError DuplicateTask InvalidJob JobCanceled JobFailed JobNotVisible JobRemoved"
    " JobReplaced LeaseLost LogRefused Misuse NoResult OutcomeUnknown PayloadMismatch Poison QueueFull"
    " ResourceUnavailable ResultNotKept SchemaError SchemaMissing SchemaOutdated SchemaTooNew StoreError StoreRefused"
    " StoreTooSlow StoreUnreachable TableUnsuitable UndecodablePayload UnknownJob UnknownTask",
    "flows": "Flow FlowJob FlowWorker",
    "handler": "Attempt ClaimDecision Handler Policy PostHandle PreHandle",
    "limits": "Concurrency LimitValues Rate RateLimited",
    "observe": "CorrelationFilter FlowMetrics LogListener QueueMetrics TableMetrics Traces WorkerMetrics",
    "outcomes": "Complete Outcome",
    "query": "Ages Answer ActionResult JobFilter Reschedule Search ids_of",
    "remote": "HttpOptions HttpStore",
    "retry": "constant natural",
    "runner": "BlockingHelpers Helpers",
    "stores.api": "Capabilities Claim ClaimRequest Foreign Heartbeats KeyMode Lease Pulse RefusedChange ResetJob"
    " Settlement Store StoreOptions Terms RefusedSettlement Verdict open_store",
    "steps": "ChildFailed ChildrenFailed",
    "table": "AttemptStore Budget ExecutionLogEntry Finding Resetter ResetterOptions TableOptions TableStore Where sql",
    "testing": "FakeClock MemoryStore",
}
"""Names of other public modules, which an import from this one names in its error."""

__all__ = [
    "App",
    "Cancel",
    "Context",
    "Events",
    "Fail",
    "Failure",
    "Job",
    "JobHandle",
    "NewJob",
    "NonRetryable",
    "Retry",
    "Snooze",
    "State",
    "StowhandError",
    "SyncContext",
    "Task",
    "Worker",
    "WorkerOptions",
    "__version__",
    "as_completed",
    "exponential",
    "gather",
    "resource",
    "run_all",
]


def _refuse_unknown_name(name: str) -> None:
    """Raise ImportError for a name of another public module or of another library.

    It is not an AttributeError, because ``from stowhand import`` hides the message of one.
    """
    from stowhand.hints import find_advice

    for module, names in _NAMES_OF_OTHER_MODULES.items():
        if name in names.split():
            raise ImportError(f"stowhand has no {name!r}: write 'from stowhand.{module} import {name}'")
    if (advice := find_advice(name, __all__)) is not None:
        raise ImportError(f"stowhand has no {name!r}: {advice}")


if not TYPE_CHECKING:  # type checkers would take any name for one of this module
    __getattr__, __dir__ = lazy_names(__name__, _NAMES_BY_MODULE, _refuse_unknown_name)
