"""Which types serve on PostgreSQL, and the statements that a check prints.

What takes a strong lock gives up after a few seconds: others would wait behind it. Each statement stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.stores.table.check import COUNTERS, Column
from stowhand.stores.table.ddl import POSTGRES_COLUMNS, short
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import MOMENTS, TOKEN, Relation, Shape, quote

INTEGERS = ("smallint", "integer", "bigint")
_STATES = ", ".join(f"'{state}'" for state in State)
_MARK_CHARACTERS = 130
"""Of a claim's mark: a host's name of 64 characters, the rest of the worker's name, a slash and a token."""
_ROOM = {"state": max(map(len, State)), "worker_hostname": _MARK_CHARACTERS, TOKEN: 36}
"""Characters that are written there."""
_VARYING = re.compile(r"character varying(?:\((\d+)\))?")
_UNLABELED = "an enum without 'queued' says something else of a row"


class PostgresDialect:
    """Of one table."""

    name = "postgres"

    def __init__(self, shape: Shape, *, schema: str, is_partitioned: bool) -> None:
        self._shape = shape
        self.table = Relation(shape.table.name, schema or shape.table.schema).quoted
        self._schema = schema
        self._is_partitioned = is_partitioned

    def misfit(self, documented: str, column: Column) -> str:
        """Why the type cannot serve."""
        bare = re.sub(r"\(\d+\)", "", column.type)
        if documented in MOMENTS:
            return "" if bare.startswith("timestamp") else "it must be timestamptz"
        if documented in COUNTERS:
            return "" if column.type in INTEGERS else "it must be integer"
        if documented == "cancel":
            return "" if column.type == "boolean" else "it must be boolean"
        if documented == "execution_logs":
            return "" if column.type in ("json[]", "jsonb[]") else "it must be json[]"
        if column.type in ("text", "citext") or column.type.endswith(".citext"):
            return ""
        if documented == "id" and column.type in (*INTEGERS, "uuid"):
            return ""
        if column.type == "uuid" and documented == TOKEN:
            return ""
        if documented == "state" and column.labels is not None:
            return "" if State.QUEUED in column.labels else _UNLABELED
        varying = _VARYING.fullmatch(column.type)
        if varying is None:
            return "it must be text"
        needed = _ROOM.get(documented, 0)
        is_short = varying[1] is not None and int(varying[1]) < needed
        return f"{needed} characters are written there" if is_short else ""

    def add(self, documented: str, own: str) -> str:
        """In one statement: a row that is inserted meanwhile has either the old rows' value or its own."""
        name, declared = quote(own), POSTGRES_COLUMNS[documented]
        if documented == "state":
            actions = f"ADD COLUMN {name} text NOT NULL DEFAULT 'completed', ALTER COLUMN {name} SET DEFAULT 'queued'"
        elif documented == "queued_at":  # the rows that are there were not queued now
            actions = f"ADD COLUMN {name} timestamptz, ALTER COLUMN {name} SET DEFAULT now()"
        else:
            actions = f"ADD COLUMN {name} {declared}"
        return patient(f"ALTER TABLE {self.table} {actions};")

    def default(self, documented: str) -> str:
        """As in a table of our own DDL."""
        value = POSTGRES_COLUMNS[documented].partition("DEFAULT ")[2]
        return patient(f"ALTER TABLE {self.table} ALTER COLUMN {self._shape[documented]} SET DEFAULT {value};")

    def index(self, shape: Shape, wanted: Recommended, own: Sequence[str], *, unique: bool = False) -> str:
        """Built beside the table's writers, so in no transaction. A partitioned table's cannot be built like that."""
        if self._is_partitioned:
            return ""
        name = quote(short(f"{shape.table.name}_{wanted.suffix}"))
        where = f" WHERE {found}" if (found := wanted.predicate(shape)) else ""
        kind = "UNIQUE INDEX" if unique else "INDEX"
        return f"CREATE {kind} CONCURRENTLY {name} ON {self.table} ({', '.join(map(quote, own))}){where};"


def widened_check(shape: Shape, schema: str, name: str, expression: str) -> str:
    """A CHECK of the state lets our states pass, and what it let pass before. There is always one of the two."""
    table, rule = Relation(shape.table.name, schema).quoted, quote(name)
    wider = f"({expression}) OR {shape['state']} IN ({_STATES})"
    change = f"ALTER TABLE {table} DROP CONSTRAINT {rule}, ADD CONSTRAINT {rule} CHECK ({wider}) NOT VALID;"
    return f"{patient(change)}\nALTER TABLE {table} VALIDATE CONSTRAINT {rule};"


def patient(statement: str) -> str:
    """Gives up after 5 s of waiting for a lock, before others wait behind it."""
    return f"BEGIN;\nSET LOCAL lock_timeout = '5s';\n{statement}\nCOMMIT;"
