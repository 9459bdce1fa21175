"""The public names are frozen: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import stowhand
from stowhand.app.app import App
from stowhand.app.options import StoreKeywords, WorkerKeywords
from stowhand.app.sync import Sync
from stowhand.cron.sources import CronKeywords, CronSources
from stowhand.protocols.operating import Operator
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import Administrator, Inspector, Producer, Schema, Timetable
from stowhand.protocols.store import StoreOptions
from stowhand.stores.memory.store import MemoryStore
from stowhand.tasks.registry import TaskOptions

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


def test_an_app_has_these_members_and_no_others() -> None:
    members = {name for name in {*vars(App), *vars(App(store=MemoryStore()))} if not name.startswith("_")}
    assert sorted(members) == [
        *("add_job", "add_jobs", "any_store", "close", "cron", "cron_items", "discover", "enqueue", "enqueue_in"),
        *("enqueue_many", "open", "own_store", "registry", "run_in_background", "sync", "task", "traces", "worker"),
    ]


def test_one_setting_has_one_name_wherever_python_takes_it() -> None:
    assert _keywords(App) == ["around_thread", "include", "logger_factory", "store", "traces", "url"]
    assert _keywords(App.worker) == ["clock", "events"]
    assert _keywords(App.task) == ["name"]
    assert sorted(StoreKeywords.__annotations__) == sorted({*StoreOptions.__struct_fields__, "preset"} - {"pinned"})
    assert sorted(WorkerKeywords.__annotations__) == sorted(
        {*WorkerOptions.__struct_fields__, *CronSources.__annotations__}
    )
    assert sorted(TaskOptions.__annotations__) == [
        *("backoff", "delay", "executor", "flags", "key", "key_mode", "max_attempts", "max_resets", "mismatch"),
        *("priority", "queue", "run_at", "timeout"),
    ]
    assert set(CronKeywords.__annotations__) - {"backfill_period"} <= set(TaskOptions.__annotations__)


def _keywords(called: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(called).parameters.values()
    return sorted(
        one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in ("self", "function")
    )
