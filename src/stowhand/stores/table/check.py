"""Findings about a user's table and view, each with simple SQL that fixes it, for every database.

A catalog supplies the facts; a dialect judges types and writes statements. No fix deletes, renames or rewrites
anything: where a column does not fit, the finding says to map another one. A check with that mapping prints the SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import State
from stowhand.stores.table import names
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import (
    NEXT_INDEX,
    RECOMMENDED_INDEXES,
    STATES_BY_SUFFIX,
    DdlOptions,
    full_ddl,
    shorten_name,
    view_ddl,
)
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import MARK_COLUMN, OPTIONAL_COLUMNS, TOKEN_COLUMN, Shape
from stowhand.stores.table.options import TableOptions, order_of

TABLE_KINDS = ("table", "partitioned table")
READ_ONLY_COLUMNS = ("id", "cancel")
"""The columns that a worker does not write."""
COUNTER_COLUMNS = ("num_resets", "num_failures")
EMPTIED_COLUMNS = ("failure_message", "started_at", "finished_at", "process_after", "execution_logs", TOKEN_COLUMN)
"""The columns in which a claim, a requeue or a release writes NULL."""
COLUMNS_OF_WAITING_RECORDS = ("process_after", *COUNTER_COLUMNS, "cancel")
"""The columns whose values a waiting record would lose in a new column."""
MAX_SAMPLE_ROWS = 10_000
CHANGED_CLAIM = (
    "a trigger sets {column}, which identifies a claim: it must not change that column while a record is processing"
)
_COMMENT_PATTERN = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_PARTITION_ADVICE = "; build it on each partition, and attach it"


class Column(msgspec.Struct, frozen=True):
    """One column of a table or view."""

    name: str
    type: str
    filled: bool = False
    """NOT NULL."""
    default: str | None = None
    """As SQL."""
    computed: bool = False
    """No statement can write it."""
    labels: Sequence[str] | None = None
    """The labels of an enum."""


class Index(msgspec.Struct, frozen=True):
    """One valid index."""

    name: str
    unique: bool
    columns: tuple[str | None, ...]
    """``None``: an expression."""
    predicate: str = ""

    @property
    def states(self) -> set[State]:
        """The states that its predicate names."""
        return {state for state in State if f"'{state}'" in self.predicate}


class Rule(msgspec.Struct, frozen=True):
    """A CHECK, or a type, that may refuse a worker's writes."""

    subject: str
    columns: Sequence[str]
    """The columns of the rule that a worker writes."""
    refused: Sequence[State] | None = None
    """The refused states, if the rule concerns the state alone; ``None`` if they are not known."""
    widened: str = ""
    """SQL that makes the rule accept every state."""


class CatalogFacts(msgspec.Struct, frozen=True):
    """The catalog's description. Columns are by name, in lower case where the database compares names so."""

    kind: str
    """``table``, ``partitioned table``, ``view``, ...; empty if there is nothing of that name."""
    columns: Mapping[str, Column] = {}
    view_kind: str = ""
    view_columns: Mapping[str, Column] = {}
    """The columns of the view, or of the table where there is no view."""
    indexes: Sequence[Index] = ()
    triggers: Mapping[str, str] = {}
    """Name and definition of each trigger that a heartbeat runs."""
    rules: Sequence[Rule] = ()
    problems: Sequence[Finding] = ()
    """Findings that only this kind of database has."""
    schema: str = ""
    view_schema: str = ""

    def column(self, shape: Shape, documented: str) -> Column | None:
        """Return the table's column for a documented name."""
        return self.columns.get(_key(shape, documented))

    def waiting_indexes(self, shape: Shape, *, retries: bool) -> list[str]:
        """Return the names of indexes that contain waiting records and no finished ones.

        A claim may walk one of them in order; a query plan shows whether it has the order of claims. ``retries``:
        failed attempts are retried.
        """
        state, waiting_states = _key(shape, "state"), {State.QUEUED, State.ERRORED}
        names_by_state = [
            index.name for index in self.indexes if not index.states and index.columns[:1] == (state,) and not retries
        ]
        return names_by_state + [
            index.name for index in self.indexes if State.QUEUED in index.states and index.states <= waiting_states
        ]


