"""What is wrong with a user's table and view, and simple SQL for it: one plan of findings for every database.

A catalog gives the facts; a dialect judges types and writes statements. Nothing that is there is deleted, renamed or
rewritten: where a column cannot serve, a sentence says to map another one. A check with that mapping prints its SQL.
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
from stowhand.stores.table.ddl import NEXT, RECOMMENDED, SOUGHT, Plan, full_ddl, short, view_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import MARK, OPTIONAL, TOKEN, Shape
from stowhand.stores.table.options import TableOptions, order_of

TABLES = ("table", "partitioned table")
READ_ONLY = ("id", "cancel")
"""Columns that a worker does not write."""
COUNTERS = ("num_resets", "num_failures")
EMPTIED = ("failure_message", "started_at", "finished_at", "process_after", "execution_logs", TOKEN)
"""A claim, a requeue or a release writes NULL there."""
NEEDED_TO_WAIT = ("process_after", *COUNTERS, "cancel")
"""What a waiting record would lose in a new column."""
SAMPLE_ROWS = 10_000
CHANGES_CLAIM = (
    "a trigger sets {column}, by which a claim is known: let it leave that column alone while a record is processing"
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_ON_EACH = "; build it on each partition, and attach it"


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
    """Of an enum."""


class Index(msgspec.Struct, frozen=True):
    """One that is valid."""

    name: str
    unique: bool
    columns: tuple[str | None, ...]
    """``None``: an expression."""
    predicate: str = ""

    @property
    def states(self) -> set[State]:
        """That its predicate names."""
        return {one for one in State if f"'{one}'" in self.predicate}


class Rule(msgspec.Struct, frozen=True):
    """A CHECK, or a type, that may refuse what a worker writes."""

    what: str
    columns: Sequence[str]
    """Those of them that a worker writes."""
    refused: Sequence[State] | None = None
    """Where it concerns the state alone; ``None``: what it refuses is not known."""
    widened: str = ""
    """SQL that lets every state pass."""


class Facts(msgspec.Struct, frozen=True):
    """What the catalog says. Columns by their names, in lower case where the database compares names so."""

    kind: str
    """``table``, ``partitioned table``, ``view``, ...; empty: there is nothing of that name."""
    columns: Mapping[str, Column] = {}
    view_kind: str = ""
    view_columns: Mapping[str, Column] = {}
    """Of the view, or of the table where no view was given."""
    indexes: Sequence[Index] = ()
    triggers: Mapping[str, str] = {}
    """Name and definition of each trigger that a heartbeat runs."""
    rules: Sequence[Rule] = ()
    problems: Sequence[Finding] = ()
    """That only this kind of database has."""
    schema: str = ""
    view_schema: str = ""

    def column(self, shape: Shape, documented: str) -> Column | None:
        """The table's column for a documented name."""
        return self.columns.get(_key(shape, documented))

    def waiting_indexes(self, shape: Shape, *, retries: bool) -> list[str]:
        """Names of the indexes that hold what waits and not what is over: by one of them a claim may walk in order.

        Whether it gives the order of claims too, a plan says. ``retries``: failed attempts are retried.
        """
        state = _key(shape, "state")
        alone = [one.name for one in self.indexes if not one.states and one.columns[:1] == (state,) and not retries]
        waits = {State.QUEUED, State.ERRORED}
        return alone + [one.name for one in self.indexes if State.QUEUED in one.states and one.states <= waits]


class Dialect(Protocol):
    """One database's types and statements, for one table."""

    name: str
    table: str
    """Quoted."""

    def misfit(self, documented: str, column: Column) -> str:
        """Why the type cannot serve; empty: it can."""

    def add(self, documented: str, own: str) -> str:
        """ADD COLUMN, so that no row that is there begins to run."""

    def default(self, documented: str) -> str:
        """SET DEFAULT; empty: this database cannot."""

    def index(self, shape: Shape, wanted: Recommended, own: Sequence[str], *, unique: bool = False) -> str:
        """CREATE INDEX that keeps no writer waiting; empty: there is no single statement."""


