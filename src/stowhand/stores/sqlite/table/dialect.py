"""Which declared types serve in SQLite, and the statements that a check prints.

SQLite lets a column hold anything, so only that is wrong which changes what is written. It changes neither types nor
constraints: where a column cannot serve, the worker gets another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.stores.sqlite.table.moments import Kind, kind_of
from stowhand.stores.table.check import COUNTERS, Column
from stowhand.stores.table.ddl import SQLITE_COLUMNS, index_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import TOKEN, Shape, quote

TEXTS = ("state", "failure_message", "execution_logs", "worker_hostname", TOKEN)


class SqliteDialect:
    """Of one table."""

    name = "sqlite"

    def __init__(self, shape: Shape) -> None:
        self.table = shape.table.quoted

    def misfit(self, documented: str, column: Column) -> str:
        """Why the type cannot serve."""
        declared = column.type.upper()
        is_number = kind_of(declared) is not Kind.TEXT
        if documented == "id":
            return "keys are INTEGER or TEXT" if "BLOB" in declared or kind_of(declared) is Kind.REAL else ""
        if documented in TEXTS and is_number:
            return "it must keep text as it is"
        if documented in COUNTERS and not is_number and any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
            return "it must keep a number"
        return ""

    def add(self, documented: str, own: str) -> str:
        """SQLite adds no column whose default is the time. The rows that are there were never meant to run."""
        declared = SQLITE_COLUMNS[documented].removesuffix(" DEFAULT CURRENT_TIMESTAMP")
        add = f"ALTER TABLE {self.table} ADD COLUMN {quote(own)} {declared};"
        if documented != "state":
            return add
        update = f"UPDATE {self.table} SET {quote(own)} = 'completed';"
        return f"BEGIN IMMEDIATE;\n{add}\n{update}\nCOMMIT;"

    def default(self, documented: str) -> str:
        """None can be set."""
        return ""

    def index(self, shape: Shape, wanted: Recommended, own: Sequence[str], *, unique: bool = False) -> str:
        """CREATE INDEX."""
        made = index_ddl(shape, wanted, "sqlite", own=own)
        return made.replace("CREATE INDEX", "CREATE UNIQUE INDEX", 1) if unique else made
