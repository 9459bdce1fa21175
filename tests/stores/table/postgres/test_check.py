"""A broken table is told from a sound one; and the SQL that is printed, run as it is, makes it serve."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stowhand.errors import TableUnsuitable
from stowhand.jobs.conditions import sql
from stowhand.stores.postgres.table import PostgresTable
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from stowhand.stores.table.options import TableOptions
from tests.conftest import Run
from tests.support.databases import Databases

VIEW = "create view seen as select j.*, 1 as more from jobs j"


class Place:
    """A schema of its own, where unqualified names lead."""

    def __init__(self, url: str, run: Run) -> None:
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.url = make_conninfo(url, options=f"-csearch_path={self.schema}")
        self._run = run
        self._connection = psycopg.connect(self.url, autocommit=True)
        self.do(f"create schema {self.schema}")

    def close(self) -> None:
        self._connection.close()

    def do(self, *statements: str) -> list[Any]:
        """Run them; the rows of the last one."""
        cursor = self._connection.cursor()
        for statement in statements:
            cursor.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def make(self, **columns: str) -> None:
        """The table as the DDL has it, with these column names."""
        self.do(full_ddl(DdlOptions(shape=read_shape("jobs", None, columns))))

    def check(self, view: str | None = None, *, url: str | None = None, **columns: str) -> Sequence[Finding]:
        return self.examine("jobs", view, url=url, alternate_column_names=columns)

    def examine(
        self, table: str, view: str | None = None, *, url: str | None = None, **given: Any
    ) -> Sequence[Finding]:
        options = TableOptions[Any](name="test", table_name=table, view_name=view, **given)

        async def look() -> Sequence[Finding]:
            store = PostgresTable(url or self.url, options, read_shape(table, view, options.alternate_column_names))
            try:
                return await store.check()
            finally:
                await store.close()

        return self._run(look())

    def run_printed(self, found: Sequence[Finding]) -> None:
        """Statement by statement, as psql does it."""
        for finding in found:
            self.do(*(statement for statement in finding.fix.split(";\n") if statement))

    def fix_all(self, **columns: str) -> Sequence[Finding]:
        """Run what is printed, and map what is said. What a check finds with that mapping is returned."""
        result = self.check(**columns)
        self.run_printed(result)
        columns |= mappings(result)
        self.run_printed(self.check(**columns))
        return self.check(**columns)


@pytest.fixture(scope="module")
def database(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def place(database: str, run: Run) -> Iterator[Place]:
    with closing(Place(database, run)) as place:
        yield place


def problems(found: Sequence[Finding], *, fatal: bool | None = None) -> str:
    return "\n".join(finding.problem for finding in found if fatal is None or finding.fatal is fatal)


def mappings(found: Sequence[Finding]) -> dict[str, str]:
    """The columns that a check says to map."""
    return dict(re.findall(r"\(--column (\w+)=(\w+)\)", problems(found)))


def test_the_table_of_our_own_ddl_has_no_findings(place: Place) -> None:
    place.make()
    place.do(VIEW)
    assert place.check("seen") == []


BROKEN = {
    "no state": ("alter table jobs drop state", "there is no column state", True),
    "no heartbeat": ("alter table jobs drop last_heartbeat_at", "no column last_heartbeat_at", True),
    "no counters": ("alter table jobs drop num_failures, drop num_resets", "no column num_failures", True),
    "time as text": ("alter table jobs alter process_after type text", "is text: it must be timestamptz", True),
    "time as number": ("alter table jobs alter finished_at type bigint using 0", "finished_at is bigint", True),
    "counter as text": (
        "drop index jobs_suspects; alter table jobs alter num_resets type text",
        "column num_resets is text: it must be integer",
        True,
    ),
    "cancel as number": (
        "alter table jobs alter cancel drop default, alter cancel type smallint using 0",
        "column cancel is smallint: it must be boolean",
        True,
    ),
    "logs as json": ("alter table jobs alter execution_logs type json using null", "is json: it must be json[]", True),
    "short state": ("alter table jobs alter state type varchar(8)", "varying(8): 10 characters are written", True),
    "short host": ("alter table jobs alter worker_hostname type varchar(64)", "130 characters are written", True),
    "host of characters": ("alter table jobs alter worker_hostname type char(300)", "it must be text", True),
    "no NULL started": ("alter table jobs alter started_at set not null", "column started_at is NOT NULL", True),
    "no NULL by domain": (
        "create domain instant as timestamptz not null; alter table jobs alter started_at type instant",
        "column started_at is NOT NULL",
        True,
    ),
    "no key": ("alter table jobs drop constraint jobs_pkey", "column id has no unique index", True),
    "key of some": (
        "alter table jobs drop constraint jobs_pkey; create unique index on jobs (id) where state = 'queued'",
        "column id has no unique index",
        True,
    ),
    "no default state": ("alter table jobs alter state drop default", "never claimed", False),
    "stored generated": (
        "alter table jobs drop queued_at, add queued_at timestamptz generated always as (started_at) stored",
        "column queued_at computes itself",
        True,
    ),
    "CHECK of the state": (
        "alter table jobs add constraint known check (state in ('queued', 'processing', 'completed', 'odd'))",
        "the CHECK known on state refuses a record that is errored, failed, canceled",
        True,
    ),
    "CHECK of other words": (
        "alter table jobs alter state drop default, add check (state in ('new', 'done'))",
        "refuses a record that is queued",
        True,
    ),
    "enum of other words": (
        (
            "create type job_state as enum ('new', 'completed');"
            "drop index jobs_next, jobs_stalled, jobs_state_process_after, jobs_suspects;"
            "alter table jobs alter state drop default;"
            "alter table jobs alter state type job_state using state::job_state"
        ),
        "an enum without 'queued'",
        True,
    ),
    "enum that lacks words": (
        (
            "create type job_state as enum ('queued', 'processing', 'completed', 'failed');"
            "drop index jobs_next, jobs_stalled, jobs_state_process_after, jobs_suspects;"
            "alter table jobs alter state drop default;"
            "alter table jobs alter state type job_state using state::job_state, alter state set default 'queued'"
        ),
        "of column state refuses a record that is errored, canceled",
        True,
    ),
    "no indexes": ("drop index jobs_next, jobs_stalled, jobs_state_process_after", "no index on (", False),
    "index of other states": (
        "drop index jobs_stalled; create index on jobs (last_heartbeat_at) where state = 'failed'",
        "no index on (last_heartbeat_at) for the records that are processing",
        False,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_defects_are_found_and_the_printed_statements_fix_them(place: Place, name: str) -> None:
    breaking, said, fatal = BROKEN[name]
    place.make()
    place.do(breaking)
    result = place.check()
    assert said in problems(result, fatal=fatal), problems(result)
    assert bool(problems(result, fatal=True)) is fatal, problems(result)
    if name == "index of other states":
        place.do("drop index jobs_last_heartbeat_at_idx")
    assert place.fix_all() == []


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        ("alter table jobs drop id", "there is no column id: name the column of a unique key"),
        ("alter table jobs alter id drop identity; alter table jobs alter id type numeric(10)", "map id to a column"),
    ],
)
def test_a_defect_without_a_simple_fix_is_explained(place: Place, breaking: str, said: str) -> None:
    place.make()
    place.do(breaking)
    (finding,) = [one for one in place.check() if one.fatal]
    assert said in finding.problem
    assert finding.fix == ""


def test_for_a_numeric_state_the_update_that_queues_pending_rows_is_printed(place: Place) -> None:
    place.make()
    place.do(
        "drop index jobs_next, jobs_stalled, jobs_state_process_after, jobs_suspects",
        "alter table jobs alter state drop default, alter state type integer using 0",
    )
    assert mappings(place.check()) == {"state": "job_state"}
    message = problems(place.check(state="job_state"), fatal=True)
    assert 'afterwards: UPDATE "jobs" SET "job_state" = \'queued\' WHERE ...' in message


def test_a_missing_table_is_created_by_the_printed_statements(place: Place) -> None:
    options: dict[str, Any] = {"alternate_column_names": {"state": "status"}}
    result = place.examine("nowhere_else", "seen_nowhere_else", **options)
    assert [one.problem for one in result] == [
        "there is no table nowhere_else (in another schema? name it: schema.table)",
        "there is no view seen_nowhere_else",
    ]
    place.do(*(finding.fix for finding in result))
    assert place.examine("nowhere_else", "seen_nowhere_else", **options) == []


def test_quoted_names_and_another_schema_are_used_unchanged(place: Place) -> None:
    table, columns = f'{place.schema}."Jobs ""x"""', {"state": '"Its State"', "id": '"Key"'}
    shape = read_shape(table, None, columns)
    place.do(
        full_ddl(DdlOptions(shape=shape, key="uuid")), 'alter table "Jobs ""x""" drop "Its State", drop num_resets'
    )
    result = place.examine(table, alternate_column_names=columns)
    assert "there is no column Its State (for state)" in problems(result)
    place.run_printed(result)
    assert place.examine(table, alternate_column_names=columns) == []


