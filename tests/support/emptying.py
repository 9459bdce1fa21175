"""A database is put back as it was made, or found to be beyond that: cheaper than to make another for each test.

A few rows are deleted in microseconds; a table is truncated in ten milliseconds, and a database made in two hundred.
"""

from __future__ import annotations

import time
from typing import Any, Self

import msgspec
import psycopg
from psycopg import sql

CATALOGS = (
    *("pg_attrdef", "pg_attribute", "pg_cast", "pg_class", "pg_collation", "pg_constraint", "pg_conversion"),
    *("pg_db_role_setting", "pg_default_acl", "pg_description", "pg_enum", "pg_event_trigger", "pg_extension"),
    *("pg_foreign_data_wrapper", "pg_foreign_server", "pg_index", "pg_inherits", "pg_language"),
    *("pg_largeobject_metadata", "pg_namespace", "pg_opclass", "pg_operator", "pg_opfamily", "pg_policy", "pg_proc"),
    *("pg_publication", "pg_rewrite", "pg_statistic_ext", "pg_trigger", "pg_ts_config", "pg_type"),
)
DATABASE = """
select datdba, datacl::text, datconnlimit, shobj_description(oid, 'pg_database')
from pg_database where datname = current_database()"""
OURS = 16384
"""Objects below this number are the server's own."""
CUT_OFF = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
NEWEST = "select {0}, count(*), coalesce(age('3'::xid) - nullif(min(age(xmin)), 2147483647), 0) from {1}"
"""Transactions are counted from 3: an age is had at once, where a number would be read from a text, row by row.

Rows of the server's own making are of no transaction and of the greatest age."""
LARGE = 4 << 20
KEPT = ("stowhand.applied_migrations", "stowhand.settings")
"""Tables that migrations fill."""

# Deleting is cheap as long as little lies in a table, dead rows included. And a table that was analyzed is truncated,
# because its figures would mislead the planner. Neither triggers nor foreign keys are to have a say in this.
EMPTY = """
do $$
declare a_table record;
begin
  set local session_replication_role = replica;
  for a_table in
    select oid::regclass as name, relpages > 0 or pg_relation_size(oid) > 65536 as grown
    from pg_class
    where relkind = 'r' and relpersistence <> 't' and oid >= {ours} and pg_relation_size(oid) > 0
      and not oid::regclass::text = any ('{{{kept}}}')
  loop
    if a_table.grown then
      execute format('truncate %s cascade', a_table.name);
    else
      execute format('delete from %s', a_table.name);
    end if;
  end loop;
  perform setval(seqrelid, seqstart, false) from pg_sequence;
end $$
"""

PATIENCE = 10.0

Found = list[tuple[Any, ...]]


def empty(connection: psycopg.Connection[Any]) -> None:
    """Of a database that tests share: take the rows out of all tables that migrations have left empty."""
    connection.execute(EMPTY.format(ours=OURS, kept=",".join(KEPT)).encode())


class Snapshot(msgspec.Struct, frozen=True):
    """What a new database holds. A row that was changed since is newer than all of its table's then, or is missing."""

    schemas: list[str]
    sequences: Found
    catalogs: Found
    database: Found
    figures: dict[str, tuple[Any, ...]]
    """What the planner believes of each table: an analysis of rows that are gone would mislead it."""
    rows: dict[str, Found]
    """Of the tables that are not empty."""

    @classmethod
    def of(cls, connection: psycopg.Connection[Any]) -> Self:
        tables = _tables(connection)
        return cls(
            schemas=_schemas(connection),
            sequences=_sequences(connection),
            catalogs=_newest(connection, CATALOGS),
            database=connection.execute(DATABASE).fetchall(),
            figures=_figures(tables),
            rows={name: result for name, *_ in tables if (result := _newest(connection, [name]))[0][1]},
        )

    def restore(self, connection: psycopg.Connection[Any]) -> bool:
        """Cut everyone else off and remove what is new. False: more than that has changed, or this login may not."""
        try:
            return _cut_off(connection) and self._restored(connection)
        except (psycopg.errors.InsufficientPrivilege, psycopg.OperationalError):
            return False

    def _restored(self, connection: psycopg.Connection[Any]) -> bool:
        for schema in set(_schemas(connection)) - set(self.schemas):
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))
        tables = _tables(connection)
        if sum(size for _, size, *_ in tables) > LARGE or _figures(tables) != self.figures:
            return False
        if (_newest(connection, CATALOGS), connection.execute(DATABASE).fetchall()) != (self.catalogs, self.database):
            return False
        written = {name for name, size, *_ in tables if size}
        for name in written - self.rows.keys():
            connection.execute(sql.SQL("delete from {}").format(sql.SQL(name)))
        for name, last, called in self.sequences:
            connection.execute("select setval(%s, %s, %s)", [name, last, called])
        return all(_newest(connection, [name]) == found for name, found in self.rows.items())


def _cut_off(connection: psycopg.Connection[Any]) -> bool:
    connection.execute("set session_replication_role = replica")  # neither triggers nor the order of references matter
    end = time.monotonic() + PATIENCE
    while connection.execute(CUT_OFF).fetchall():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def _schemas(connection: psycopg.Connection[Any]) -> list[str]:
    question = "select nspname from pg_namespace where oid >= %s and nspname !~ '^pg_' order by 1"
    return [name for (name,) in connection.execute(question, [OURS])]


def _tables(connection: psycopg.Connection[Any]) -> Found:
    """The name and the size of each, and its figures: an analysis writes those without a new row."""
    question = """
        select oid::regclass::text, pg_relation_size(oid), relpages, reltuples
        from pg_class where relkind = 'r' and oid >= %s"""
    return connection.execute(question, [OURS]).fetchall()


def _figures(tables: Found) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(figures) for name, _, *figures in tables}


def _sequences(connection: psycopg.Connection[Any]) -> Found:
    question = "select oid::regclass::text from pg_class where relkind = 'S' and oid >= %s order by 1"
    names = [name for (name,) in connection.execute(question, [OURS])]
    values = "select last_value, is_called from {}"
    return [(name, *connection.execute(sql.SQL(values).format(sql.SQL(name))).fetchall()[0]) for name in names]


def _newest(connection: psycopg.Connection[Any], tables: Any) -> Found:
    """How many rows each has, and the number of the transaction that wrote the newest."""
    questions = [sql.SQL(NEWEST).format(sql.Literal(name), sql.SQL(name)) for name in tables]
    return connection.execute(sql.SQL(" union all ").join(questions), prepare=True).fetchall()
