"""A broken table is told from a sound one; and what mends it, run as printed, leaves nothing to be found."""

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
from stowhand.stores.database.address import Address
from stowhand.stores.database.link import Dialer
from stowhand.stores.postgres.table.catalog import Facts, Server
from stowhand.stores.postgres.table.checks import check, judge, validate
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import Plan, full_ddl
from stowhand.stores.table.names import COLUMNS, read_shape
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
        self.do(full_ddl(Plan(shape=read_shape("jobs", None, columns))))

    def check(self, view: str | None = None, *, url: str | None = None, **columns: str) -> Sequence[Finding]:
        return self.examine("jobs", view, url=url, alternate_column_names=columns)

    def examine(
        self, table: str, view: str | None = None, *, url: str | None = None, **given: Any
    ) -> Sequence[Finding]:
        options = TableOptions[Any](name="test", table_name=table, view_name=view, **given)

        async def look() -> Sequence[Finding]:
            line = await Dialer(Address(url or self.url)).dial("test")
            try:
                return (await check(line, options, read_shape(table, view, options.alternate_column_names)))[1]
            finally:
                await line.close()

        return self._run(look())


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


def test_the_table_of_our_own_ddl_is_sound(place: Place) -> None:
    place.make()
    place.do(VIEW)
    assert place.check("seen") == []


def mended(place: Place, found: Sequence[Finding]) -> dict[str, str]:
    """Runs what is printed, and takes the columns that it names: until nothing is left. All that was there stays."""
    columns: dict[str, str] = {}
    rows = "select row(j.*)::text from (select {} from jobs) as j order by 1"
    names = place.do("select attname from pg_attribute where attrelid = 'jobs'::regclass and attnum > 0"
                     " and not attisdropped")  # fmt: skip
    kept = rows.format(", ".join(name for (name,) in names if name not in COUNTERS))
    before = place.do(kept)
    for _ in range(2):
        place.do(*(finding.mend for finding in found))
        for finding in found:
            columns |= finding.columns
        found = place.check(**columns)
    assert found == []
    assert place.do(kept) == before
    return columns


