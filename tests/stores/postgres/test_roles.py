"""The four roles: exactly what docs/reference/roles.md says, asked of the catalog; and then tried with real logins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.stores.postgres.queue.context import ROLE_KINDS, role_names
from tests.support.databases import Databases
from tests.support.logins import Logins, exec_all, with_roles

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "roles.md"
RIGHTS = ("SELECT", "INSERT", "UPDATE", "REFERENCES")
TABLE_RIGHTS = (*RIGHTS, "DELETE", "TRUNCATE", "TRIGGER")
# Roles belong to the whole server: one process of the run has them.
pytestmark = pytest.mark.xdist_group("roles")
Matrix = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def logins(postgres_server: Databases) -> Iterator[Logins]:
    with with_roles(postgres_server) as logins:
        yield logins


@pytest.fixture
def asked(logins: Logins) -> Iterator[psycopg.Connection]:
    with psycopg.connect(logins.owner) as connection:
        yield connection


def table_of(heading: str) -> Matrix:
    """A table of the page: what each role may, by the name in the first cell."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    head, _, *body = rows
    return {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in body}


def listed(words: str) -> set[str]:
    """The names that follow these words on the page, up to the end of the paragraph."""
    text = PAGE.read_text().partition(words)[2].partition("\n\n")[0]
    return set(re.findall(r"`([\w.]+)`", text.partition(". ")[0]))


def test_every_role_calls_exactly_the_functions_of_the_page(asked: psycopg.Connection) -> None:
    result: Matrix = {}
    nobodys = set()
    for name, oid in asked.execute(
        "select p.proname, p.oid from pg_proc p where p.pronamespace = 'stowhand'::regnamespace"
    ).fetchall():
        may = {role: "yes" if has(asked, "function", role, oid, "EXECUTE") else "-" for role in ROLE_KINDS}
        assert result.setdefault(name, may) == may, f"the overloads of {name} differ"
        if set(may.values()) == {"-"}:
            nobodys.add(name)
    shown = table_of("Functions")
    assert {name: may for name, may in result.items() if name not in nobodys} == shown
    assert nobodys == listed("Helpers, called only by the owner and the functions above:"), (
        "a new function stands in functions/grants.sql and in the table of the page, or among the helpers"
    )


def test_every_role_reads_exactly_the_tables_of_the_page_and_writes_none(asked: psycopg.Connection) -> None:
    shown = table_of("Tables and views")
    secret = listed("settle the job:")
    relations = asked.execute(
        "select c.relname, c.oid, c.relkind, array(select a.attname::text from pg_attribute a where a.attrelid = c.oid"
        " and a.attnum > 0 and not a.attisdropped) from pg_class c"
        " where c.relnamespace = 'stowhand'::regnamespace and c.relkind in ('r', 'p', 'v')"
    ).fetchall()
    assert {re.sub(r"^history_\d{8}$", "history_default", row[0]) for row in relations} == shown.keys()
    for name, oid, _, columns in relations:
        for role in ROLE_KINDS:
            reads = shown[re.sub(r"^history_\d{8}$", "history_default", name)][role] == "read"
            for right in TABLE_RIGHTS:
                whole = has(asked, "table", role, oid, right)
                assert not whole or (reads and right == "SELECT"), f"{role} may {right} {name}"
            for column in columns:
                for right in RIGHTS:
                    expected = reads and right == "SELECT" and f"{name}.{column}" not in secret
                    assert has(asked, "column", role, oid, right, column) is expected, f"{role} {right} {name}.{column}"


def test_no_role_can_read_a_column_with_tokens(asked: psycopg.Connection) -> None:
    columns = asked.execute(
        "select c.oid, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'stowhand'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')"
        " and (a.atttypid = 'uuid'::regtype or a.attname like '%token%')"
    ).fetchall()
    assert len(columns) >= 5
    assert not [
        pair for pair in columns for role in ROLE_KINDS if has(asked, "column", role, pair[0], "SELECT", pair[1])
    ]


def test_no_role_may_use_sequences_and_every_role_may_use_types(asked: psycopg.Connection) -> None:
    page = PAGE.read_text()
    sequences = asked.execute(
        "select relname, oid from pg_class where relnamespace = 'stowhand'::regnamespace and relkind = 'S'"
    ).fetchall()
    assert {name for name, _ in sequences} == listed("Sequences, which no role may use:")
    for _, oid in sequences:
        for right in ("USAGE", "SELECT", "UPDATE"):
            assert not any(has(asked, "sequence", role, oid, right) for role in ROLE_KINDS)
    types = {
        name
        for (name,) in asked.execute(
            "select t.typname from pg_type t join pg_class c on c.oid = t.typrelid"
            " where t.typnamespace = 'stowhand'::regnamespace and c.relkind = 'c'"
        )
    }
    assert types == set(re.findall(r"`(\w+)`", page.partition("Types, which every role may use:")[2]))


def test_only_the_roles_may_use_the_schema(asked: psycopg.Connection, logins: Logins) -> None:
    for role in ROLE_KINDS:
        assert has(asked, "schema", role, "stowhand", "USAGE")
        assert not has(asked, "schema", role, "stowhand", "CREATE")
    may = asked.execute("select has_schema_privilege(%s, 'stowhand', 'USAGE')", (logins.name("stranger"),)).fetchone()
    assert may == (False,)
    publics = asked.execute(
        "select p.proname from pg_proc p where p.pronamespace = 'stowhand'::regnamespace"
        " and has_function_privilege(%s, p.oid, 'EXECUTE')",
        (logins.name("stranger"),),
    ).fetchall()
    assert publics == []


def test_what_a_role_may_call_runs_as_the_owner_with_a_search_path_of_its_own(asked: psycopg.Connection) -> None:
    result = asked.execute(
        "select p.oid, p.proname, p.prosecdef, p.proconfig from pg_proc p"
        " where p.pronamespace = 'stowhand'::regnamespace"
    ).fetchall()
    for oid, name, definer, settings in result:
        if any(has(asked, "function", role, oid, "EXECUTE") for role in ROLE_KINDS):
            assert definer, name
            assert "search_path=pg_catalog, pg_temp" in (settings or []), name


def test_additional_rights_of_a_role_are_revoked_by_the_next_migrate(asked: psycopg.Connection, logins: Logins) -> None:
    names = role_names("stowhand")
    exec_all(logins.owner, f"grant insert on stowhand.live to {names['reader']}")
    exec_all(logins.owner, f"revoke all on function stowhand.maintain from {names['worker']}")
    logins.install()
    test_every_role_reads_exactly_the_tables_of_the_page_and_writes_none(asked)
    test_every_role_calls_exactly_the_functions_of_the_page(asked)


def has(connection: psycopg.Connection, kind: str, role: str, what: Any, right: str, column: str | None = None) -> bool:
    name = role_names("stowhand")[role]
    values = (name, what, right) if column is None else (name, what, column, right)
    places = ", ".join(["%s"] * len(values))
    row = connection.execute(f"select has_{kind}_privilege({places})".encode(), values).fetchone()
    assert row is not None
    return bool(row[0])
