"""Pages about tables and HTTP say what the code says; those about the founding documents, what is tested."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import psycopg
import pytest
from prometheus_client import CollectorRegistry

from stowhand import Worker, http_server
from stowhand.handler import Attempt
from stowhand.jobs import limits
from stowhand.jobs.job import NewJob
from stowhand.observe.table_metrics import TableMetrics
from stowhand.protocols import store
from stowhand.protocols.options import WorkerOptions
from stowhand.remote import wire
from stowhand.remote.server import authenticator, bodies, claims, refusals, tokens
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import COLUMNS, TOKEN_COLUMN, read_shape
from stowhand.stores.table.options import RESET_FAILURE_MESSAGE
from stowhand.table import AttemptStore, TableOptions, TableStore
from tests.conftest import Run
from tests.docs.pages import CONTRIBUTING, DOCS
from tests.docs.test_reference import read, rows

CHECK_PAGE = (DOCS / "how-to" / "check-a-table.md").read_text()
OF_THE_DOCUMENTS = (
    *("Name", "TableName", "ViewName", "ColumnExpressions", "Scan", "OrderByExpression", "AlternateColumnNames"),
    *("MaxNumResets", "StalledMaxAge", "MaxNumRetries", "RetryAfter", "HeartbeatInterval", "CancelInterval"),
    *("Interval", "NumHandlers", "MaximumRuntimePerJob", "NumTotalJobs", "MaxActiveTime", "Metrics"),
    *("PreDequeue", "PreHandle", "Handle", "PostHandle", "RecordID", "BuildWorkerScan", "MonitorBackgroundRoutines"),
)
"""Options, hooks and helpers that the founding documents (and their programs) name."""

OF_GUILD_QUEUES = (
    *("Starting and stopping the worker", "Event loop", "lease", "workerFunction", "complete"),
    *("handleWorkerFunctionError",),
)
"""Headings of the founding document about flows."""
GUILD_QUEUES_CALLS = (
    *("BLMOVE", "SET lock:", "HGET", "GET lock:", "HSET job:", "HSET … completed-queue", "RPUSH queue:"),
    *("LREM queue:", "DEL lock:", "HSET … done true", "HSET … failedQueue", "HSET … failedErrorMsg"),
)
"""What it lets Redis do."""

OF_THE_POOL = (
    *("Architecture", "Job kinds", "Failure handling", "Concurrency contract", "Metrics", "Operational notes"),
    "Where document and program disagree",
)
"""Headings of the founding document about the pool of a service; and ours."""
POOL_NAMES = (
    *("push:process", "repo:size_recalc", "jobs:purge_completed", "FOR UPDATE SKIP LOCKED", "--workers N"),
    *("shithub_worker_jobs_processed_total{kind,outcome}", "shithub_worker_job_duration_seconds{kind}"),
    "shithub_worker_in_flight{kind}",
)
"""What it calls by name."""


def test_the_page_of_tables_has_every_option_with_its_default() -> None:
    shown = rows(read("table.md").partition("## Options")[2].partition("\n## ")[0])
    usual: TableOptions[Any] = TableOptions(name="n", table_name="t")
    special = {"name": "-", "table_name": "-", "reset_failure_message": "below"}
    for name in TableOptions.__struct_fields__:
        default = getattr(usual, name)
        output = special.get(name, f"{default:g}" if is_number(default) else f"`{default!r}`")
        assert shown[name][1] == output, name
    assert RESET_FAILURE_MESSAGE in read("table.md")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_the_page_of_tables_has_every_column_and_marks_optional_ones() -> None:
    shown = rows(read("table.md").partition("## Columns")[2])
    assert {*COLUMNS, TOKEN_COLUMN} <= shown.keys()


@pytest.mark.parametrize("kind", [TableStore, AttemptStore])
def test_the_page_of_tables_names_every_call(kind: type) -> None:
    page = read("table.md")
    named = set(re.findall(r"`(\w+)", page))
    of_every_store = {*store.PART_NAMES, "enclosing"}
    assert {name for name in vars(kind) if not name.startswith("_")} - of_every_store <= named


def test_the_page_of_tables_has_every_metric() -> None:
    registry = CollectorRegistry()
    TableMetrics(registry)
    instance = {one.name + ("_total" if one.type == "counter" else "") for one in registry.collect()}
    shown = {name for name in re.findall(r"`(stowhand_\w+)`", read("table.md")) if name.startswith("stowhand_table")}
    assert instance == shown


def test_the_page_of_tables_names_options_of_a_worker_that_exist() -> None:
    section = read("table.md").partition("## Worker and resetter")[2].partition("\n## ")[0]
    mapped = {cell for line in section.splitlines() for cell in re.findall(r"`([a-z]\w+)`", line.split(" | ")[0])}
    assert len(mapped) > 5
    assert mapped <= set(WorkerOptions.__struct_fields__)


def test_the_trigger_of_the_page_keeps_a_status_of_the_application(postgres_url: str, run: Run) -> None:
    (trigger,) = [block for block in re.findall(r"```sql\n(.*?)```", CHECK_PAGE, re.DOTALL) if "trigger" in block]
    table = full_ddl(DdlOptions(shape=read_shape("uploads", None, {"state": "job_state"})))
    options = TableOptions[dict[str, Any]](
        name="uploads", table_name="uploads", max_num_retries=0, alternate_column_names={"state": "job_state"}
    )

    async def handle(ctx: Attempt[dict[str, Any]], upload: dict[str, Any]) -> None:
        if upload["id"] == 2:
            raise ValueError("half an upload")

    async def work() -> None:
        async with TableStore(postgres_url, options) as store:
            await Worker(store, handle, WorkerOptions(once=True)).run()

    def read_statuses() -> list[Any]:
        return [status for (status,) in connection.execute("select status from uploads order by id")]

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"{table}; alter table uploads add status text default 'open'; {trigger}".encode())
        connection.execute("insert into uploads default values; insert into uploads default values")
        assert read_statuses() == ["open", "open"]
        run(work())
        assert read_statuses() == ["done", "broken"]
        connection.execute("update uploads set job_state = 'queued' where id = 2")
        assert read_statuses() == ["done", "open"]


def test_the_page_of_http_has_every_call_error_and_verdict() -> None:
    page = read("http.md")
    table = page.partition("## Calls")[2].partition("\n## ")[0]
    calls = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| `POST /v1", "| `GET /v1"))]
    for verb, (call, scopes, request, response) in zip(wire.VERBS, calls, strict=True):
        assert call.strip() == f"`{verb.method} {verb.path}`"
        assert re.findall(r"`(\w+)`", scopes) == [scope.value for scope in verb.scopes], verb.path
        for message, cell in ((verb.request, request), (verb.response, response)):
            if isinstance(message, type) and issubclass(message, wire.Message):
                assert set(message.__struct_encode_fields__) <= set(re.findall(r"`(\w+)`", cell)), verb.path
    shown = rows(page)
    for kind in wire.ErrorKind:
        assert str(refusals.STATUS_CODES[kind]) in shown[kind.value][2 - 1], kind
    assert {verdict.value for verdict in store.Verdict} <= shown.keys()


def test_the_page_of_http_names_every_field_of_a_message() -> None:
    page = read("http.md")
    messages = [kind for kind in vars(wire).values() if isinstance(kind, type) and issubclass(kind, wire.Message)]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    for message in messages:
        assert set(message.__struct_encode_fields__) <= named, message.__name__


def test_the_page_of_http_has_the_limits() -> None:
    page = read("http.md").partition("## Limits")[2]
    for number in (
        wire.MAX_BODY_BYTES // 1024**2,
        bodies.MAX_HEADERS,
        bodies.MAX_HEADER_BYTES // 1024,
        bodies.READ_TIMEOUT_SECONDS,
        http_server.MAX_CONNECTIONS,
        wire.MAX_WAIT_SECONDS,
        claims.MAX_POLLS_PER_TOKEN,
        claims.MAX_RECORDS_PER_REPLY,
        wire.MAX_LEASE_SECONDS,
        wire.MAX_ITEMS,
        authenticator.MAX_WRONG_TOKENS_PER_MINUTE,
        tokens.MAX_TOKENS,
    ):
        assert re.search(rf"\b{number:.0f}\b", page), number


def test_every_name_of_the_founding_documents_has_a_place_and_a_test() -> None:
    page = (CONTRIBUTING / "dbworker.md").read_text()
    for name in OF_THE_DOCUMENTS:
        assert re.search(rf"`[^`]*\b{name}\b", page), name
    for column in COLUMNS:
        assert f"| `{column}`" in page, column
    without = [
        line for line in page.splitlines() if line.startswith("| ") and "proof" not in line and "`tests/" not in line
    ]
    assert not without
    steps = {int(step) for step in re.findall(r"^\| step (\d)", page, re.MULTILINE)}
    assert steps == set(range(1, 9))


def test_every_name_of_the_page_of_flow_workers_has_a_place_and_a_test() -> None:
    page = (CONTRIBUTING / "guild-queues.md").read_text()
    for heading in OF_GUILD_QUEUES:
        assert re.search(rf"^###? {heading}$", page, re.MULTILINE), heading
    for call in GUILD_QUEUES_CALLS:
        assert f"`{call}" in page, call
    assert {"## Where document and program disagree", "## What is meant to differ"} <= set(page.splitlines())
    shown = [line for line in page.splitlines() if line.startswith("| ") and not line.endswith("| proof |")]
    assert len(shown) > 60
    assert all("`tests/" in line for line in shown)


def test_every_name_of_the_page_of_the_pool_has_a_place_and_a_test() -> None:
    page = (CONTRIBUTING / "coverage-shithub.md").read_text()
    for heading in OF_THE_POOL:
        assert re.search(rf"^## {heading}$", page, re.MULTILINE), heading
    for name in POOL_NAMES:
        assert f"`{name}" in page, name
    disagreed = page.partition("## Where document and program disagree\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| .*`tests/", disagreed, re.MULTILINE)) == 8
    shown = [line for line in page.splitlines() if line.startswith("| ") and not line.endswith("| proof |")]
    assert len(shown) > 45
    assert all("`tests/" in line for line in shown)
    later = [line for line in page.splitlines() if re.search(r"\blater\b", line)]
    assert [line for line in later if "a page: later" not in line] == []


@pytest.mark.parametrize(
    ("section", "least"), [("A table of yours", 40), ("Flows", 27), ("The pool of a service", 18), ("Known bugs", 19)]
)
def test_every_case_has_a_test(section: str, least: int) -> None:
    text = (CONTRIBUTING / "cases.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    cases = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert len(cases) >= least
    assert all("`tests/" in line for line in cases)


def test_the_page_about_http_has_every_field_of_a_job_and_its_example_enqueues() -> None:
    section = read("http.md").partition("### Enqueue")[2].partition("\n### ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(NewJob.__struct_fields__) - {"task"}
    example = section.partition("```json\n")[2].partition("\n```")[0]
    (job,) = msgspec.json.decode(example, type=wire.EnqueueRequest).jobs
    assert limits.check(job).key == "welcome:ada"