COUNTERS = ("num_resets", "num_failures")
"""Where NULL becomes the 0 that it counts as."""
BROKEN = {
    "no state": ("alter table jobs drop state", "there is no column state", True),
    "no id": ("alter table jobs drop id", "there is no column id", True),
    "no heartbeat": ("alter table jobs drop last_heartbeat_at", "no column last_heartbeat_at", True),
    "no logs": ("alter table jobs drop execution_logs", "no column execution_logs", True),
    "no failures, no resets": (
        "alter table jobs drop num_failures, drop num_resets; insert into jobs default values",
        "no column num_failures",
        True,
    ),
    "id of another type": (
        "alter table jobs alter id drop identity; alter table jobs alter id type numeric(10)",
        "column id is numeric(10,0); it must be bigint",
        True,
    ),
    "id of characters": (
        "alter table jobs alter id drop identity; alter table jobs alter id type character(8)",
        "column id is character(8); it must be text",
        True,
    ),
    "time as text": (
        "alter table jobs alter process_after type text; insert into jobs (process_after) values ('2026-01-02 UTC')",
        "column process_after is text; it must be timestamp with time zone",
        True,
    ),
    "time as number": (
        "alter table jobs alter finished_at type bigint using 0; insert into jobs (finished_at) values (1700000000)",
        "column finished_at is bigint",
        True,
    ),
    "time as date": ("alter table jobs alter started_at type date", "column started_at is date", True),
    "time of some type": ("alter table jobs alter started_at type bytea using null", "started_at is bytea", True),
    "time without zone": (
        "alter table jobs alter queued_at type timestamp",
        "read and written as UTC",
        False,
    ),
    "counter as text": (
        ("drop index jobs_suspects; alter table jobs alter num_resets type text;"
        " insert into jobs (num_resets) values ('3')"),
        "column num_resets is text; it must be integer",
        True,
    ),
    "counter as fraction": ("alter table jobs alter num_failures type numeric(5,2)", "num_failures is numeric", True),
    "cancel as number": (
        ("alter table jobs alter cancel drop default, alter cancel type smallint using 0, alter cancel set default 0;"
        " insert into jobs (cancel) values (1)"),
        "column cancel is smallint; it must be boolean",
        True,
    ),
    "cancel as text": (
        "alter table jobs alter cancel drop default, alter cancel type text; insert into jobs (cancel) values ('f')",
        "column cancel is text; it must be boolean",
        True,
    ),
    "logs as json": (
        ("alter table jobs alter execution_logs type json using null;"
        """insert into jobs (execution_logs) values ('[{"key": "a"}]'), ('{"key": "b"}'), (null)"""),
        "column execution_logs is json; it must be json[]",
        True,
    ),
    "logs as text": (
        "alter table jobs alter execution_logs type text using null; insert into jobs (execution_logs) values ('said')",
        "column execution_logs is text; it must be json[]",
        True,
    ),
    "logs as text array": (
        ("alter table jobs alter execution_logs type varchar(99)[] using null;"
        "insert into jobs (execution_logs) values (array['{}'])"),
        "execution_logs is character varying(99)[]",
        True,
    ),
    "short state": ("alter table jobs alter state type varchar(8)", "column state has room for 8 characters", True),
    "short message": ("alter table jobs alter failure_message type varchar(255)", "longer messages are cut", False),
    "short host": ("alter table jobs alter worker_hostname type varchar(64)", "worker_hostname has room for 64", True),
    "middling host": ("alter table jobs alter worker_hostname type varchar(255)", "with a long name", False),
    "host of characters": ("alter table jobs alter worker_hostname type char(300)", "is character(300)", True),
    "no NULL started": ("alter table jobs alter started_at set not null", "column started_at is NOT NULL", True),
    "no NULL message": ("alter table jobs alter failure_message set not null", "failure_message is NOT NULL", True),
    "no NULL finished": ("alter table jobs alter finished_at set not null", "finished_at is NOT NULL", True),
    "no NULL logs": ("alter table jobs alter execution_logs set not null", "execution_logs is NOT NULL", True),
    "no NULL by domain": (
        "create domain instant as timestamptz not null; alter table jobs alter started_at type instant",
        "column started_at is NOT NULL",
        True,
    ),
    "no key": ("alter table jobs drop constraint jobs_pkey", "column id has no unique index", True),
    "key of two": (
        "alter table jobs drop constraint jobs_pkey, add tenant int, add primary key (tenant, id)",
        "column id has no unique index",
        True,
    ),
    "key of some": (
        "alter table jobs drop constraint jobs_pkey; create unique index on jobs (id) where state = 'queued'",
        "column id has no unique index",
        True,
    ),
    "no default state": ("alter table jobs alter state drop default", "never claimed", False),
    "no default counter": ("alter table jobs alter num_resets drop default", "num_resets is NOT NULL without", False),
    "no default host": ("alter table jobs alter worker_hostname drop default", "every INSERT must name it", False),
    "counter of NULL": (
        "alter table jobs alter num_failures drop not null; insert into jobs (num_failures) values (null), (null)",
        "2 records have no num_failures: it counts as 0",
        False,
    ),
    "stored generated": (
        "alter table jobs drop queued_at, add queued_at timestamptz generated always as (started_at) stored",
        "column queued_at computes itself",
        True,
    ),
    "identity": (
        "alter table jobs alter num_resets drop default, alter num_resets add generated always as identity",
        "column num_resets computes itself",
        True,
    ),
    "CHECK of the state": (
        "alter table jobs add constraint known check (state in ('queued', 'processing', 'completed', 'odd'))",
        "the CHECK known on state does not let pass a record that is errored, failed, canceled",
        True,
    ),
    "CHECK of NULL": (
        "alter table jobs add constraint told check (failure_message is not null)",
        "the CHECK told on failure_message does not let pass a record that is queued, processing, completed",
        True,
    ),
    "a table of states": (
        (
            "create table states (name text primary key); insert into states values ('queued'), ('processing');"
            "alter table jobs add foreign key (state) references states (name)"
        ),
        "which says what state may be, lacks: errored, completed, failed, canceled",
        True,
    ),
    "enum of other words": (
        (
            "create type job_state as enum ('new', 'completed');"
            "drop index jobs_next, jobs_stalled, jobs_state_process_after, jobs_suspects;"
            "alter table jobs alter state drop default;"
            "alter table jobs alter state type job_state using state::job_state"
        ),
        "of column state has no queued: it says something else of a row; the worker gets a column of its own",
        True,
    ),
    "enum": (
        ("create type job_state as enum ('queued', 'processing', 'completed', 'failed');"
        "drop index jobs_next, jobs_stalled, jobs_state_process_after, jobs_suspects;"
        "alter table jobs alter state drop default;"
        "alter table jobs alter state type job_state using state::job_state"),
        "does not know: errored, canceled",
        True,
    ),
    "domain of the state": (
        ("create domain its as text check (value in ('queued', 'processing', 'completed', 'errored', 'failed'));"
        "alter table jobs alter state type its"),
        "does not let pass a record that is canceled",
        True,
    ),
    "unlogged": ("alter table jobs set unlogged", "a crash of the server empties it", False),
    "no indexes": ("drop index jobs_next, jobs_stalled, jobs_state_process_after", "no index on (", False),
    "index of other states": (
        "drop index jobs_stalled; create index on jobs (last_heartbeat_at) where state = 'failed'",
        "no index on (last_heartbeat_at) for the records that are processing",
        False,
    ),
    "much at once": (
        ("alter table jobs drop num_resets, drop last_heartbeat_at, alter execution_logs type jsonb using null,"
        " alter finished_at set not null, drop constraint jobs_pkey"),
        "column id has no unique index",
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found_and_what_is_printed_mends_it(place: Place, name: str) -> None:
    breaking, said, fatal = BROKEN[name]
    place.make()
    place.do(breaking)
    found = place.check()
    assert said in problems(found, fatal=fatal), problems(found)
    assert bool(problems(found, fatal=True)) is fatal, problems(found)
    mended(place, found)


@pytest.fixture
def alone(postgres_url: str, run: Run) -> Iterator[Place]:
    """In a database without tables of any other name."""
    with closing(Place(postgres_url, run)) as place:
        yield place


def test_a_table_that_is_not_there_is_made_by_what_is_printed(alone: Place) -> None:
    found = alone.check("seen", state="status")
    assert [finding.problem for finding in found] == ["there is no table jobs", "there is no view seen"]
    alone.do(*(finding.mend for finding in found))
    assert alone.check("seen", state="status") == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("create table job (id int)", """did you mean table_name='"job"'?"""),
        ('create table "Jobs" (id int)', """did you mean table_name='"Jobs"'?"""),
        ("create schema {}_b create table jobs (id int)", "there is one in the schema {}_b, and the search_path"),
    ],
)
def test_a_name_that_was_meant_is_suggested(alone: Place, made: str, said: str) -> None:
    alone.do(made.format(alone.schema))
    (finding,) = alone.check()
    assert said.format(alone.schema) in finding.problem
    assert finding.mend == ""


