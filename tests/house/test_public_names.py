"""The public names are frozen: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable

import pytest

import stowhand
from stowhand.app.app import App
from stowhand.app.options import StoreKeywords, WorkerKeywords
from stowhand.app.sync import Sync
from stowhand.cron.sources import CronKeywords, CronSources
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.operator import Operator
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.producer import Producer
from stowhand.protocols.queue_store import Administrator, Inspector, Schema, Timetable
from stowhand.protocols.store import Claim, StoreOptions
from stowhand.tasks.context import Context
from stowhand.tasks.registry import TaskOptions
from stowhand.testing import MemoryStore
from stowhand.worker.worker import Worker
from tests.support.imported import modules_after
from tests.support.public_names import PUBLIC
from tests.support.sources import ROOT, package_sources


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_complete(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(PUBLIC[module].split())


def test_a_public_name_has_one_import_path() -> None:
    paths: dict[int, str] = {}
    for module, names in PUBLIC.items():
        for name in names.split():
            value = getattr(importlib.import_module(module), name)
            path = f"{module}.{name}"
            assert paths.setdefault(id(value), path) == path


def test_the_package_lists_only_its_names() -> None:
    assert dir(stowhand) == sorted(PUBLIC["stowhand"].split())


def test_an_import_on_windows_raises_an_error_that_names_the_way_out() -> None:
    program = "import sys; sys.platform = 'win32'; import stowhand"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("ImportError: Stowhand runs on Linux and macOS. On Windows, run it in WSL 2 or in a ")


def test_the_help_of_the_package_shows_a_program() -> None:
    shown = pydoc.plain(pydoc.render_doc(stowhand))
    assert "app = App(" in shown.partition("PACKAGE CONTENTS")[0]
    assert "class Worker(" in shown


def test_a_name_of_another_module_gets_its_path() -> None:
    topics = ("errors", "handler", "limits", "observe", "outcomes", "query", "remote", "retry", "stores.api", "table")
    for module, name in [(topic, name) for topic in topics for name in PUBLIC[f"stowhand.{topic}"].split()]:
        with pytest.raises(ImportError) as raised:
            exec(f"from stowhand import {name}")
        assert str(raised.value) == f"stowhand has no {name!r}: write 'from stowhand.{module} import {name}'"


def test_every_answer_names_a_path_that_exists() -> None:
    for module, names in vars(stowhand)["_NAMES_OF_OTHER_MODULES"].items():
        assert set(names.split()) <= set(PUBLIC[f"stowhand.{module}"].split())


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(stowhand, "Wroker")


PUBLIC_ROOMS = {"commands", "django", "flows", "observe", "remote", "runner", "testing", "web"}
"""Packages whose own names users import; ``stowhand`` itself has its names lazily."""
INNER_ROOMS = {
    *("flows/queue", "flows/redis"),
    *("stores/postgres/queue", "stores/postgres/table", "stores/sqlite/queue", "stores/sqlite/table"),
}
"""They import their one store or engine, so whoever imports a module of theirs loads it. May shrink, and not grow."""

SELDOM = {
    *("json5", "tomllib", "zoneinfo", "importlib.metadata", "importlib.resources", "http.server"),
    *("stowhand.stores.sqlite.queue.memory", "stowhand.service.health_reporter"),
}
"""Each costs a start one to ten milliseconds, and is of use to few."""


def test_importing_the_package_imports_no_driver() -> None:
    loaded = modules_after("import stowhand; stowhand.App, stowhand.Worker")
    assert "stowhand.worker.worker" in loaded
    assert not {"psycopg", "sqlite3", "pydantic", "rich"} & loaded


def test_importing_the_package_imports_no_optional_module() -> None:
    loaded = modules_after("import stowhand; stowhand.App, stowhand.Worker")
    assert not SELDOM & loaded
    assert "http.server" not in modules_after("import stowhand.cli.worker, stowhand.service.run")


def test_importing_the_package_imports_no_other_module_of_it() -> None:
    loaded = modules_after("import stowhand")
    assert {name for name in loaded if name.split(".")[0] == "stowhand"} == {"stowhand", "stowhand.lazy_names"}


def test_a_room_that_is_not_public_imports_nothing_by_itself() -> None:
    importing = {
        source.name.removesuffix("/__init__.py")
        for source in package_sources()
        if source.name.endswith("/__init__.py")
        for node in source.tree.body
        if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("stowhand"))
    }
    assert importing <= PUBLIC_ROOMS | INNER_ROOMS, sorted(importing)


def test_a_handler_and_a_task_have_the_same_members() -> None:
    """``Attempt`` is the ctx of a handler, ``Context`` of a task. What one alone has, it has for a reason."""
    attempt = Attempt(Claim(Lease(1, "token", 1), None, "send", 1, 1), 0.0)
    of_handlers = {name for name in dir(attempt) if not name.startswith("_")}
    of_tasks = {name for name in dir(Context) if not name.startswith("_") and hasattr(Context, name)}
    assert sorted(of_handlers & of_tasks) == [
        *("attempt", "canceled", "connection", "enqueue_after", "lease", "log", "logger", "max_attempts"),
        *("progress", "until_canceled"),
    ]
    of_workflows = ["call", "event", "map", "sleep", "sleep_until", "step"]
    assert sorted(of_tasks - of_handlers) == sorted(["job", *of_workflows])
    assert sorted(of_handlers - of_tasks) == ["cancel", "cancel_reason", "claim", "record", "started", "store", "then"]


def test_every_call_of_a_store_has_a_synchronous_one() -> None:
    request = {
        name
        for part in (Inspector, Administrator, Operator, Producer, Timetable, Schema)
        for name, method in vars(part).items()
        if inspect.iscoroutinefunction(method)
    }
    by_themselves = {"register", "report", "schedule", "plan", "uninstall", "foreign_changes", "find_damage"}
    assert request - by_themselves <= set(vars(Sync))


def test_an_app_has_these_members_and_no_others() -> None:
    members = {name for name in dir(App(store=MemoryStore())) if not name.startswith("_")}
    assert sorted(members) == [
        *("add_job", "add_jobs", "any_store", "cancel", "close", "counts", "cron", "cron_items", "discover"),
        *("emit", "emit_in", "enqueue", "enqueue_and_wait", "enqueue_in", "enqueue_many"),
        *(
            "flows",
            "gather",
            "get",
            "handled",
            "immediate",
            "job",
            "list",
            "open",
            "open_to_read",
            "override",
            "own_store",
        ),
        *("pause_queue", "registry", "remove", "resume_queue", "retry", "run_in_background", "search", "sync"),
        *("task", "traces", "using", "worker"),
    ]


def test_a_worker_has_these_members_and_no_others() -> None:
    worker = Worker(MemoryStore(), _handle)
    members = {name for name in {*vars(Worker), *vars(worker)} if not name.startswith("_")}
    for_users = ["events", "id", "options", "run", "running", "stop", "unfinished", "wake"]
    assert sorted(members) == sorted([*for_users, "controls"])
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert [name for name in for_users if f"`worker.{name}" not in page and f"`await worker.{name}" not in page] == []
    assert list(inspect.signature(Worker).parameters) == ["store", "handler", "options", "clock", "events", "host"]


async def _handle(ctx: Attempt[object], record: object) -> None: ...


def test_a_setting_has_the_same_name_everywhere_in_python() -> None:
    assert _keywords(App) == [
        *("around_thread", "flows", "include", "logger_factory", "middleware", "on_enqueue", "store", "traces", "url")
    ]
    assert _keywords(App.worker) == ["clock", "events", "resources"]
    assert _keywords(App.task) == ["cron", "name"]
    assert sorted(StoreKeywords.__annotations__) == sorted({*StoreOptions.__struct_fields__, "preset"} - {"pinned"})
    assert sorted(WorkerKeywords.__annotations__) == sorted(
        {*WorkerOptions.__struct_fields__, *CronSources.__annotations__, "exclude_tasks"}
    )
    assert sorted(TaskOptions.__annotations__) == [
        *(
            "backoff",
            "delay",
            "executor",
            "expires",
            "flags",
            "give_up_on",
            "key",
            "key_mode",
            "limits",
            "max_attempts",
            "max_resets",
        ),
        *(
            "mismatch",
            "on_failure",
            "priority",
            "queue",
            "retry_on",
            "run_at",
            "serial",
            "timeout",
            "unique",
            "unique_period",
        ),
    ]
    assert set(CronKeywords.__annotations__) - {"backfill_period"} <= set(TaskOptions.__annotations__)


def _keywords(called: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(called).parameters.values()
    return sorted(
        one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in ("self", "function")
    )