def test_existing_rows_are_not_queued_by_a_new_state_column_and_the_update_that_does_is_printed(
    place: Place,
) -> None:
    place.make()
    place.do("alter table jobs drop state", "insert into jobs default values")
    (finding,) = [one for one in place.check() if "no column state" in one.problem]
    assert 'UPDATE "jobs" SET "state" = \'queued\' WHERE ...' in finding.problem
    # One statement adds the column and sets its default: no INSERT comes between them.
    assert [text.split()[0] for text in finding.fix.split(";\n")] == ["BEGIN", "SET", "ALTER", "COMMIT;"]
    place.run_printed([finding])
    place.do("insert into jobs default values")
    assert place.do("select state from jobs order by id") == [("completed",), ("queued",)]


def test_an_unsuitable_column_is_reported_with_the_manual_steps(place: Place) -> None:
    place.make()
    place.do("alter table jobs alter process_after set not null, alter state type char(12)")
    message = problems(place.check(), fatal=True)
    assert "(--column state=job_state), and let a trigger write state whenever job_state changes" in message
    assert "(--column process_after=job_process_after), and copy the values of waiting records there" in message


def test_a_column_of_the_user_is_never_proposed_nor_emptied(place: Place) -> None:
    """However alike its name is."""
    place.do(
        "create table jobs (id bigint primary key, process_after_ timestamptz, status text not null default 'queued',"
        " num_reset integer default 0, processed_at timestamptz)"
    )
    for finding in place.check():
        assert not re.search("process_after_|status|num_reset\\b|processed_at", f"{finding.problem}\n{finding.fix}")
        assert "DROP" not in finding.fix


