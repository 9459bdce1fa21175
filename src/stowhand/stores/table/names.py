"""The names of a user's table, view and columns: parsed once, and always rendered quoted.

    jobs            "jobs"                  a bare name folds to lower case where the database does so (PostgreSQL)
    app.jobs j      "app"."jobs" AS "j"     a schema, and an alias, with or without AS
    "Jobs"          "Jobs"                  in double quotes: exactly so

Anything else is refused: it would be SQL. A ``Shape`` is what all statements about one table are composed of.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.conditions import Sql

COLUMNS = (
    "id",
    "state",
    "failure_message",
    "queued_at",
    "started_at",
    "finished_at",
    "process_after",
    "num_resets",
    "num_failures",
    "last_heartbeat_at",
    "execution_logs",
    "worker_hostname",
    "cancel",
)
"""What the documents name."""
MOMENTS = tuple(name for name in COLUMNS if name.endswith(("_at", "_after")))
OPTIONAL = ("queued_at", "cancel")
"""Of these, what a table may lack (older tables do)."""
TOKEN = "lease_token"
"""No document names it; it may be mapped to a column that is to hold the claim's token."""
MARK = "worker_hostname"
"""Documented name of the column that shows whose a claim is, unless a column of its own has the token."""
OUR_ALIAS = "stowhand_row"
"""The table's alias in a statement where view and table have the same one."""
POSTGRES_LIMIT = 63
"""Bytes of a name; the server cuts what is longer without a word."""

T = TypeVar("T")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Relation(msgspec.Struct, frozen=True):
    """A table or a view, as a statement names it."""

    name: str
    schema: str | None = None
    alias: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Schema, if there is one, and name; what ``psycopg.sql.Identifier`` takes."""
        return (self.name,) if self.schema is None else (self.schema, self.name)

    @property
    def shown(self) -> str:
        """``app.jobs``, for people."""
        return ".".join(self.parts)

    @property
    def quoted(self) -> str:
        """``"app"."jobs"``."""
        return ".".join(map(quote, self.parts))

    @property
    def label(self) -> str:
        """What expressions call it: its alias, or its name. Not quoted."""
        return self.name if self.alias is None else self.alias

    def labelled(self, label: str | None = None) -> str:
        """``"app"."jobs" AS "j"``, for FROM and UPDATE. ``label``: instead of its own."""
        return f"{self.quoted} AS {quote(self.label if label is None else label)}"


class Column(msgspec.Struct, frozen=True):
    """A column that the user named: ``id``, ``j.id``."""

    name: str
    qualifier: str | None = None

    @property
    def quoted(self) -> str:
        """``"j"."id"``."""
        return quote(self.name) if self.qualifier is None else f"{quote(self.qualifier)}.{quote(self.name)}"


Read = Column | Sql | Any
"""An expression: a ``Column``, a ``Sql``, or what the driver composes (``psycopg.sql``)."""


class Shape(msgspec.Struct, frozen=True):
    """Table, view and columns: what the statements about one table are composed of."""

    table: Relation
    """What is locked and updated."""
    view: Relation
    """What records are read from; the table itself where no view was given."""
    columns: Mapping[str, str]
    """Documented name -> the table's own, without quotes. ``lease_token`` is there only if it was mapped."""
    viewed: bool
    """A view was given. Otherwise ``view`` is ``table``, and one of them in a statement is enough."""
    mapped: frozenset[str] = frozenset()
    """Documented names that the options spell out; such a column must exist, an optional one too."""
    absent: frozenset[str] = frozenset()
    """Optional columns that the catalog did not show: see ``lacking``."""
    folds: bool = True
    """Bare names fold to lower case: PostgreSQL's."""

    def __getitem__(self, documented: str) -> str:
        """The column, quoted: ``shape["state"]`` -> ``"status"``. Raises KeyError."""
        return quote(self.columns[documented])

    def of(self, label: str, documented: str) -> str:
        """The column of one relation in a statement: ``shape.of("j", "state")`` -> ``"j"."status"``."""
        return f"{quote(label)}.{self[documented]}"

    def has(self, documented: str) -> bool:
        """Does the table have this column? True for all that are not optional."""
        return documented in self.columns and documented not in self.absent

    def lacking(self, *documented: str) -> Shape:
        """The same, known to have no such columns. Made when the store is opened and the catalog read."""
        return msgspec.structs.replace(self, absent=frozenset(documented) & frozenset(OPTIONAL))

    @property
    def view_label(self) -> str:
        """What expressions call the view, or the table where there is none. Not quoted."""
        return self.view.label

    @property
    def table_label(self) -> str:
        """What a statement that names both calls the table: its alias or name, unless the view has the same."""
        same = self.viewed and _folded(self.table.label) == _folded(self.view.label)
        return OUR_ALIAS if same else self.table.label

    def column(self, text: str) -> Column:
        """A column as the user's expressions and conditions name it. Raises ConfigurationError with the fix."""
        return read_column(text, folds=self.folds)