def test_a_column_that_may_be_meant_is_suggested(place: Place) -> None:
    place.make()
    place.do("alter table jobs rename process_after to process_afterwards")
    assert """alternate_column_names={"process_after": '"process_afterwards"'}""" in problems(place.check())


def test_quoted_names_and_another_schema_are_mended_under_their_names(place: Place) -> None:
    table, columns = f'{place.schema}."Jobs ""x"""', {"state": '"Its State"', "id": '"Key"'}
    shape = read_shape(table, None, columns)
    place.do(full_ddl(Plan(shape=shape, key="uuid")), 'alter table "Jobs ""x""" drop "Its State", drop num_resets')
    found = place.examine(table, alternate_column_names=columns)
    assert "there is no column Its State (for state)" in problems(found)
    place.do(*(finding.mend for finding in found))
    assert place.examine(table, alternate_column_names=columns) == []


def test_the_rows_of_a_table_that_gets_a_state_are_not_run(place: Place) -> None:
    place.do("create table jobs (id int primary key); insert into jobs values (1)")
    while found := place.check():
        place.do(*(finding.mend for finding in found))
    place.do("insert into jobs values (2)")
    assert place.do("select id, state from jobs order by id") == [(1, "completed"), (2, "queued")]


def test_a_table_without_what_is_optional_is_sound_unless_it_was_mapped(place: Place) -> None:
    place.make()
    place.do("alter table jobs drop cancel, drop queued_at")
    assert place.check() == []
    found = place.check(cancel="stop")
    assert problems(found) == "there is no column stop (for cancel)"
    place.do(*(finding.mend for finding in found))
    assert place.check(cancel="stop") == []