class Dialect(Protocol):
    """One database's types and statements, for one table."""

    name: str
    table: str
    """The quoted name of the table."""

    def misfit(self, documented: str, column: Column) -> str:
        """Return why the column's type does not fit; empty if it fits."""

    def add(self, documented: str, own: str) -> str:
        """Return ADD COLUMN, such that no existing row starts to run."""

    def default(self, documented: str) -> str:
        """Return SET DEFAULT; empty if this database has none."""

    def index(self, shape: Shape, recommended: Recommended, own: Sequence[str], *, unique: bool = False) -> str:
        """Return CREATE INDEX that blocks no writer; empty if there is no single statement."""


def find_problems(facts: CatalogFacts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    """Yield every finding, in the order in which to run the statements."""
    yield from facts.problems
    if not facts.kind:
        alone = replace(shape, view=shape.table, viewed=False)
        problem = f"there is no table {shape.table.display_name} (in another schema? name it: schema.table)"
        yield Finding(problem, full_ddl(DdlOptions(shape=alone, dialect=dialect.name)).strip())
    elif facts.kind not in TABLE_KINDS:
        yield Finding(
            f"{shape.table.display_name} is a {facts.kind}: its rows cannot be locked and updated; use the table"
            " itself as table_name, and a view as view_name"
        )
    else:
        findings = [finding for documented in shape.columns for finding in _column(facts, shape, documented, dialect)]
        for rule in facts.rules:
            findings += _rule(facts, shape, rule)
        yield from findings
        yield from _key_findings(facts, shape, options, dialect)
        if all(finding.fix or not finding.fatal for finding in findings):  # Otherwise map other columns first.
            yield from _indexes(facts, shape, options, dialect)
        yield from _triggers(facts, shape)
    if shape.viewed:
        yield from _view(facts, shape, dialect)


def _column(facts: CatalogFacts, shape: Shape, documented: str, dialect: Dialect) -> Iterator[Finding]:
    own, column = shape.columns[documented], facts.column(shape, documented)
    if column is None:
        if documented not in OPTIONAL_COLUMNS or documented in shape.mapped:
            yield _missing(shape, documented, dialect)
    elif documented not in READ_ONLY_COLUMNS and column.computed:
        yield _unfit(shape, documented, f"column {own} computes itself; a worker writes it")
    elif reason := dialect.misfit(documented, column):
        yield _unfit(shape, documented, f"column {own} is {column.type or 'of no type'}: {reason}")
    elif documented in EMPTIED_COLUMNS and column.filled:
        yield _unfit(shape, documented, f"column {own} is NOT NULL; a worker empties it")
    elif documented == "state" and "'queued'" not in (column.default or ""):
        default = f"the default {column.default}" if column.default else "no default"
        problem = f"column {own} has {default}: an INSERT that does not name it makes a record that is never claimed"
        yield Finding(problem, "" if column.default else dialect.default("state"), fatal=False)


def _missing(shape: Shape, documented: str, dialect: Dialect) -> Finding:
    own = shape.columns[documented]
    problem = f"there is no column {own}" + ("" if own == documented else f" (for {documented})")
    if documented == "id":
        return Finding(f"{problem}: name the column of a unique key, alternate_column_names={{'id': ...}}")
    if documented == "state":
        update = f"UPDATE {shape.table.quoted} SET {names.quote(own)} = 'queued' WHERE ..."
        problem += f": existing rows will count as completed; for rows that must run, afterwards: {update}"
    return Finding(problem, dialect.add(documented, own))


def _unfit(shape: Shape, documented: str, problem: str) -> Finding:
    """Return the finding that the existing column is the application's, and the worker needs another one."""
    if documented == "id":
        return Finding(f"{problem}; map id to a column of a unique key that fits")
    problem += f"; map {documented} to a column of the worker's own (--column {documented}=job_{documented})"
    if documented == "state":
        problem += f", and let a trigger write {shape.columns['state']} whenever job_state changes"
    elif documented in COLUMNS_OF_WAITING_RECORDS:
        problem += ", and copy the values of waiting records there"
    return Finding(problem)


def _rule(facts: CatalogFacts, shape: Shape, rule: Rule) -> Iterator[Finding]:
    if rule.refused is None:
        yield Finding(
            f"{rule.subject} concerns {', '.join(rule.columns)}, which a worker writes: make sure that it accepts"
            " records in every state",
            fatal=False,
        )
    elif rule.refused:
        problem = f"{rule.subject} refuses a record that is {', '.join(rule.refused)}"
        fatal = list(rule.refused) != [State.CANCELED] or facts.column(shape, "cancel") is not None
        if fatal and (not rule.widened or State.QUEUED in rule.refused):
            yield _unfit(shape, "state", problem)
        else:
            yield Finding(problem, rule.widened, fatal)


def refused_statement(state: Column, expression: str) -> str:
    """Return a query for the states that a CHECK on the state refuses. It needs no row."""
    possible = " UNION ALL ".join(
        f"SELECT '{value}' AS refused, CAST('{value}' AS {state.type or 'text'}) AS {names.quote(state.name)}"
        for value in State
    )
    return f"SELECT refused FROM ({possible}) AS possible WHERE NOT ({expression})"


def _key_findings(facts: CatalogFacts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    """Check that an id has one row."""
    own, column = _key(shape, "id"), facts.column(shape, "id")
    if column is None:
        return
    is_unique = not options.unique_ids
    for index in facts.indexes:
        fits = (index.unique and index.columns == (own,)) if is_unique else index.columns[:1] == (own,)
        if fits and not index.predicate:
            return
    recommended = Recommended("id_key" if is_unique else "id", ("id",))
    fix = dialect.index(shape, recommended, [column.name], unique=is_unique)
    if not is_unique:
        yield Finding(f"no index begins with {own}{_PARTITION_ADVICE if not fix else ''}", fix, fatal=False)
        return
    hint = "" if fix else "; if ids are unique nevertheless, set unique_ids=True, --unique-ids"
    yield Finding(f"column {own} has no unique index{hint}", fix)


def _indexes(facts: CatalogFacts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    state = _key(shape, "state")
    for recommended in RECOMMENDED_INDEXES:
        own = [shape.columns[name] for name in recommended.columns]
        if recommended is NEXT_INDEX:
            own = _order_columns(facts, shape, options) or own
        keys = tuple(name if shape.folds else name.lower() for name in own)
        if any(
            index.columns[: len(keys)] == keys
            and (not index.predicate or (recommended.states and {*recommended.states} <= index.states))
            for index in facts.indexes
            if recommended.states == () or index.predicate
        ):
            continue
        separated_states = STATES_BY_SUFFIX.get(recommended.suffix, ())
        is_separated = any(
            {*separated_states} <= index.states or (index.columns[:1] == (state,) and not index.predicate)
            for index in facts.indexes
        )
        records = f" for the records that are {' or '.join(recommended.states)}" if recommended.states else ""
        effect = "" if is_separated or not separated_states else ": every query reads all finished records"
        fix = dialect.index(shape, _with_free_name(facts, shape, recommended), own)
        problem = f"no index on ({', '.join(own)}){records}{effect}{_PARTITION_ADVICE if not fix else ''}"
        yield Finding(problem, fix, fatal=False, warned=bool(effect))


def _with_free_name(facts: CatalogFacts, shape: Shape, recommended: Recommended) -> Recommended:
    """Return the index with a free name: another index may have its name, on other columns."""
    used_names = {index.name for index in facts.indexes}
    number, suffix = 1, recommended.suffix
    while shorten_name(f"{shape.table.name}_{suffix}") in used_names:
        number += 1
        suffix = f"{recommended.suffix}_{number}"
    return replace(recommended, suffix=suffix)


def _order_columns(facts: CatalogFacts, shape: Shape, options: TableOptions[Any]) -> list[str]:
    """Return the table's columns that order claims; none if the order has other expressions."""
    try:
        order = order_of(options, shape)
    except ConfigurationError:
        return []
    columns = [expression.name if isinstance(expression, names.Column) else "" for expression in order]
    if not all((name if shape.folds else name.lower()) in facts.columns for name in columns):
        return []
    return list(dict.fromkeys(columns))


def _triggers(facts: CatalogFacts, shape: Shape) -> Iterator[Finding]:
    """Find triggers that change a claim's token or start time, which identify it."""
    mark = TOKEN_COLUMN if TOKEN_COLUMN in shape.columns else MARK_COLUMN
    for name, definition in facts.triggers.items():
        for documented in ("started_at", mark):
            if _sets_column(definition, shape.columns[documented]):
                problem = f"the trigger {name}: {CHANGED_CLAIM.format(column=shape.columns[documented])}"
                yield Finding(problem, fatal=False, warned=True)


def _sets_column(definition: str, column: str) -> bool:
    """Return whether a trigger's text sets a column, or passes its name to a function: ``moddatetime(started_at)``.

    The text shows neither when it sets the column nor what its function does. A worker detects a change of the column
    when it claims a record, or renews its lease.
    """
    source, name = _COMMENT_PATTERN.sub(" ", definition), re.escape(column)
    patterns = (rf'\bset\b[^;]*?(?<![\w.])"?{name}"?\s*=', rf"\bexecute\b.*\([^)]*'{name}'")
    return any(re.search(pattern, source, re.IGNORECASE | re.DOTALL) for pattern in patterns)


def _view(facts: CatalogFacts, shape: Shape, dialect: Dialect) -> Iterator[Finding]:
    view, own = shape.view.display_name, shape.columns["id"]
    if not facts.view_kind:
        fix = view_ddl(shape, dialect.name) if facts.kind in ("", *TABLE_KINDS) else ""
        yield Finding(f"there is no view {view}", fix)
        return
    if facts.view_kind == "materialised view":
        yield Finding(f"{view} is a materialised view: a claimed record would have its values from before the claim")
    column, key = facts.view_columns.get(_key(shape, "id")), facts.column(shape, "id")
    if column is None:
        yield Finding(f"the view {view} does not show {own}: select it, unchanged, under that name")
    elif key is not None and shape.folds and key.type != column.type:
        yield Finding(
            f"the view {view} shows {own} as {column.type}; in the table it is {key.type}: select it unchanged"
        )
    elif _key(shape, "state") not in facts.view_columns:
        yield Finding(
            f"the view {view} does not show {shape.columns['state']}: no index lets a claim skip finished"
            " records; select it, unchanged, under that name",
            fatal=False,
        )


# -- rows ----------------------------------------------------------------------------------------


def sample_statement(shape: Shape) -> str:
    """Return a bounded query for unknown states, unclaimed records in processing, and records without an id."""
    table, limit = shape.table.quoted, f"LIMIT {MAX_SAMPLE_ROWS}"
    parts = (
        (
            f"SELECT 'state', CAST(state AS text), count(*)"
            f" FROM (SELECT {shape['state']} AS state FROM {table} {limit}) AS s GROUP BY 2"
        ),
        f"SELECT 'unmarked', NULL, count(*) FROM (SELECT 1 FROM {table} WHERE {_unmarked(shape)} {limit}) AS s",
        f"SELECT 'no id', NULL, count(*) FROM (SELECT 1 FROM {table} WHERE {shape['id']} IS NULL {limit}) AS s",
    )
    return " UNION ALL ".join(parts)


def sample_findings(shape: Shape, rows: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """Yield the findings about the rows of ``sample_statement``."""
    for kind, value, count in rows:
        records_have = _records_have(count)
        if kind == "state" and value not in tuple(State):
            state = "no state (NULL)" if value is None else f"the state {value!r}, unknown to workers"
            yield Finding(f"of {MAX_SAMPLE_ROWS} records at most, {records_have} {state}: never claimed", fatal=False)
        elif kind == "unmarked" and count:
            update = f"UPDATE {shape.table.quoted} SET {shape['state']} = 'queued' WHERE {_unmarked(shape)}"
            beat = shape.columns["last_heartbeat_at"]
            yield Finding(
                f"{records_have} the state processing and no {beat}: no worker has claimed such a record, and none"
                f" resets it. To run it: {update};",
                fatal=False,
            )
        elif kind == "no id" and count:
            problem = f"{records_have} no {shape.columns['id']} (NULL): never claimed, nor listed"
            yield Finding(problem, fatal=False, warned=True)


def _records_have(count: int) -> str:
    if count == 1:
        return "1 record has"
    return f"{count} records or more have" if count == MAX_SAMPLE_ROWS else f"{count} records have"


def _unmarked(shape: Shape) -> str:
    return f"{shape['state']} = 'processing' AND {shape['last_heartbeat_at']} IS NULL"


def _key(shape: Shape, documented: str) -> str:
    own = shape.columns[documented]
    return own if shape.folds else own.lower()