def read_shape(table_name: str, view_name: str | None, alternate: Mapping[str, str], *, folds: bool = True) -> Shape:
    """Parse them all. Raises ConfigurationError that names every trouble; what the options checked passes."""
    problems: list[str] = []

    def checked(read: Callable[..., T], field: str, text: str, instead: T) -> T:
        try:
            return read(field, text, folds=folds)
        except ConfigurationError as error:
            problems.append(str(error))
            return instead

    table = checked(read_relation, "table_name", table_name, Relation(""))
    view = table if view_name is None else checked(read_relation, "view_name", view_name, table)
    columns = dict(zip(COLUMNS, COLUMNS, strict=True))
    for documented, own in alternate.items():
        columns[documented] = checked(read_bare, f"alternate_column_names[{documented!r}]", own, "")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Shape(table, view, columns, view_name is not None, frozenset(alternate), folds=folds)


def read_relation(field: str, text: str, *, folds: bool = True) -> Relation:
    """``name``, ``schema.name``, each in double quotes or not, with `` alias`` or `` AS alias``."""
    found = _RELATION.fullmatch(_text(field, text).strip())
    if found is None or (found["alias"] or "").lower() == "as":
        raise _refused(field, text, 'give a name: jobs, app.jobs, "Jobs", with an alias if you like: jobs j')
    schema, name, alias = (_read(field, found[part], folds) for part in ("schema", "name", "alias"))
    assert name is not None
    return Relation(name, schema, alias)


def read_column(text: str, *, field: str = "column", folds: bool = True) -> Column:
    """``name`` or ``alias.name``, each in double quotes or not."""
    found = _COLUMN.fullmatch(_text(field, text).strip())
    if found is None:
        shown = text.replace('"', '\\"')
        raise _refused(
            field, text, f"""a column of that name is written '"{shown}"'; SQL of your own is written sql("{shown}")"""
        )
    qualifier, name = (_read(field, found[part], folds) for part in ("qualifier", "name"))
    assert name is not None
    return Column(name, qualifier)


def read_bare(field: str, text: str, *, folds: bool = True) -> str:
    """One name without anything before it or after it."""
    found = _BARE.fullmatch(_text(field, text).strip())
    if found is None:
        raise _refused(field, text, 'give the name of one column: status, "Status"')
    return _read(field, found[0], folds) or ""


def read_expression(field: str, given: object, *, folds: bool = True) -> Read:
    """A column by its name, or SQL that is marked as such. Text that is no name is refused."""
    if isinstance(given, str):
        return read_column(given, field=field, folds=folds)
    if is_sql(given):
        return given
    raise ConfigurationError(f'{field}: {a_type(given)} given; give a column\'s name, or sql("…")')


def is_sql(given: object) -> bool:
    """SQL that a programmer wrote as such: ``sql(…)``, or what a driver composes (``psycopg.sql``)."""
    return isinstance(given, Sql) or callable(getattr(given, "as_string", None))


def quote(name: str) -> str:
    """The name in double quotes; those within are doubled. Right for PostgreSQL and SQLite."""
    return '"' + name.replace('"', '""') + '"'


_NAME = r'(?:[^\W\d][\w$]*|"(?:[^"\0]|"")+")'
_BARE = re.compile(_NAME)
_COLUMN = re.compile(rf"(?:(?P<qualifier>{_NAME})\.)?(?P<name>{_NAME})")
_RELATION = re.compile(rf"(?:(?P<schema>{_NAME})\.)?(?P<name>{_NAME})(?:\s+(?:[Aa][Ss]\s+)?(?P<alias>{_NAME}))?")


def _read(field: str, found: str | None, folds: bool) -> str | None:
    if found is None:
        return None
    name = found[1:-1].replace('""', '"') if found.startswith('"') else _folded(found) if folds else found
    if folds and len(name.encode()) > POSTGRES_LIMIT:
        raise ConfigurationError(f"{field}: {name!r} is longer than the {POSTGRES_LIMIT} bytes of a name")
    return name


def _folded(name: str) -> str:
    # ASCII only: what the server does with other letters depends on its encoding, and for UTF-8 it is nothing.
    return name.translate(_FOLD)


def _text(field: str, given: object) -> str:
    if not isinstance(given, str):
        raise ConfigurationError(f"{field}: {a_type(given)} given; give a name")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{field}: {given!r} holds a lone surrogate, which no database can hold") from None
    return given


def _refused(field: str, text: str, fix: str) -> ConfigurationError:
    return ConfigurationError(
        f"{field}: {text!r} is no name but SQL; {fix}" if text.strip() else f"{field}: empty; {fix}"
    )