def test_a_table_that_nobody_cancels_may_not_know_canceled(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs drop cancel, add check (state in ('queued','processing','errored','completed','failed'))"
    )
    found = place.check()
    assert "does not let pass a record that is canceled" in problems(found, fatal=False)
    assert not problems(found, fatal=True)


def test_the_column_for_the_token_is_looked_at_when_it_is_mapped(place: Place) -> None:
    place.make()
    place.do("alter table jobs add token varchar(10)")
    found = place.check(lease_token="token")
    assert "column token has room for 10 characters" in problems(found, fatal=True)
    place.do(*(finding.mend for finding in found))
    assert place.check(lease_token="token") == []


def test_a_type_under_a_view_is_changed_and_the_view_made_anew_with_its_rights(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs alter worker_hostname type varchar(9), alter finished_at type timestamp",
        "create view seen with (security_barrier) as select j.*, 1 as more from jobs j",
        "grant select on seen to public",
    )
    found = place.check("seen")
    place.do(*(finding.mend for finding in found))
    assert place.check("seen") == []
    assert place.do("select more from seen") == []
    options, rights = (
        "select reloptions from pg_class where oid = 'seen'::regclass",
        "has_table_privilege('pg_monitor', ",
    )
    assert place.do(options) == [(["security_barrier=true"],)]
    assert place.do(f"select {rights} 'seen', 'select')") == [(True,)]


def test_a_view_on_which_another_is_built_stays_and_the_worker_gets_another_column(place: Place) -> None:
    place.make()
    place.do("alter table jobs alter worker_hostname type varchar(9)", VIEW, "create view above as select * from seen")
    (finding,) = place.check("seen")
    assert "something is made of the views that show it" in finding.problem
    place.do(finding.mend)
    assert place.check("seen", **finding.columns) == []


@pytest.mark.parametrize(
    ("view", "said", "fatal"),
    [
        ("select state from jobs", "does not show id", True),
        ("select id::text, state from jobs", "shows id as text; in the table it is bigint", True),
        ("select j.id, j.state from jobs j, generate_series(1, 2)", "shows a record more than once (id 1", False),
        ("select id, state from jobs where state = 'queued'", "hides records that are processing", True),
        ("select j.* from jobs j where state in ('queued', 'errored')", "hides records that are processing", True),
        ("select id, state from jobs where id <> 3", "hides 1 record that is processing", False),
        ("select id from jobs", "does not show state: no index helps", False),
    ],
)
def test_a_view_that_cannot_serve_is_found(place: Place, view: str, said: str, fatal: bool) -> None:
    place.make()
    place.do("insert into jobs (state) values ('queued'), ('errored'), ('processing')", f"create view seen as {view}")
    assert said in problems(place.check("seen"), fatal=fatal)


def test_a_view_hides_what_is_processing_although_there_is_no_row_yet(place: Place) -> None:
    place.make()
    place.do(
        "create table repo (id bigint primary key, name text)",
        "create view seen as select j.*, r.name from jobs j join repo r using (id) where j.state = 'queued'",
    )
    assert "hides records that are processing" in problems(place.check("seen"), fatal=True)


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("(state = 'processing') = (started_at is not null)", "errored, completed, failed, canceled"),
        ("(state = 'failed') = (failure_message is not null)", "errored"),
        ("queued_at < started_at and started_at < last_heartbeat_at and last_heartbeat_at < finished_at", ""),
        ("state not in ('errored', 'failed') or num_failures > 0", ""),
        ("(state = 'canceled') = cancel and worker_hostname like '%/%'", ""),
        ("state <> 'odd' or size > 0", ""),
    ],
)
def test_a_check_of_several_columns_is_computed_for_rows_as_a_worker_leaves_them(
    place: Place, rule: str, refused: str
) -> None:
    place.make()
    place.do(f"alter table jobs add size int, add constraint several check ({rule})")
    told = problems(place.check(), fatal=True)
    assert told.partition("a record that is ")[2] == refused


