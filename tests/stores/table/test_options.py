"""Options of a table: what is refused, all at once, and with the fix."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from psycopg import sql as composed

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import sql
from stowhand.stores.table.names import Column, read_shape
from stowhand.stores.table.options import SelectedExpression, order_of, select_expressions
from stowhand.table import TableOptions, TableStore


@dataclass
class Upload:
    id: int
    path: str


def options(**given: Any) -> TableOptions[Any]:
    return TableOptions(**({"name": "uploads", "table_name": "uploads"} | given))


def refused(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        options(**given)
    return str(caught.value)


def test_the_founding_example_is_accepted() -> None:
    table = options(
        name="example_job_worker_store",
        table_name="example_jobs j",
        view_name="example_jobs_with_repository_name j",
        column_expressions=["j.id", "j.state", sql("j.repository_name")],
        scan=tuple,
        order_by_expression=sql("j.repository_id, j.id"),
        max_resets=5,
        heartbeat_interval=timedelta(seconds=1),
        stalled_max_age=timedelta(seconds=5),
    )
    assert table.stalled == 5.0


def test_durations_are_exact() -> None:
    option_values = options(stalled_max_age=timedelta(milliseconds=250), retry_after=0.000001, heartbeat_interval=0.05)
    assert (option_values.stalled, option_values.retry_delay) == (0.25, 0.000001)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "name: empty; use 1 to 128 characters"),
        ({"name": None}, "name: got a NoneType"),
        ({"table_name": "jobs; --"}, "table_name: 'jobs; --' is SQL, not a name"),
        ({"stalled_max_age": 0}, "stalled_max_age: got 0, must be more than 0"),
        ({"stalled_max_age": timedelta(seconds=-1)}, "stalled_max_age: got -1 day, 23:59:59, must be more than 0"),
        ({"stalled_max_age": True}, "stalled_max_age: got a bool; use a timedelta, seconds or a phrase"),
        ({"stalled_max_age": "soon"}, "stalled_max_age: 'soon'"),
        ({"stalled_max_age": float("nan")}, "stalled_max_age: got nan"),
        ({"stalled_max_age": float("inf")}, "the limit is 100 years"),
        ({"heartbeat_interval": 0}, "heartbeat_interval: got 0, must be more than 0"),
        ({"cancel_interval": 0.0}, "cancel_interval: got 0.0, must be more than 0"),
        ({"retry_after": -0.5}, "retry_after: got -0.5, must not be negative"),
        ({"retry_after": None}, "retry_after: got a NoneType"),
        ({"max_resets": True}, "max_resets: got a bool; use a whole number"),
        ({"max_resets": -1}, "max_resets: got -1; use 0 to"),
        ({"max_num_retries": 1.0}, "max_num_retries: got a float; use a whole number"),
        ({"max_num_retries": 2**31}, "max_num_retries: got 2147483648"),
        ({"alternate_column_names": {"staet": "x"}}, "no documented column 'staet'; did you mean 'state'?"),
        ({"alternate_column_names": {"zzz": "x"}}, "no documented column 'zzz'; available: cancel, "),
        ({"alternate_column_names": {"state": "a b"}}, "alternate_column_names['state']: 'a b' is SQL, not a name"),
        ({"alternate_column_names": ["state"]}, "alternate_column_names: got a list; use a dict"),
        ({"alternate_column_names": {"state": "s", "id": "S"}}, "'id' and 'state' are both the column"),
        ({"alternate_column_names": {"state": "cancel"}}, "'state' and 'cancel' are both the column 'cancel'"),
        ({"column_expressions": "id"}, "column_expressions: got a str; use a list: ['id']"),
        ({"column_expressions": ["id", "lower(x)"]}, 'SQL of your own is written sql("lower(x)")'),
        ({"column_expressions": [7]}, "column_expressions: got an int; use a column's name, or sql"),
        ({"order_by_expression": "priority DESC"}, 'written sql("priority DESC")'),
        ({"record": Upload, "scan": tuple, "column_expressions": ["id"]}, "record and scan: both given"),
        ({"scan": tuple}, "scan: it takes the values of column_expressions, and there are none"),
        ({"scan": "row", "column_expressions": ["id"]}, "scan: got a str; use a function"),
        ({"record": int}, "use a dataclass, a msgspec.Struct or a pydantic model"),
        ({"record": Upload(1, "")}, "use a dataclass, a msgspec.Struct or a pydantic model"),
        ({"record_id": "id"}, "record_id: got a str; use a function"),
        ({"transactional": 1}, "transactional: got an int; use True or False"),
        ({"stalled_max_age": 29, "heartbeat_interval": 10}, "3 x 10 s = 30 s"),
        ({"reset_failure_message": ""}, "reset_failure_message: got ''; use a sentence"),
        ({"reset_failure_message": "died \udcff"}, "reset_failure_message: got 'died \\udcff'; use a sentence"),
        ({"notify_channel": ""}, "notify_channel: empty"),
        ({"notify_channel": "ö" * 40}, "notify_channel: longer than the 63 bytes"),
    ],
)
def test_a_mistake_is_refused_with_its_fix(given: dict[str, Any], said: str) -> None:
    assert said in refused(**given)


def test_records_that_could_not_outlast_three_beats_are_refused_with_the_sum() -> None:
    output = refused(stalled_max_age=5, heartbeat_interval=10)
    assert "at least 3 heartbeats, 3 x 10 s = 30 s" in output
    assert "use stalled_max_age=30, or heartbeat_interval=1.66667" in output
    options(stalled_max_age=0.3, heartbeat_interval=0.1)


def test_all_mistakes_are_reported_at_once() -> None:
    output = refused(name="", table_name="a b c", stalled_max_age=0, max_resets=-1, order_by_expression="x y")
    for field in ("name", "table_name", "stalled_max_age", "max_resets", "order_by_expression"):
        assert f"{field}:" in output


def test_changing_the_given_list_or_dict_changes_no_option() -> None:
    names, columns = {"state": "status"}, ["id"]
    option_values = options(alternate_column_names=names, column_expressions=columns)
    names["id"], columns[0] = "DROP", "DROP TABLE"
    assert dict(option_values.alternate_column_names) == {"state": "status"}
    assert tuple(option_values.column_expressions) == ("id",)


@pytest.mark.parametrize(
    ("url", "given", "said"),
    [
        ("sqlite:///x.db", {"transactional": True}, "transactional: it needs locks of single rows"),
        ("sqlite:///x.db", {"notify_channel": "x"}, "notify_channel: SQLite has no channels"),
        ("sqlite://x.db", {}, "three slashes before its file: sqlite:///x.db"),
        ("https://example.org", {}, "a table of yours is in PostgreSQL or SQLite, not at https://"),
        ("mysql://host/db", {}, "There is no store for mysql:// here"),
        ("jobs.db", {}, "For an SQLite file write sqlite:///jobs.db"),
        (" ", {}, "The connection is empty"),
        (object(), {}, "must be a psycopg_pool.AsyncConnectionPool"),
        (Path("/srv/jobs.db"), {}, "for an SQLite file write 'sqlite:////srv/jobs.db'"),
        ("sqlite:///jobs\0.db", {}, "a path cannot hold NUL"),
    ],
)
def test_a_place_that_cannot_serve_the_options_is_refused(url: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TableStore(url, options(**given))
    assert said in str(caught.value)


# -- what is selected, and whose turn it is ---------------------------------------------------------


def test_the_order_ends_with_the_id_so_that_it_is_total() -> None:
    shape = read_shape("jobs j", "view v", {"id": "key"})
    assert order_of(options(), shape) == (Column("key", "v"),)
    priority = sql("j.priority DESC")
    assert order_of(options(order_by_expression=priority), shape) == (priority, Column("key", "v"))
    assert order_of(options(order_by_expression=["j.a", "j.key"]), shape) == (Column("a", "j"), Column("key", "j"))


def test_a_record_is_made_of_what_the_expressions_name() -> None:
    free, own = sql("lower(j.path) AS path"), composed.SQL("1 AS one")
    job = select_expressions(
        options(column_expressions=["j.id", free, own]), read_shape("jobs j", None, {}), ["id", "path"]
    )
    assert job == (SelectedExpression(Column("id", "j"), "id"), SelectedExpression(free), SelectedExpression(own))


def test_without_expressions_a_record_is_made_of_its_fields() -> None:
    class Row(msgspec.Struct):
        id: int
        state: str
        path: str = msgspec.field(name="filePath")
        absent: int = 0

    shape = read_shape("jobs j", None, {"state": "status"}, folds=False)
    option_values = select_expressions(options(record=Row), shape, ["id", "status", "filepath", "unwanted"])
    assert option_values == (
        SelectedExpression(Column("id", "j"), "id"),
        SelectedExpression(Column("status", "j"), "state"),
        SelectedExpression(Column("filepath", "j"), "filePath"),
    )


def test_without_a_record_every_column_is_selected() -> None:
    job = select_expressions(options(), read_shape("jobs", None, {}), ["id", "Path"])
    assert job == (SelectedExpression(Column("id", "jobs"), "id"), SelectedExpression(Column("Path", "jobs"), "Path"))