def test_a_table_without_optional_columns_has_no_findings_unless_they_are_mapped(place: Place) -> None:
    place.make()
    place.do("alter table jobs drop cancel, drop queued_at")
    assert place.check() == []
    assert "there is no column stop (for cancel)" in problems(place.check(cancel="stop"))


def test_a_table_without_cancel_may_lack_the_state_canceled(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs drop cancel, add check (state in ('queued', 'processing', 'errored', 'failed', 'completed'))"
    )
    (finding,) = place.check()
    assert not finding.fatal


@pytest.mark.parametrize("locked", ["share", "exclusive"])
def test_statements_with_strong_locks_time_out(place: Place, locked: str) -> None:
    """A reader that goes on for long, and a writer that does."""
    place.make()
    place.do("alter table jobs drop num_resets, add constraint known check (state <> 'errored')")
    place.do("alter table jobs alter state drop default")
    result = place.check()
    strong = [text for one in result for text in one.fix.split(";\n") if text.startswith("ALTER")]
    assert len(strong) == 4
    printed = "\n".join(one.fix for one in result)
    unguarded = re.sub(r"SET LOCAL lock_timeout = '5s';\nALTER TABLE .*?;\nCOMMIT", "", printed)
    assert re.findall("ALTER TABLE.*", unguarded) == [
        f'ALTER TABLE "{place.schema}"."jobs" VALIDATE CONSTRAINT "known";'
    ]
    with psycopg.connect(place.url) as other:
        other.execute(f"lock table jobs in {locked} mode".encode())
        statement = strong[0].removesuffix(";")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            place.do(f"begin; set local lock_timeout = '50ms'; {statement}; commit")
        place.do("rollback")


def test_indexes_are_built_concurrently(place: Place) -> None:
    place.make()
    place.do("drop index jobs_next")
    (finding,) = place.check()
    assert finding.fix.startswith("CREATE INDEX CONCURRENTLY")


@pytest.mark.parametrize(
    ("view", "said", "fatal"),
    [
        ("select state from jobs", "does not show id", True),
        ("select id::text, state from jobs", "shows id as text; in the table it is bigint", True),
        ("select id, state from jobs where state = 'queued'", "hides records that are processing", True),
        ("select j.* from jobs j where state in ('queued', 'errored')", "hides records that are processing", True),
        ("select id from jobs", "does not show state: no index lets", False),
    ],
)
def test_an_unsuitable_view_is_found(place: Place, view: str, said: str, fatal: bool) -> None:
    place.make()
    place.do("insert into jobs (state) values ('queued'), ('errored'), ('processing')", f"create view seen as {view}")
    assert said in problems(place.check("seen"), fatal=fatal)