def test_a_view_with_triggers_of_its_own_is_not_made_anew(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs alter failure_message type varchar(9)",
        VIEW,
        "create function nothing() returns trigger language plpgsql as 'begin return null; end'",
        "create trigger instead instead of insert on seen for each row execute function nothing()",
    )
    (finding,) = place.check("seen")
    assert finding.mend == ""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (("create foreign data wrapper far; create server far foreign data wrapper far; drop table jobs;"
         " create foreign table jobs (id bigint) server far"), "jobs is a foreign table"),
        ("create table base (like jobs including all); drop table jobs; create view jobs as select * from base",
         "jobs is a view: its rows cannot be locked; give the table itself"),
        (("create table base (like jobs including all); drop table jobs;"
         "create materialized view jobs as select * from base"), "jobs is a materialised view"),
        (("create table parent (like jobs) partition by list (state); drop table jobs;"
         "create table jobs partition of parent for values in ('queued')"), "partitioned by state"),
        (("create table parent (like jobs including defaults) partition by list (state); drop table jobs;"
         "alter table parent rename to jobs"), "partitioned by state"),
        ("create rule noted as on update to jobs do also notify changed", "has a rule for UPDATE (noted)"),
    ],
)  # fmt: skip
def test_a_relation_whose_rows_cannot_be_locked_or_updated_is_refused(place: Place, made: str, said: str) -> None:
    place.make()
    place.do(made)
    assert said in problems(place.check(), fatal=True)


def test_a_partitioned_table_whose_key_is_not_written_serves(place: Place) -> None:
    place.do(
        full_ddl(Plan(shape=read_shape("jobs", None, {}))).replace("\n);", "\n) PARTITION BY HASH (id);", 1),
        "create table jobs_0 partition of jobs for values with (modulus 2, remainder 0)",
        "create table jobs_1 partition of jobs for values with (modulus 2, remainder 1)",
    )
    assert place.check() == []
    assert place.examine("jobs_0") == []


def test_nothing_is_advised_of_a_column_that_the_worker_needs_no_longer(place: Place) -> None:
    place.make()
    place.do("alter table jobs alter state set default 'new', add check (state in ('new', 'done'))")
    found = place.check()
    assert [dict(one.columns) for one in found if one.columns] == [{"state": "job_state"}]
    assert "default" not in problems(found)


def test_states_that_no_worker_knows_are_counted_and_not_fatal(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs alter state drop not null",
        "insert into jobs (state) values (null), ('stuck'), ('stuck'), ('queued')",
    )
    assert problems(place.check(), fatal=False).splitlines() == [
        "2 records have the state 'stuck', which no worker knows: never run",
        "1 record has the state NULL, which is no state: never run",
    ]


def test_ids_that_are_not_unique_are_told_before_an_index_is_tried(place: Place) -> None:
    place.make()
    place.do("alter table jobs drop constraint jobs_pkey", "insert into jobs (id) values (1), (1)")
    assert "1 record has no id, or one that another record has" in problems(place.check())


def test_a_large_table_is_sampled_and_the_look_is_quick(place: Place) -> None:
    place.make()
    place.do(
        "alter table jobs add padding text, alter padding set storage plain",
        "insert into jobs (state, padding) select 'odd', repeat('x', 7000) from generate_series(1, 2500)",
    )
    told = problems(place.check(), fatal=False)
    assert "records of a sample have the state 'odd'" in told
    assert 0 < int(told.split()[0]) < 2500


def test_rights_that_are_missing_are_granted_by_what_is_printed(place: Place, database: str) -> None:
    place.make()
    place.do(VIEW)
    user = f"Poor {place.schema}"
    place.do(f"create role \"{user}\" login password 'secret'")
    try:
        url = make_conninfo(place.url, user=user, password="secret")
        names = f"{place.schema}.jobs", f"{place.schema}.seen"
        found = place.examine(*names, url=url)
        told = problems(found, fatal=True)
        assert f"{user} may not use the schema {place.schema}" in told
        assert f"{user} lacks SELECT, UPDATE on {place.schema}.jobs" in told
        assert f"{user} lacks SELECT on {place.schema}.seen" in told
        place.do(*(finding.mend for finding in found))
        assert place.examine(*names, url=url) == []
        place.do("alter table jobs add secret text", f'revoke all on jobs from "{user}"')
        place.do(*(f'grant {right} on jobs to "{user}"' for right in ("select (id)", "update")))
        assert f"{user} lacks SELECT on" in problems(place.examine(names[0], url=url), fatal=True)
        known = ", ".join(COLUMNS)
        place.do(f'grant select ({known}) on jobs to "{user}"')
        (finding,) = place.examine(names[0], url=url)
        assert finding.problem == "column_expressions: permission denied for table jobs"
        assert place.examine(names[0], url=url, column_expressions=["id", "state"]) == []
        place.do(finding.mend)
        assert place.examine(names[0], url=url) == []
        place.do("alter table jobs enable row level security")
        assert "row security" in problems(place.examine(*names, url=url), fatal=False)
    finally:
        place.do(f'drop owned by "{user}"', f'drop role "{user}"')


