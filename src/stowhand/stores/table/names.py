"""The names of a user's table, view and columns: parsed once, and always rendered quoted.

    jobs            "jobs"                  a bare name folds to lower case where the database does so (PostgreSQL)
    app.jobs j      "app"."jobs" AS "j"     a schema and an alias, with or without AS
    "Jobs"          "Jobs"                  a quoted name keeps its case

Any other text is refused, because it would be SQL. All statements about one table are composed from its ``Shape``.
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
"""The documented columns."""
TIME_COLUMNS = tuple(name for name in COLUMNS if name.endswith(("_at", "_after")))
OPTIONAL_COLUMNS = ("queued_at", "cancel")
"""The documented columns that a table may lack (older tables do)."""
TOKEN_COLUMN = "lease_token"
"""An undocumented column, which may be mapped to hold the claim's token."""
MARK_COLUMN = "worker_hostname"
"""The documented column that identifies a claim's worker and token, unless the token has its own column."""
OWN_ALIAS = "stowhand_row"
"""The table's alias in a statement where view and table have the same one."""
POSTGRES_NAME_BYTES = 63
"""The limit of a name; the server silently truncates longer ones."""

T = TypeVar("T")
_ASCII_LOWER_CASE = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Relation(msgspec.Struct, frozen=True):
    """A table or view in a statement."""

    name: str
    schema: str | None = None
    alias: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The schema, if there is one, and the name, as for ``psycopg.sql.Identifier``."""
        return (self.name,) if self.schema is None else (self.schema, self.name)

    @property
    def display_name(self) -> str:
        """The name for messages: ``app.jobs``."""
        return ".".join(self.parts)

    @property
    def quoted(self) -> str:
        """The quoted name: ``"app"."jobs"``."""
        return ".".join(map(quote, self.parts))

    @property
    def label(self) -> str:
        """The unquoted name in expressions: the alias, or the name."""
        return self.name if self.alias is None else self.alias

    def labelled(self, label: str | None = None) -> str:
        """Return ``"app"."jobs" AS "j"``, for FROM and UPDATE. ``label`` replaces its own."""
        return f"{self.quoted} AS {quote(self.label if label is None else label)}"


class Column(msgspec.Struct, frozen=True):
    """A column in a user's expression: ``id``, ``j.id``."""

    name: str
    qualifier: str | None = None

    @property
    def quoted(self) -> str:
        """The quoted column: ``"j"."id"``."""
        return quote(self.name) if self.qualifier is None else f"{quote(self.qualifier)}.{quote(self.name)}"


ParsedExpression = Column | Sql | Any
"""An expression: a ``Column``, a ``Sql``, or an object of the driver (``psycopg.sql``)."""


class Shape(msgspec.Struct, frozen=True):
    """The table, view and columns of which all statements about one table are composed."""

    table: Relation
    """The relation that is locked and updated."""
    view: Relation
    """The relation that records are read from; the table itself if there is no view."""
    columns: Mapping[str, str]
    """By documented name, the table's own unquoted name. ``lease_token`` is present only if it is mapped."""
    viewed: bool
    """Whether there is a view. Otherwise ``view`` is ``table``, and statements name only one of them."""
    mapped: frozenset[str] = frozenset()
    """The documented names that the options map. Such a column must exist, even an optional one."""
    absent: frozenset[str] = frozenset()
    """The optional columns that the catalog lacks: see ``lacking``."""
    folds: bool = True
    """Whether bare names fold to lower case, as in PostgreSQL."""

    def __getitem__(self, documented: str) -> str:
        """Return the quoted column: ``shape["state"]`` -> ``"status"``. Raises KeyError."""
        return quote(self.columns[documented])

    def of(self, label: str, documented: str) -> str:
        """Return a column of one relation: ``shape.of("j", "state")`` -> ``"j"."status"``."""
        return f"{quote(label)}.{self[documented]}"

    def has(self, documented: str) -> bool:
        """Return whether the table has this column. True for all that are not optional."""
        return documented in self.columns and documented not in self.absent

    def lacking(self, *documented: str) -> Shape:
        """Return the shape without these columns, once the catalog has been read."""
        return msgspec.structs.replace(self, absent=frozenset(documented) & frozenset(OPTIONAL_COLUMNS))

    @property
    def view_label(self) -> str:
        """The unquoted name of the view in expressions, or of the table if there is no view."""
        return self.view.label

    @property
    def table_label(self) -> str:
        """The table's name in a statement that names both: its alias or name, unless the view has the same."""
        same = self.viewed and _folded(self.table.label) == _folded(self.view.label)
        return OWN_ALIAS if same else self.table.label

    def column(self, text: str) -> Column:
        """Return a column of a user's expression or condition. Raises ConfigurationError with the fix."""
        return read_column(text, folds=self.folds)