def test_a_view_without_a_condition_hides_nothing_despite_a_check_of_its_table(place: Place) -> None:
    place.make()
    place.do("alter table jobs add constraint known check (state in ('queued', 'completed'))", VIEW)
    result = place.check("seen")
    assert "hides" not in problems(result)
    place.run_printed(result)
    assert place.check("seen") == []


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        ("failure_message is not null", "failure_message"),
        ("(state = 'processing') = (started_at is not null)", "state, started_at"),
        ("state <> 'odd' or size > 0", "state"),
        ("size > 0 and id > 0", ""),
    ],
)
def test_a_check_of_more_than_the_state_is_left_to_the_owner(place: Place, rule: str, columns: str) -> None:
    place.make()
    place.do(f"alter table jobs add size int, add constraint several check ({rule})")
    result = place.check()
    message = f"the CHECK several on {columns} concerns {columns}, which a worker writes: make sure that it accepts"
    assert problems(result, fatal=False).startswith(message) if columns else result == []
    assert problems(result, fatal=True) == ""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (("create foreign data wrapper far; create server far foreign data wrapper far; drop table jobs;"
         " create foreign table jobs (id bigint) server far"), "jobs is a foreign table"),
        ("create table base (like jobs including all); drop table jobs; create view jobs as select * from base",
         "jobs is a view: its rows cannot be locked and updated; use the table itself"),
        (("create table base (like jobs including all); drop table jobs;"
         "create materialized view jobs as select * from base"), "jobs is a materialised view"),
        (("create table parent (like jobs) partition by list (state); drop table jobs;"
         "create table jobs partition of parent for values in ('queued')"), "partitioned by state"),
    ],
)  # fmt: skip
def test_a_relation_whose_rows_cannot_be_locked_or_updated_is_refused(place: Place, made: str, said: str) -> None:
    place.make()
    place.do(made)
    assert said in problems(place.check(), fatal=True)


def test_a_table_partitioned_by_an_unwritten_column_is_accepted(place: Place) -> None:
    place.do(
        full_ddl(DdlOptions(shape=read_shape("jobs", None, {}))).replace("\n);", "\n) PARTITION BY HASH (id);", 1),
        "create table jobs_0 partition of jobs for values with (modulus 2, remainder 0)",
        "create table jobs_1 partition of jobs for values with (modulus 2, remainder 1)",
    )
    assert place.check() == []
    assert place.examine("jobs_0") == []


def test_unknown_states_are_counted_and_not_fatal(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs alter state drop not null",
        "insert into jobs (state) values (null), ('stuck'), ('stuck'), ('queued')",
    )
    message = problems(place.check(), fatal=False)
    assert "2 records have the state 'stuck', unknown to workers: never claimed" in message
    assert "1 record has no state (NULL): never claimed" in message


def test_a_missing_right_is_named(place: Place, database: str) -> None:
    place.make()
    user = f"poor_{place.schema}"
    place.do(f"create role {user} login password 'secret'", f"grant usage on schema {place.schema} to {user}")
    url = make_conninfo(place.url, user=user, password="secret")
    try:
        place.do(f"grant select on jobs to {user}")
        message = problems(place.check(url=url), fatal=True)
        assert message == f"{user} may not read and update jobs"
        place.run_printed(place.check(url=url))
        assert place.check(url=url) == []
    finally:
        place.do(f"drop owned by {user}", f"drop role {user}")


def test_a_worker_is_refused_with_every_fatal_finding_and_its_ddl(place: Place, run: Run) -> None:
    place.make()
    place.do("drop index jobs_stalled; alter table jobs drop state, drop num_resets")

    async def refused() -> str:
        store = PostgresTable(place.url, TableOptions(name="test", table_name="jobs"), read_shape("jobs", None, {}))
        with pytest.raises(TableUnsuitable) as raised:
            await store.open()
        return str(raised.value)

    message = run(refused())
    for part in ("no column state", "no column num_resets", 'ADD COLUMN "num_resets" integer NOT NULL DEFAULT 0'):
        assert part in message
    assert "CREATE INDEX" not in message