def test_a_login_that_may_only_read_is_told_so(place: Place) -> None:
    place.make()
    url = make_conninfo(place.url, options=f"-csearch_path={place.schema} -cdefault_transaction_read_only=on")
    assert "default_transaction_read_only is on" in problems(place.check(url=url), fatal=True)


def test_a_worker_is_refused_with_every_fatal_finding_and_its_ddl(place: Place, run: Run) -> None:
    place.make()
    place.do("drop index jobs_stalled; alter table jobs drop state, drop num_resets")

    async def refused() -> str:
        line = await Dialer(Address(place.url)).dial("test")
        with pytest.raises(TableUnsuitable) as raised:
            await validate(line, TableOptions(name="test", table_name="jobs"), read_shape("jobs", None, {}))
        await line.close()
        return str(raised.value)

    told = run(refused())
    for part in ("no column state", "no column num_resets", 'ADD COLUMN "num_resets" integer NOT NULL DEFAULT 0'):
        assert part in told
    assert "CREATE INDEX" not in told


def test_a_channel_without_a_trigger_is_told(place: Place) -> None:
    place.make()
    (finding,) = place.examine("jobs", notify_channel="wake")
    assert "no trigger of the table notifies: workers poll" in finding.problem
    place.do(finding.mend)
    assert place.examine("jobs", notify_channel="wake") == []


def test_a_virtual_column_stays_and_the_worker_gets_an_ordinary_one(place: Place, postgres_server: Databases) -> None:
    if postgres_server.version < 18:
        pytest.skip("no virtual columns before PostgreSQL 18")
    place.make()
    place.do("alter table jobs drop queued_at, add queued_at timestamptz generated always as (started_at) virtual")
    (finding,) = place.check()
    assert "column queued_at computes itself" in finding.problem
    assert mended(place, [finding]) == {"queued_at": "job_queued_at"}


@pytest.mark.parametrize(("cancel", "view"), [("", ""), (", cancel boolean not null default false", "example_jobs")])
def test_the_tables_of_the_documents_are_served(place: Place, cancel: str, view: str) -> None:
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
    found = place.examine(
        "example_jobs" if view else "example_jobs j",
        f"example_jobs_with_repository_name {label}",
        column_expressions=[f"{label}.id", f"{label}.name"],
        order_by_expression=[f"{label}.repository_id", f"{label}.id"],
    )
    assert [finding.problem.partition(" (")[0] for finding in found] == ["no index on"] * 4
    place.do(*(finding.mend for finding in found))
    assert "(repository_id, id)" in problems(found)


def test_a_column_of_the_users_is_never_proposed_nor_emptied(place: Place) -> None:
    place.do(
        "create table jobs (id bigint primary key, created_at timestamptz not null default now(), status int,"
        " failure_messages text not null, num_failure text, finished_on timestamptz default now(), hostname text)",
        "insert into jobs (id, failure_messages) values (1, 'kept')",
    )
    found = place.check()
    assert "is meant" not in problems(found)
    assert "DROP" not in "".join(finding.mend for finding in found)
    assert mended(place, found) == {}
    # Even when it is named all the same, by what an older check proposed.
    (finding,) = place.check(started_at="created_at")
    assert "column created_at is NOT NULL" in finding.problem
    assert mended(place, [finding]) == {"started_at": "job_started_at"}


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        ("status text not null default 'queued'", "status"),
        ("status text not null default 'active'", None),
        ("status text", None),
        ("states text default 'queued'", "states"),
        ("states smallint", None),
    ],
)
def test_a_state_is_proposed_where_its_default_says_that_it_is_one(place: Place, made: str, meant: str | None) -> None:
    place.make()
    place.do(f"alter table jobs drop state, add {made}")
    (told,) = [finding.problem for finding in place.check() if "no column state" in finding.problem]
    assert (f"if {meant} is meant" if meant else "") in told
    assert ("is meant" in told) is (meant is not None)


