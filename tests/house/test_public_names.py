"""The public names are frozen: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

import inspect
import subprocess
import sys

import stowhand
from stowhand.app.sync import Sync
from stowhand.protocols.operating import Operator
from stowhand.protocols.queue_store import Administrator, Inspector, Producer, Schema, Timetable

PUBLIC = [
    "Ages",
    "Answer",
    "App",
    "Attempt",
    "AttemptStore",
    "BlockingHelpers",
    "Budget",
    "Cancel",
    "Claimable",
    "Complete",
    "ConfigurationError",
    "Context",
    "CorrelationFilter",
    "Done",
    "Events",
    "ExecutionLogEntry",
    "Fail",
    "Finding",
    "FlowMetrics",
    "Handler",
    "Helpers",
    "HttpOptions",
    "HttpStore",
    "InvalidJob",
    "Job",
    "JobFilter",
    "KeyMode",
    "Lease",
    "LogListener",
    "NewJob",
    "NonRetryable",
    "Outcome",
    "OutcomeUnknown",
    "Poison",
    "Policy",
    "PostHandle",
    "PreHandle",
    "QueueFull",
    "QueueMetrics",
    "Reschedule",
    "Resetter",
    "ResetterOptions",
    "Retry",
    "Snooze",
    "State",
    "Store",
    "StoreOptions",
    "StoreUnreachable",
    "StowhandError",
    "TableMetrics",
    "TableOptions",
    "TableStore",
    "Traces",
    "Where",
    "Worker",
    "WorkerMetrics",
    "WorkerOptions",
    "__version__",
    "ids_of",
    "open_store",
    "run_all",
    "sql",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(stowhand.__all__) == sorted(PUBLIC)


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        assert getattr(stowhand, name) is not None


def test_importing_the_package_imports_no_driver() -> None:
    script = "import sys, stowhand; stowhand.App, stowhand.Worker; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"psycopg", "sqlite3", "pydantic", "rich"} & set(loaded)


def test_every_question_of_a_store_is_part_of_the_synchronous_face() -> None:
    asked = {
        name
        for part in (Inspector, Administrator, Operator, Producer, Timetable, Schema)
        for name, method in vars(part).items()
        if inspect.iscoroutinefunction(method)
    }
    by_themselves = {"register", "schedule", "plan", "uninstall", "foreign_changes"}
    assert asked - by_themselves <= set(vars(Sync))