def test_a_channel_without_a_trigger_is_reported(place: Place) -> None:
    place.make()
    (finding,) = place.examine("jobs", notify_channel="wake")
    assert "no trigger of the table notifies: workers poll" in finding.problem
    place.do(finding.fix)
    assert place.examine("jobs", notify_channel="wake") == []


@pytest.mark.parametrize(("cancel", "view"), [("", ""), (", cancel boolean not null default false", "example_jobs")])
def test_the_tables_of_the_documents_are_accepted(place: Place, cancel: str, view: str) -> None:
    place.do(
        f"""
        create table repo (id serial primary key, name text);
        create table example_jobs (
          id                serial primary key,
          state             text default 'queued',
          failure_message   text,
          queued_at         timestamp with time zone default now(),
          started_at        timestamp with time zone,
          finished_at       timestamp with time zone,
          process_after     timestamp with time zone,
          num_resets        integer not null default 0,
          num_failures      integer not null default 0,
          last_heartbeat_at timestamp with time zone,
          execution_logs    json[],
          worker_hostname   text not null default ''{cancel},
          repository_id integer not null
        );
        create view example_jobs_with_repository_name as
          select ej.*, r.name from example_jobs ej join repo r on r.id = ej.repository_id
        """
    )
    label = view or "j"
    result = place.examine(
        "example_jobs" if view else "example_jobs j",
        f"example_jobs_with_repository_name {label}",
        column_expressions=[f"{label}.id", f"{label}.name"],
        order_by_expression=[f"{label}.repository_id", f"{label}.id"],
    )
    assert [finding.problem.partition(" (")[0] for finding in result] == ["no index on"] * 4
    place.run_printed(result)
    assert "(repository_id, id)" in problems(result)


def test_the_recommended_index_follows_the_order(place: Place) -> None:
    place.make()
    place.do("alter table jobs add priority int")
    order: list[Any] = ["priority", "jobs.id"]
    (finding,) = place.examine("jobs", order_by_expression=order)
    assert finding.problem == "no index on (priority, id) for the records that are queued or errored"
    place.do("drop index jobs_next", finding.fix)
    assert place.examine("jobs", order_by_expression=order) == []
    assert problems(place.examine("jobs", order_by_expression=sql("priority % {}", 7))).startswith("no index on (id)")


class Job(msgspec.Struct):
    """A record that wants more than the view has."""

    id: int
    size: int


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"column_expressions": ["v.id", "v.size"]}, "column v.size does not exist"),
        ({"column_expressions": [sql("j.id + ")]}, "syntax error"),
        ({"order_by_expression": sql("v.more desc nulls last, j.size")}, "column j.size does not"),
        ({"order_by_expression": ["elsewhere.id"]}, "missing FROM-clause entry"),
        ({"record": Job}, "no such column: 'size'"),
        ({"column_expressions": ["j.id", "v.more"], "order_by_expression": ["v.more", sql("j.id % {}", 2)]}, ""),
    ],
)
def test_an_invalid_expression_is_reported(place: Place, given: dict[str, Any], said: str) -> None:
    place.make()
    place.do(VIEW)
    result = problems(place.examine("jobs j", "seen v", **given), fatal=True)
    assert said in result
    assert bool(result) is bool(said)


def test_a_check_waits_for_no_lock_and_takes_only_read_locks(place: Place) -> None:
    """Every row is locked, and the table too, in every way that lets others read."""
    place.make()
    place.do("insert into jobs default values", "alter table jobs alter num_resets drop not null")
    with psycopg.connect(place.url) as other:
        other.execute("lock table jobs in exclusive mode; update jobs set num_resets = null")
        assert place.check() == []


def test_a_view_that_writes_cannot_write_during_a_check(place: Place) -> None:
    place.make()
    place.do(
        "create table noted (n int); insert into jobs default values",
        "create function note() returns int volatile language sql as 'insert into noted values (1) returning n'",
        "create view seen as select j.*, note() from jobs j",
    )
    place.check("seen")
    assert place.do("select * from noted") == []


def test_a_check_works_on_an_older_server(older_postgres_url: str, run: Run) -> None:
    with closing(Place(older_postgres_url, run)) as place:
        place.make()
        place.do("alter table jobs add constraint c check (state <> 'errored'), drop process_after", VIEW)
        result = place.check("seen")
        assert problems(result, fatal=True).count("\n") == 1
        place.run_printed(result)
        assert place.check("seen") == []