def read_shape(table_name: str, view_name: str | None, alternate: Mapping[str, str], *, folds: bool = True) -> Shape:
    """Parse all names. Raises ConfigurationError with every problem."""
    problems: list[str] = []

    def checked(read: Callable[..., T], field: str, text: str, default: T) -> T:
        try:
            return read(field, text, folds=folds)
        except ConfigurationError as error:
            problems.append(str(error))
            return default

    table = checked(read_relation, "table_name", table_name, Relation(""))
    view = table if view_name is None else checked(read_relation, "view_name", view_name, table)
    columns = dict(zip(COLUMNS, COLUMNS, strict=True))
    for documented, own in alternate.items():
        columns[documented] = checked(read_bare, f"alternate_column_names[{documented!r}]", own, "")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Shape(table, view, columns, view_name is not None, frozenset(alternate), folds=folds)


def read_relation(field: str, text: str, *, folds: bool = True) -> Relation:
    """Parse ``name`` or ``schema.name``, each quoted or not, with `` alias`` or `` AS alias``."""
    match = _RELATION_PATTERN.fullmatch(_text(field, text).strip())
    if match is None or (match["alias"] or "").lower() == "as":
        raise _refused(field, text, 'use a name: jobs, app.jobs, "Jobs", with an alias if you like: jobs j')
    schema, name, alias = (_parse_name(field, match[part], folds) for part in ("schema", "name", "alias"))
    assert name is not None
    return Relation(name, schema, alias)


def read_column(text: str, *, field: str = "column", folds: bool = True) -> Column:
    """Parse ``name`` or ``alias.name``, each quoted or not."""
    match = _COLUMN_PATTERN.fullmatch(_text(field, text).strip())
    if match is None:
        escaped = text.replace('"', '\\"')
        raise _refused(
            field,
            text,
            f"""a column of that name is written '"{escaped}"'; SQL of your own is written sql("{escaped}")""",
        )
    qualifier, name = (_parse_name(field, match[part], folds) for part in ("qualifier", "name"))
    assert name is not None
    return Column(name, qualifier)


def read_bare(field: str, text: str, *, folds: bool = True) -> str:
    """Parse one name without anything before or after it."""
    match = _BARE_NAME_PATTERN.fullmatch(_text(field, text).strip())
    if match is None:
        raise _refused(field, text, 'use the name of one column: status, "Status"')
    return _parse_name(field, match[0], folds) or ""


def read_expression(field: str, value: object, *, folds: bool = True) -> ParsedExpression:
    """Return a column by its name, or marked SQL unchanged. Text that is not a name is refused."""
    if isinstance(value, str):
        return read_column(value, field=field, folds=folds)
    if is_sql(value):
        return value
    raise ConfigurationError(f'{field}: got {a_type(value)}; use a column\'s name, or sql("…")')


def is_sql(value: object) -> bool:
    """Return whether a value is marked SQL: ``sql(…)``, or an object of the driver (``psycopg.sql``)."""
    return isinstance(value, Sql) or callable(getattr(value, "as_string", None))


def quote(name: str) -> str:
    """Return the name in double quotes, with inner quotes doubled, for PostgreSQL and SQLite."""
    return '"' + name.replace('"', '""') + '"'


_NAME_PATTERN = r'(?:[^\W\d][\w$]*|"(?:[^"\0]|"")+")'
_BARE_NAME_PATTERN = re.compile(_NAME_PATTERN)
_COLUMN_PATTERN = re.compile(rf"(?:(?P<qualifier>{_NAME_PATTERN})\.)?(?P<name>{_NAME_PATTERN})")
_RELATION_PATTERN = re.compile(
    rf"(?:(?P<schema>{_NAME_PATTERN})\.)?(?P<name>{_NAME_PATTERN})(?:\s+(?:[Aa][Ss]\s+)?(?P<alias>{_NAME_PATTERN}))?"
)


def _parse_name(field: str, match: str | None, folds: bool) -> str | None:
    if match is None:
        return None
    name = match[1:-1].replace('""', '"') if match.startswith('"') else _folded(match) if folds else match
    if folds and len(name.encode()) > POSTGRES_NAME_BYTES:
        raise ConfigurationError(f"{field}: {name!r} is longer than the {POSTGRES_NAME_BYTES} bytes of a name")
    return name


def _folded(name: str) -> str:
    # ASCII only: folding of other letters depends on the server's encoding, and UTF-8 has none.
    return name.translate(_ASCII_LOWER_CASE)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{field}: got {a_type(value)}; use a name")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{field}: {value!r} contains a lone surrogate, which no database can store") from None
    return value


def _refused(field: str, text: str, fix: str) -> ConfigurationError:
    return ConfigurationError(
        f"{field}: {text!r} is SQL, not a name; {fix}" if text.strip() else f"{field}: empty; {fix}"
    )
