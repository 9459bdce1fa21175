"""Judges each documented column: whether it is there, its type, whether it may be empty, its default.

A column of another type is left alone, and the worker gets its own; a type is changed only where every value stays what
it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stowhand.jobs.job import State
from stowhand.protocols.options import NAME_LIMIT
from stowhand.stores.postgres.table.catalog import Column, Facts
from stowhand.stores.postgres.table.fixes import Mender, add_labels, default_of
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.judging import COUNTERS, EMPTIED, near_columns
from stowhand.stores.table.names import COLUMNS, MOMENTS, OPTIONAL, TOKEN, Relation, Shape

WRITTEN = tuple(name for name in (*COLUMNS, TOKEN) if name not in ("id", "cancel"))
"""By a worker. (It reads ``cancel``.)"""
MARK_LENGTH = NAME_LIMIT + 1 + 36
"""Characters of ``<worker>/<token>``, at most."""
USUAL_MARK_LENGTH = 130
"""Of a worker that was given no name: its host's has 64 at most."""
_WHOLE = ("smallint", "integer", "bigint")
_NUMBERS = (*_WHOLE, "real", "double precision", "numeric")
_VARYING = re.compile(r"character varying(?:\((\d+)\))?")
_ROOM = {"state": max(map(len, State)), "worker_hostname": USUAL_MARK_LENGTH, TOKEN: 36}
"""Characters that are written there."""


def column_findings(facts: Facts, shape: Shape, mender: Mender) -> Iterator[Finding]:
    """Of every documented column: whether it is there, of which type, and what fills it."""
    for documented, own in shape.columns.items():
        column = facts.columns.get(own)
        if column is None:
            if documented not in OPTIONAL or documented in shape.mapped:
                yield _missing(facts, shape, documented, mender)
            continue
        cancels = facts.column(shape, "cancel") is not None
        of_type = list(_type_findings(documented, column, mender, cancels=cancels))
        yield from of_type
        if any(finding.columns for finding in of_type):
            continue  # the worker gets another column instead
        if documented in WRITTEN and (column.generated or column.identity == "a"):
            yield mender.beside(documented, f"column {own} computes itself; a worker writes it")
        elif documented in EMPTIED and column.filled:
            yield _emptied(facts, documented, column, mender)


def _emptied(facts: Facts, documented: str, column: Column, mender: Mender) -> Finding:
    """Of an empty table the column may lose its NOT NULL; one that the application fills is left alone."""
    problem = f"column {column.name} is NOT NULL; a worker empties it"
    if facts.empty and column.own_not_null and column.domain is None and column.default is None:
        return Finding(problem, mender.allow_null(documented))
    return mender.beside(documented, problem, using="{}")


def _missing(facts: Facts, shape: Shape, documented: str, mender: Mender) -> Finding:
    own = shape.columns[documented]
    near = _likely_column(documented, facts, shape)
    hint = ""
    if near is not None:
        hint = f'; if {near} is meant: alternate_column_names={{"{documented}": {Relation(near).quoted!r}}}'
    called = "" if own == documented else f" (for {documented})"
    rest = "; the rows that are there will count as completed" if documented == "state" else ""
    return Finding(f"there is no column {own}{called}{rest}{hint}", mender.add(documented))


def default_findings(documented: str, column: Column, mender: Mender) -> Iterator[Finding]:
    """An INSERT that gives nothing but the user's own columns makes a record that can be claimed."""
    if column.domain is not None or column.identity:
        return
    if documented == "state" and not (column.default or "").startswith("'queued'"):
        # A default that is there is what the application means by an INSERT: it is named, and stays.
        found = f"the default {column.default}" if column.default else "no default"
        yield Finding(
            f"column {column.name} has {found}: an INSERT that does not name it makes a record that is never claimed",
            "" if column.default else mender.set_default("state"),
            fatal=False,
        )
    elif column.default is None and column.filled:
        yield Finding(
            f"column {column.name} is NOT NULL without a default: every INSERT must name it",
            mender.set_default(documented),
            fatal=False,
        )


def _type_findings(documented: str, column: Column, mender: Mender, *, cancels: bool) -> Iterator[Finding]:
    """``cancels``: the table has a column ``cancel``, so records do become canceled."""
    if documented in MOMENTS:
        yield from _time(documented, column, mender)
    elif documented in COUNTERS:
        if column.type not in _WHOLE:
            using = "{}::integer" if _bare(column) in (*_NUMBERS, "boolean") else "{}::text::integer"
            yield _wrong(documented, column, mender, "integer", using)
    elif documented == "cancel":
        if column.type != "boolean":
            using = "({} <> 0)" if column.type in _NUMBERS else "{}::text::boolean"
            yield _wrong(documented, column, mender, "boolean", using)
    elif documented == "execution_logs":
        if column.type not in ("json[]", "jsonb[]"):
            yield _wrong(documented, column, mender, "json[]")
    elif documented == "id":
        yield from _key(column, mender)
    elif documented == "state" and column.labels is not None:
        yield from _enum(column, mender, cancels=cancels)
    else:
        yield from _text(documented, column, mender)