@pytest.mark.parametrize(
    ("made", "inserted"),
    [
        ("state smallint not null default 0", "3"),
        ("state char(12) not null default 'queued'", "'errored'"),
        ("state text not null default 'open' check (state in ('open', 'shut'))", "'open'"),
        ("state boolean", "true"),
    ],
)
def test_a_state_that_says_something_else_stays_and_waiting_records_go_on_waiting(
    place: Place, made: str, inserted: str
) -> None:
    place.make()
    place.do(
        f"alter table jobs drop state, add {made}, drop execution_logs, add execution_logs jsonb",
        f"""insert into jobs (state, execution_logs) values ({inserted}, '{{"said": 1}}')""",
    )
    found = place.check()
    assert "no worker knows" not in problems(found), "what the user's own column holds is no trouble"
    columns = mended(place, found)
    assert columns == {"state": "job_state", "execution_logs": "job_execution_logs"}
    waits = inserted == "'errored'"
    assert place.do("select job_state from jobs") == [("errored" if waits else "completed",)]
    place.do(f"insert into jobs (state) values ({inserted})")
    assert place.do("select job_state from jobs order by id desc limit 1") == [("queued",)]


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        ("state text default 'draft'", "draft"),
        ("state varchar(8) not null default 'draft'", "draft"),
        ("state varchar(2) default 'DE'", "DE"),
        ("state {}.colour default 'red'", "red"),
    ],
)
def test_a_default_of_the_users_stays_and_no_insert_becomes_a_job(place: Place, made: str, kept: str) -> None:
    place.do("create type colour as enum ('red', 'queued')")
    place.do(f"create table jobs (id bigint primary key, {made.format(place.schema)})")
    place.do("insert into jobs (id) values (1)")
    place.do(*(finding.mend for finding in place.check() if finding.mend))
    place.do("insert into jobs (id) values (2)")
    assert place.do("select state::text from jobs order by id") == [(kept,), (kept,)]


@pytest.mark.parametrize("rows", ["insert into jobs (tenant, id) values (1, 7), (2, 7)", ""])
def test_ids_that_repeat_stay_and_each_record_gets_a_number(place: Place, rows: str) -> None:
    place.make()
    place.do(
        "alter table jobs alter id drop identity, drop constraint jobs_pkey, add tenant int;"
        "alter table jobs add primary key (tenant, id); " + rows
    )
    finding = place.check()[0]
    assert 'ADD COLUMN "job_no" bigserial UNIQUE' in finding.mend
    assert mended(place, place.check()) == {"id": "job_no"}


def test_what_mends_a_big_table_locks_nobody_out_and_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.table.catalog.BIG", 1)
    place.make()
    place.do(
        "drop index jobs_next; alter table jobs alter id drop identity, drop constraint jobs_pkey, add tenant int,"
        " add primary key (tenant, id), alter state type char(10), drop process_after, add process_after text,"
        " alter queued_at type timestamp, alter num_resets drop not null, add padding text default repeat('x', 900)",
        "insert into jobs (tenant, id, state, process_after, num_resets)"
        " select n, 1, case n % 2 when 0 then 'queued' else 'completed' end, '2026-01-02 UTC', null"
        " from generate_series(1, 2100) n",
    )
    found = place.check()
    printed = "\n".join(finding.mend for finding in found)
    assert "CREATE UNIQUE INDEX CONCURRENTLY" in printed
    assert "NOT VALID" in printed
    assert "VALIDATE CONSTRAINT" in printed
    assert all(finding.alone for finding in found if re.search("CONCURRENTLY|DO \\$|BEGIN", finding.mend))
    node = place.do("select pg_relation_filenode('jobs')")
    columns: dict[str, str] = {}
    for finding in found:
        run_one_by_one(place, finding.mend)
        columns |= finding.columns
    assert columns == {"id": "job_no", "state": "job_state", "process_after": "job_process_after"}
    assert node == place.do("select pg_relation_filenode('jobs')"), "every row was written at once"
    run_one_by_one(place, "\n".join(finding.mend for finding in place.check(**columns)))
    assert place.check(**columns) == []
    assert place.do("select count(distinct job_no), count(*) filter (where job_state = 'queued'),"
                    " count(*) filter (where job_process_after = '2026-01-02 UTC'), max(num_resets) from jobs"
                    ) == [(2100, 1050, 2100, 0)]  # fmt: skip


