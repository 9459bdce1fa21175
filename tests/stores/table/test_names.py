"""Names of tables, views and columns: what is a name, what it means, and what is refused because it would be SQL."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import sql
from stowhand.stores.table.names import Column, Relation, Shape, quote, read_column, read_relation, read_shape


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("jobs", Relation("jobs")),
        ("  jobs  ", Relation("jobs")),
        ("App.Jobs", Relation("jobs", "app")),
        ("jobs j", Relation("jobs", None, "j")),
        ("jobs AS J", Relation("jobs", None, "j")),
        ("app.jobs\n as\tj", Relation("jobs", "app", "j")),
        ('"Jobs"', Relation("Jobs")),
        ('"My App"."the ""jobs""" "J"', Relation('the "jobs"', "My App", "J")),
        ("jobs_2$", Relation("jobs_2$")),
        ("größe", Relation("größe")),
    ],
)
def test_a_relation_is_read_as_postgresql_reads_it(text: str, meant: Relation) -> None:
    assert read_relation("table_name", text) == meant


def test_a_bare_name_keeps_its_case_where_the_database_does_not_fold() -> None:
    assert read_relation("table_name", "Jobs J", folds=False) == Relation("Jobs", None, "J")


@pytest.mark.parametrize(
    "text",
    [
        "jobs; DROP TABLE jobs",
        "jobs j, users u",
        "jobs WHERE true",
        "(SELECT 1) j",
        "jobs -- x",
        "jobs/**/j",
        "jobs as",
        "db.app.jobs",
        "my-jobs",
        "1jobs",
        'jobs"',
        '"jobs',
        '""',
        "jobs\x00",
        '"jo\x00bs"',
        "jobs)",
        "jobs' OR '1'='1",
    ],
)
def test_sql_in_a_name_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r'is SQL, not a name; use a name: jobs, app\.jobs, "Jobs"'):
        read_relation("table_name", text)


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="table_name: got a NoneType"):
        read_relation("table_name", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="table_name: empty; use a name"):
        read_relation("table_name", " ")
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        read_relation("table_name", '"\ud800"')


def test_a_name_that_the_server_would_cut_is_refused() -> None:
    assert read_relation("table_name", "j" * 63).name == "j" * 63
    with pytest.raises(ConfigurationError, match="longer than the 63 bytes"):
        read_relation("table_name", '"' + "ö" * 32 + '"')


def test_quoting_leaves_no_way_out() -> None:
    assert quote('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'
    assert Relation("Jobs", 'a"b', "j").labelled() == '"a""b"."Jobs" AS "j"'
    assert Relation("jobs").labelled() == '"jobs" AS "jobs"'
    assert Column("Id", "j").quoted == '"j"."Id"'


def test_a_column_may_bear_an_alias() -> None:
    assert read_column("J.Id") == Column("id", "j")
    assert read_column('"J"."Id"') == Column("Id", "J")


@pytest.mark.parametrize("text", ["id, state", "lower(id)", "id DESC", "a.b.c", "*", "j.*", "1", "", "id = 1 OR 1=1"])
def test_an_expression_that_is_no_name_is_to_be_marked_as_sql(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sql\(\""):
        read_column(text)


def test_columns_have_the_names_that_the_options_gave_them() -> None:
    shape = read_shape("app.jobs j", None, {"state": "status", "id": '"Key"'})
    assert shape["state"] == '"status"'
    assert shape["id"] == '"Key"'
    assert shape["queued_at"] == '"queued_at"'
    assert shape.of("j", "id") == '"j"."Key"'
    assert shape.mapped == {"state", "id"}
    assert not shape.has("lease_token")
    assert read_shape("jobs", None, {"lease_token": "token"}).has("lease_token")


def test_without_a_view_the_table_is_read() -> None:
    shape = read_shape("jobs j", None, {})
    assert (shape.view, shape.viewed, shape.view_label, shape.table_label) == (shape.table, False, "j", "j")


def test_table_and_view_may_bear_one_alias() -> None:
    same = read_shape("example_jobs j", "example_jobs_with_repository_name j", {})
    assert same.view_label == "j"
    assert same.table_label not in ("j", "example_jobs")
    other = read_shape("jobs j", "jobs_view v", {})
    assert (other.table_label, other.view_label) == ("j", "v")


def test_only_optional_columns_can_be_absent() -> None:
    shape: Shape = read_shape("jobs", None, {}).lacking("cancel", "state")
    assert not shape.has("cancel")
    assert shape.has("queued_at")
    assert shape.has("state")


def test_all_mistakes_in_names_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_shape("jobs;", "view;", {"state": "a b"})
    for field in ("table_name: 'jobs;'", "view_name: 'view;'", "alternate_column_names['state']: 'a b'"):
        assert field in str(caught.value)


def test_marked_sql_is_no_name_of_a_table() -> None:
    with pytest.raises(ConfigurationError, match="table_name: got a Sql; use a name"):
        read_relation("table_name", sql("jobs"))  # type: ignore[arg-type]


def test_a_condition_on_a_name_with_other_signs_says_how_it_is_written() -> None:
    shape = read_shape("jobs", None, {})
    with pytest.raises(ConfigurationError) as refused:
        shape.column("50% off")
    assert """a column of that name is written '"50% off"'""" in str(refused.value)
    assert shape.column('"50% off"').name == "50% off"