def judge(facts: Facts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    """Every finding, in the order in which the statements are to be run."""
    yield from facts.problems
    if not facts.kind:
        alone = replace(shape, view=shape.table, viewed=False)
        problem = f"there is no table {shape.table.shown} (in another schema? name it: schema.table)"
        yield Finding(problem, full_ddl(Plan(shape=alone, dialect=dialect.name)).strip())
    elif facts.kind not in TABLES:
        yield Finding(
            f"{shape.table.shown} is a {facts.kind}: its rows cannot be locked and updated; give the table"
            " itself as table_name, and a view as view_name"
        )
    else:
        found = [one for documented in shape.columns for one in _column(facts, shape, documented, dialect)]
        for rule in facts.rules:
            found += _rule(facts, shape, rule)
        yield from found
        yield from _key_findings(facts, shape, options, dialect)
        if all(one.mend or not one.fatal for one in found):  # else other columns are to be mapped first
            yield from _indexes(facts, shape, options, dialect)
        yield from _triggers(facts, shape)
    if shape.viewed:
        yield from _view(facts, shape, dialect)


def _column(facts: Facts, shape: Shape, documented: str, dialect: Dialect) -> Iterator[Finding]:
    own, column = shape.columns[documented], facts.column(shape, documented)
    if column is None:
        if documented not in OPTIONAL or documented in shape.mapped:
            yield _missing(shape, documented, dialect)
    elif documented not in READ_ONLY and column.computed:
        yield _unfit(shape, documented, f"column {own} computes itself; a worker writes it")
    elif why := dialect.misfit(documented, column):
        yield _unfit(shape, documented, f"column {own} is {column.type or 'of no type'}: {why}")
    elif documented in EMPTIED and column.filled:
        yield _unfit(shape, documented, f"column {own} is NOT NULL; a worker empties it")
    elif documented == "state" and "'queued'" not in (column.default or ""):
        has = f"the default {column.default}" if column.default else "no default"
        problem = f"column {own} has {has}: an INSERT that does not name it makes a record that is never claimed"
        yield Finding(problem, "" if column.default else dialect.default("state"), fatal=False)


def _missing(shape: Shape, documented: str, dialect: Dialect) -> Finding:
    own = shape.columns[documented]
    problem = f"there is no column {own}" + ("" if own == documented else f" (for {documented})")
    if documented == "id":
        return Finding(f"{problem}: name the column of a unique key, alternate_column_names={{'id': ...}}")
    if documented == "state":
        run = f"UPDATE {shape.table.quoted} SET {names.quote(own)} = 'queued' WHERE ..."
        problem += f": the rows that are there will count as completed; for those that are to run, afterwards: {run}"
    return Finding(problem, dialect.add(documented, own))


def _unfit(shape: Shape, documented: str, problem: str) -> Finding:
    """The column that is there is the application's, and the worker needs another one."""
    if documented == "id":
        return Finding(f"{problem}; map id to a column of a unique key that fits")
    problem += f"; map {documented} to a column of the worker's own (--column {documented}=job_{documented})"
    if documented == "state":
        problem += f", and let the handler write {shape.columns['state']}"
    elif documented in NEEDED_TO_WAIT:
        problem += ", and copy there what the records have that wait"
    return Finding(problem)


def _rule(facts: Facts, shape: Shape, rule: Rule) -> Iterator[Finding]:
    if rule.refused is None:
        yield Finding(
            f"{rule.what} concerns {', '.join(rule.columns)}, which a worker writes: see that it lets pass records in"
            " every state",
            fatal=False,
        )
    elif rule.refused:
        problem = f"{rule.what} does not let pass a record that is {', '.join(rule.refused)}"
        fatal = list(rule.refused) != [State.CANCELED] or facts.column(shape, "cancel") is not None
        if fatal and (not rule.widened or State.QUEUED in rule.refused):
            yield _unfit(shape, "state", problem)
        else:
            yield Finding(problem, rule.widened, fatal)


def refused_statement(state: Column, expression: str) -> str:
    """A query for the states that a CHECK of the state alone refuses. It needs no row."""
    possible = " UNION ALL ".join(
        f"SELECT '{one}' AS refused, CAST('{one}' AS {state.type or 'text'}) AS {names.quote(state.name)}"
        for one in State
    )
    return f"SELECT refused FROM ({possible}) AS possible WHERE NOT ({expression})"


def _key_findings(facts: Facts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    """One row for one id, always."""
    own, column = _key(shape, "id"), facts.column(shape, "id")
    if column is None:
        return
    is_unique = not options.unique_ids
    for index in facts.indexes:
        fits = (index.unique and index.columns == (own,)) if is_unique else index.columns[:1] == (own,)
        if fits and not index.predicate:
            return
    wanted = Recommended("id_key" if is_unique else "id", ("id",))
    mend = dialect.index(shape, wanted, [column.name], unique=is_unique)
    if not is_unique:
        yield Finding(f"no index begins with {own}{_ON_EACH if not mend else ''}", mend, fatal=False)
        return
    hint = "" if mend else "; where ids are unique all the same, say so: unique_ids=True, --unique-ids"
    yield Finding(f"column {own} has no unique index{hint}", mend)


def _indexes(facts: Facts, shape: Shape, options: TableOptions[Any], dialect: Dialect) -> Iterator[Finding]:
    state = _key(shape, "state")
    for wanted in RECOMMENDED:
        own = [shape.columns[name] for name in wanted.columns]
        if wanted is NEXT:
            own = _order(facts, shape, options) or own
        keys = tuple(name if shape.folds else name.lower() for name in own)
        if any(
            one.columns[: len(keys)] == keys
            and (not one.predicate or (wanted.states and {*wanted.states} <= one.states))
            for one in facts.indexes
            if wanted.states == () or one.predicate
        ):
            continue
        sought = SOUGHT.get(wanted.suffix, ())
        found = any(
            {*sought} <= one.states or (one.columns[:1] == (state,) and not one.predicate) for one in facts.indexes
        )
        behind = f" for the records that are {' or '.join(wanted.states)}" if wanted.states else ""
        over = "" if found or not sought else ": every look walks over all that is finished"
        mend = dialect.index(shape, _free(facts, shape, wanted), own)
        problem = f"no index on ({', '.join(own)}){behind}{over}{_ON_EACH if not mend else ''}"
        yield Finding(problem, mend, fatal=False, warned=bool(over))


def _free(facts: Facts, shape: Shape, wanted: Recommended) -> Recommended:
    """Another index of the table may have the name, on columns that were in the place of these."""
    taken = {index.name for index in facts.indexes}
    number, suffix = 1, wanted.suffix
    while short(f"{shape.table.name}_{suffix}") in taken:
        number += 1
        suffix = f"{wanted.suffix}_{number}"
    return replace(wanted, suffix=suffix)


def _order(facts: Facts, shape: Shape, options: TableOptions[Any]) -> list[str]:
    """The table's columns that order claims; none where anything but columns does."""
    try:
        order = order_of(options, shape)
    except ConfigurationError:
        return []
    found = [one.name if isinstance(one, names.Column) else "" for one in order]
    return (
        list(dict.fromkeys(found))
        if all((name if shape.folds else name.lower()) in facts.columns for name in found)
        else []
    )


def _triggers(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """A claim is known by its token and by when it began."""
    mark = TOKEN if TOKEN in shape.columns else MARK
    for name, definition in facts.triggers.items():
        for documented in ("started_at", mark):
            if _sets_column(definition, shape.columns[documented]):
                problem = f"the trigger {name}: {CHANGES_CLAIM.format(column=shape.columns[documented])}"
                yield Finding(problem, fatal=False, warned=True)


def _sets_column(definition: str, column: str) -> bool:
    """It has an UPDATE that does, or passes the name to a ready-made function: ``moddatetime(started_at)``.

    Read in the definition, which is never run. The text does not show when it sets the column, nor what its function
    does on PostgreSQL; a worker notices that when it claims a record, or renews its lease.
    """
    source, name = _COMMENT.sub(" ", definition), re.escape(column)
    ways = (rf'\bset\b[^;]*?(?<![\w.])"?{name}"?\s*=', rf"\bexecute\b.*\([^)]*'{name}'")
    return any(re.search(way, source, re.IGNORECASE | re.DOTALL) for way in ways)


def _view(facts: Facts, shape: Shape, dialect: Dialect) -> Iterator[Finding]:
    shown, own = shape.view.shown, shape.columns["id"]
    if not facts.view_kind:
        made = view_ddl(shape, dialect.name) if facts.kind in ("", *TABLES) else ""
        yield Finding(f"there is no view {shown}", made)
        return
    if facts.view_kind == "materialised view":
        yield Finding(f"{shown} is a materialised view: a claimed record would show what it was before the claim")
    column, key = facts.view_columns.get(_key(shape, "id")), facts.column(shape, "id")
    if column is None:
        yield Finding(f"the view {shown} does not show {own}: select it, unchanged, under that name")
    elif key is not None and shape.folds and key.type != column.type:
        yield Finding(
            f"the view {shown} shows {own} as {column.type}; in the table it is {key.type}: select it unchanged"
        )
    elif _key(shape, "state") not in facts.view_columns:
        yield Finding(
            f"the view {shown} does not show {shape.columns['state']}: no index helps a claim past the records that are"
            " over; select it, unchanged, under that name",
            fatal=False,
        )


# -- rows ----------------------------------------------------------------------------------------


def sample_statement(shape: Shape) -> str:
    """One bounded look: states, records that nobody has claimed but that are processing, records without an id."""
    table, limit = shape.table.quoted, f"LIMIT {SAMPLE_ROWS}"
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
    """``rows``: of the sample's statement."""
    for what, value, number in rows:
        have = "1 record has" if number == 1 else f"{number} records{' or more' if number == SAMPLE_ROWS else ''} have"
        if what == "state" and value not in tuple(State):
            shown = "no state (NULL)" if value is None else f"the state {value!r}, which no worker knows"
            yield Finding(f"of {SAMPLE_ROWS} records at most, {have} {shown}: never claimed", fatal=False)
        elif what == "unmarked" and number:
            run = f"UPDATE {shape.table.quoted} SET {shape['state']} = 'queued' WHERE {_unmarked(shape)}"
            beat = shape.columns["last_heartbeat_at"]
            yield Finding(
                f"{have} the state processing and no {beat}: no worker has claimed what has none, and none takes it"
                f" back. To have it run: {run};",
                fatal=False,
            )
        elif what == "no id" and number:
            yield Finding(
                f"{have} no {shape.columns['id']} (NULL): never claimed, nor listed", fatal=False, warned=True
            )


def _unmarked(shape: Shape) -> str:
    return f"{shape['state']} = 'processing' AND {shape['last_heartbeat_at']} IS NULL"


def _key(shape: Shape, documented: str) -> str:
    own = shape.columns[documented]
    return own if shape.folds else own.lower()