def test_an_index_of_a_big_partitioned_table_is_built_partition_by_partition(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.postgres.table.catalog.BIG", 0)
    place.do(
        full_ddl(Plan(shape=read_shape("jobs", None, {}))).replace("\n);", "\n) PARTITION BY HASH (id);", 1),
        f"create schema elsewhere_{place.schema}",
        f"create table elsewhere_{place.schema}.part partition of jobs for values with (modulus 2, remainder 0)",
        "create table jobs_1 partition of jobs for values with (modulus 2, remainder 1)",
        "insert into jobs default values; insert into jobs default values; drop index jobs_stalled",
    )
    (finding,) = place.check()
    assert finding.alone
    assert finding.mend.count("CONCURRENTLY") == 2
    run_one_by_one(place, finding.mend)
    assert place.check() == []
    place.do(f"drop schema elsewhere_{place.schema} cascade")


def run_one_by_one(place: Place, script: str) -> None:
    """As psql does: a statement ends with a line that ends with a semicolon, but for the body of a block."""
    for block in re.split(r"(DO \$batches\$.*?\$batches\$;)", script, flags=re.DOTALL):
        place.do(block) if block.startswith("DO") else place.do(*re.split(r"(?<=;)\n", block.strip() or "select 1"))


def test_a_standby_is_told_so(place: Place) -> None:
    shape = read_shape("jobs", None, {})
    facts = Facts(Server(True, False, "me", "public"), None, None)
    assert "the server is a standby" in problems(list(judge(facts, shape)), fatal=True)


def test_the_index_that_is_advised_follows_the_order(place: Place) -> None:
    place.make()
    place.do("alter table jobs add priority int")
    order: list[Any] = ["priority", "jobs.id"]
    (finding,) = place.examine("jobs", order_by_expression=order)
    assert finding.problem == "no index on (priority, id) for the records that are queued or errored"
    place.do("drop index jobs_next", finding.mend)
    assert place.examine("jobs", order_by_expression=order) == []
    assert problems(place.examine("jobs", order_by_expression=sql("priority % {}", 7))).startswith("no index on (id)")


class Job(msgspec.Struct):
    """A record that wants more than the view has."""

    id: int
    size: int


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"column_expressions": ["v.id", "v.size"]}, "column_expressions: column v.size does not exist"),
        ({"column_expressions": [sql("j.id + ")]}, "column_expressions: syntax error"),
        ({"order_by_expression": sql("v.more desc nulls last, j.size")}, "order_by_expression: column j.size does not"),
        ({"order_by_expression": ["elsewhere.id"]}, "order_by_expression: missing FROM-clause entry"),
        ({"record": Job}, "no such column: 'size'"),
        ({"column_expressions": ["j.id", "v.more"], "order_by_expression": ["v.more", sql("j.id % {}", 2)]}, ""),
    ],
)
def test_an_expression_that_the_server_does_not_understand_is_told(
    place: Place, given: dict[str, Any], said: str
) -> None:
    place.make()
    place.do(VIEW)
    found = problems(place.examine("jobs j", "seen v", **given), fatal=True)
    assert said in found
    assert bool(found) is bool(said)


def test_nobody_is_waited_for_and_nothing_is_locked_but_for_reading(place: Place) -> None:
    """Every row is locked, and the table too, in every way that lets others read."""
    place.make()
    place.do("insert into jobs default values", "alter table jobs alter num_resets drop not null")
    with psycopg.connect(place.url) as other:
        other.execute("lock table jobs in exclusive mode; update jobs set num_resets = null")
        assert place.check() == []


def test_a_view_that_writes_when_it_is_read_writes_nothing(place: Place) -> None:
    place.make()
    place.do(
        "create table noted (n int); insert into jobs default values",
        "create function note() returns int volatile language sql as 'insert into noted values (1) returning n'",
        "create view seen as select j.*, note() from jobs j",
    )
    place.check("seen")
    assert place.do("select * from noted") == []


def test_it_takes_what_an_older_server_says(older_postgres_url: str, run: Run) -> None:
    with closing(Place(older_postgres_url, run)) as place:
        place.make()
        place.do("alter table jobs add constraint c check (state <> 'errored'), drop process_after", VIEW)
        found = place.check("seen")
        assert problems(found, fatal=True).count("\n") == 1
        place.do(*(finding.mend for finding in found))
        assert place.check("seen") == []