def _text(documented: str, column: Column, mender: Mender) -> Iterator[Finding]:
    if column.type in ("text", "citext") or column.type.endswith(".citext"):
        return
    if documented == TOKEN and column.type == "uuid":
        return
    varying = _VARYING.fullmatch(column.type)
    if varying is None:
        # char(9) pads what it holds; numbers name no state.
        using = "rtrim({}::text)" if _bare(column).startswith(("character", '"char"')) else ""
        yield _wrong(documented, column, mender, "text", using)
        return
    if varying[1] is None:
        return
    room, needed = int(varying[1]), _ROOM.get(documented, 0)
    problem = f"column {column.name} has room for {room} characters"
    mend = mender.retype(documented, column, "text", "{}::text")
    if documented == "failure_message":
        yield Finding(f"{problem}: longer messages are cut", mend, fatal=False)
    elif documented == "state" and room < len(State.QUEUED):
        yield mender.beside(documented, f"{problem}, too few for queued: it says something else of a row")
    elif room < needed and mend:
        yield Finding(f"{problem}; {needed} are written there", mend)
    elif room < needed:
        views = "and something is made of the views that show it"
        yield mender.beside(documented, f"{problem}; {needed} are written there, {views}", using="{}::text")
    elif documented == "worker_hostname" and room < MARK_LENGTH:
        yield Finding(f"{problem}; the mark of a worker with a long name has up to {MARK_LENGTH}", mend, fatal=False)


def _time(documented: str, column: Column, mender: Mender) -> Iterator[Finding]:
    bare = _bare(column)
    wanted = "timestamp with time zone"
    if bare == wanted:
        return
    if bare == "timestamp without time zone":
        # Older tables of this kind have it, and other programs write UTC there, as we do.
        yield Finding(
            f"column {column.name} is a timestamp without time zone; it is read and written as UTC, and a default of"
            " now() is right only in sessions whose time zone is UTC",
            mender.zone(documented, column),
            fatal=False,
            alone=mender.is_big,
        )
    elif bare == "date":
        yield _wrong(documented, column, mender, wanted, "{}::timestamp AT TIME ZONE 'UTC'")
    elif bare in _NUMBERS:
        yield _wrong(documented, column, mender, wanted, "to_timestamp({})")
    else:
        yield _wrong(documented, column, mender, wanted, "{}::text::timestamptz")


def _key(column: Column, mender: Mender) -> Iterator[Finding]:
    if column.type in (*_WHOLE, "uuid", "text") or _VARYING.fullmatch(column.type):
        return
    if _bare(column) in _NUMBERS:
        yield _wrong("id", column, mender, "bigint")
    else:
        yield _wrong("id", column, mender, "text")


def _enum(column: Column, mender: Mender, *, cancels: bool) -> Iterator[Finding]:
    missing = [state for state in State if state not in (column.labels or ())]
    if State.QUEUED in missing:
        problem = f"the type {column.type} of column {column.name} has no queued: it says something else of a row"
        yield mender.beside("state", problem)
    elif missing:
        yield Finding(
            f"the type {column.type} of column {column.name} does not know: {', '.join(missing)}",
            add_labels(column, missing),
            fatal=cancels or missing != [State.CANCELED],
            alone=True,
        )


def _wrong(documented: str, column: Column, mender: Mender, wanted: str, using: str = "") -> Finding:
    return mender.beside(documented, f"column {column.name} is {column.type}; it must be {wanted}", using=using)


def _bare(column: Column) -> str:
    """Without a precision: ``timestamp(3) with time zone`` is a ``timestamp with time zone``."""
    return re.sub(r"\(\d+(,\d+)?\)", "", column.type)


def _likely_column(documented: str, facts: Facts, shape: Shape) -> str | None:
    """The name of a column that may have been meant where a documented one is missing; ``None``: there is none.

    A worker writes over what is there. So a name that is alike says too little: what is proposed has the type, is
    filled by no default of the application's, and may be empty where a worker empties it. All else is the user's data.
    """
    own = shape.columns[documented]
    free = [name for name in facts.columns if name not in shape.columns.values()]
    near = near_columns(documented, own, free)
    return next((name for name in near if _could_be(documented, facts, shape, name)), None)


def _could_be(documented: str, facts: Facts, shape: Shape, name: str) -> bool:
    column = facts.columns[name]
    wrong = any(_type_findings(documented, column, Mender(facts, shape), cancels=True))
    if wrong or column.generated or column.identity:
        return False
    return _default_is_ours(documented, column) and (not column.filled or column.default is not None)


def _default_is_ours(documented: str, column: Column) -> bool:
    if documented == "state":
        return (column.default or "").startswith(f"'{State.QUEUED}'")
    return column.default is None or (column.default.partition("::")[0] == default_of(documented) != "now()")
