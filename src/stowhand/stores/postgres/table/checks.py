"""What is wrong with a table and a view, judged by the catalog's facts alone: every trouble, each with its DDL."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import State
from stowhand.stores.database.link import Session
from stowhand.stores.postgres.table.catalog import Column as Known
from stowhand.stores.postgres.table.catalog import Entry, Facts, Index, survey
from stowhand.stores.postgres.table.column_types import type_findings
from stowhand.stores.postgres.table.fixes import Mender, grant
from stowhand.stores.postgres.table.identity import key_findings
from stowhand.stores.postgres.table.looking import be_brief
from stowhand.stores.postgres.table.meaning import meant
from stowhand.stores.postgres.table.sample import glance
from stowhand.stores.postgres.table.trying import try_expressions
from stowhand.stores.table.backend import Finding, refuse_fatal
from stowhand.stores.table.ddl import NEXT, RECOMMENDED, SOUGHT, Plan, full_ddl, trigger_ddl, view_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.expressions import order_of
from stowhand.stores.table.names import COLUMNS, OPTIONAL, TOKEN, Column, Relation, Shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.triggers import said_of, sets_column

WRITTEN_NULL = ("failure_message", "started_at", "finished_at", "process_after", "execution_logs")
"""A claim, a requeue or a hand-back empties them."""
WRITTEN = tuple(name for name in (*COLUMNS, TOKEN) if name not in ("id", "cancel"))
"""By a worker. (It reads ``cancel``.)"""
GIVEN = ("state", "num_resets", "num_failures", "worker_hostname", "cancel")
"""An INSERT need not know of them."""
KINDS = {"p": "a partitioned table", "v": "a view", "m": "a materialised view", "f": "a foreign table"}


def judge(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """In the order in which they are best mended."""
    if facts.server.standby:
        yield Finding("the server is a standby, which cannot be written to: connect to the primary")
    elif facts.server.read_only:
        yield Finding("default_transaction_read_only is on, so nothing can be written: turn it off for this login")
    if facts.table is None:
        yield _absent(facts, shape, shape.table)
    else:
        yield from _table(facts, shape, facts.table)
        yield from _columns(facts, shape, Mender(facts, shape))
        yield from _rights(facts, shape, facts.table)
        yield from _triggers(facts, shape)
    if shape.viewed:
        yield from _view(facts, shape)


def _absent(facts: Facts, shape: Shape, wanted: Relation) -> Finding:
    """With the names that may have been meant, or what makes it."""
    what, option = ("table", "table_name") if wanted is shape.table else ("view", "view_name")
    shown = ".".join(wanted.parts)
    elsewhere = [schema for schema, name, _ in facts.around if name == wanted.name and schema != wanted.schema]
    if elsewhere:
        why = "" if wanted.schema else f", and the search_path ({facts.server.search_path}) does not lead there"
        return Finding(
            f"there is no {what} {shown}; there is one in the schema {elsewhere[0]}{why}:"
            f" {option}={Relation(wanted.name, elsewhere[0]).quoted!r}"
        )
    here = {name for schema, name, _ in facts.around if wanted.schema in (None, schema)}
    near = difflib.get_close_matches(wanted.name, here, n=1, cutoff=0.75)
    alike = [name for name in here if name.lower() == wanted.name.lower()]
    if alike or near:
        meant = Relation((alike or near)[0], wanted.schema)
        return Finding(f"there is no {what} {shown}; did you mean {option}={meant.quoted!r}?")
    if wanted is shape.table:
        return Finding(f"there is no table {shown}", full_ddl(Plan(shape=_alone(shape))).strip())
    makeable = facts.table is not None or _absent(facts, shape, shape.table).mend
    return Finding(f"there is no view {shown}", view_ddl(shape) if makeable else "")


def _alone(shape: Shape) -> Shape:
    """The table, without the view: that is a finding of its own."""
    return Shape(shape.table, shape.table, shape.columns, False, shape.mapped, shape.absent, shape.folds)


def _table(facts: Facts, shape: Shape, table: Entry) -> Iterator[Finding]:
    """Can rows of this kind of relation be locked and updated?"""
    shown = ".".join(shape.table.parts)
    if table.kind in "vmf":
        advice = "; give the table itself as table_name, and the view as view_name" if table.kind == "v" else ""
        yield Finding(f"{shown} is {KINDS[table.kind]}: its rows cannot be locked{advice}")
    ours = {own: documented for documented, own in shape.columns.items()}
    keys = {*(table.parent_keys or ()), *(table.own_keys or ())}
    moving = [key for key in keys if ours.get(key, "id") != "id"]
    if moving:
        yield Finding(
            f"{shown} is partitioned by {', '.join(sorted(moving))}, which a worker writes: the row would move to"
            " another partition under its lock; partition by another column"
        )
    if table.rules:
        yield Finding(f"{shown} has a rule for UPDATE ({', '.join(table.rules)}), which a worker's statements cannot"
                      " go through; a trigger can do the same")  # fmt: skip
    if table.persistence == "u":
        yield Finding(
            f"{shown} is unlogged: a crash of the server empties it",
            Mender(facts, shape).alter("SET LOGGED"),
            fatal=False,
        )
    if table.filtered:
        yield Finding(
            f"row security of {shown} applies to {facts.server.user}: rows that its policies hide are never run",
            fatal=False,
        )


def _columns(facts: Facts, shape: Shape, mender: Mender) -> Iterator[Finding]:
    for documented, own in shape.columns.items():
        column = facts.columns.get(own)
        if column is None:
            if documented not in OPTIONAL or documented in shape.mapped:
                yield _missing(facts, shape, documented, mender)
            continue
        cancels = facts.column(shape, "cancel") is not None
        of_type = list(type_findings(documented, column, mender, cancels=cancels))
        yield from of_type
        if any(finding.columns for finding in of_type):
            continue  # the column is no longer asked for
        if documented in WRITTEN and (column.generated or column.identity == "a"):
            yield mender.beside(documented, f"column {own} computes itself; a worker writes it")
        elif documented in WRITTEN_NULL and column.filled:
            yield _emptied(facts, documented, column, mender)


def _emptied(facts: Facts, documented: str, column: Known, mender: Mender) -> Finding:
    """A column that has never held anything may learn to hold nothing; what others fill is theirs."""
    problem = f"column {column.name} is NOT NULL; a worker empties it"
    if facts.empty and column.own_not_null and column.domain is None and column.default is None:
        return Finding(problem, mender.allow_null(documented))
    return mender.beside(documented, problem, using="{}")


def _missing(facts: Facts, shape: Shape, documented: str, mender: Mender) -> Finding:
    own = shape.columns[documented]
    near = meant(documented, facts, shape)
    hint = ""
    if near is not None:
        hint = f'; if {near} is meant: alternate_column_names={{"{documented}": {Relation(near).quoted!r}}}'
    called = "" if own == documented else f" (for {documented})"
    rest = "; the rows that are there will count as completed" if documented == "state" else ""
    return Finding(f"there is no column {own}{called}{rest}{hint}", mender.add(documented))


def _default(documented: str, column: Known, mender: Mender) -> Iterator[Finding]:
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


def _rights(facts: Facts, shape: Shape, table: Entry) -> Iterator[Finding]:
    user = facts.server.user
    if not table.reachable:
        yield Finding(f"{user} may not use the schema {table.schema}", grant("USAGE", table, user, "SCHEMA "))
    present = {name: column for name in shape.columns if (column := facts.column(shape, name)) is not None}
    lacking = [
        right
        for right, ok in (
            ("SELECT", all(column.readable for column in present.values())),
            ("UPDATE", all(column.writable for name, column in present.items() if name in WRITTEN)),
        )
        if not ok
    ]
    if lacking and present:
        rights = ", ".join(lacking)
        yield Finding(f"{user} lacks {rights} on {'.'.join(shape.table.parts)}", grant(rights, table, user))


def _triggers(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """A claim is known by its token and by when it began."""
    began, state = shape.columns["started_at"], shape.columns["state"]
    for one in facts.stirred:
        if state not in one.when and sets_column(one.source, began, one.arguments):
            yield Finding(said_of(one.name, began), fatal=False, warned=True)


def _view(facts: Facts, shape: Shape) -> Iterator[Finding]:
    shown, view = ".".join(shape.view.parts), facts.view
    if view is None:
        yield _absent(facts, shape, shape.view)
        return
    if view.kind == "m":
        yield Finding(f"{shown} is a materialised view: a claimed record would show what it was before the claim")
    own = shape.columns["id"]
    column, key = facts.view_columns.get(own), facts.column(shape, "id")
    if column is None:
        yield Finding(f"the view {shown} does not show {own}: select it, unchanged, under that name")
    elif key is not None and key.type != column.type:
        yield Finding(
            f"the view {shown} shows {own} as {column.type}; in the table it is {key.type}: select it unchanged"
        )
    elif shape.columns["state"] not in facts.view_columns:
        yield Finding(
            f"the view {shown} does not show {shape.columns['state']}: no index helps a claim past the records that are"
            " over; select it, unchanged, under that name",
            fatal=False,
        )
    if not view.reachable:
        yield Finding(
            f"{facts.server.user} may not use the schema {view.schema}",
            grant("USAGE", view, facts.server.user, "SCHEMA "),
        )
    if column is not None and not column.readable:
        yield Finding(f"{facts.server.user} lacks SELECT on {shown}", grant("SELECT", view, facts.server.user))


def advise(facts: Facts, shape: Shape, options: TableOptions[Any]) -> Iterator[Finding]:
    """Defaults, indexes and a trigger, for a table that can have them. ``shape``: with the columns that a worker will
    have: nothing is advised of one that it needs no longer."""
    if facts.table is None or facts.table.kind not in "rp":
        return
    mender = Mender(facts, shape)
    for documented in GIVEN:
        if (column := facts.column(shape, documented)) is not None:
            yield from _default(documented, column, mender)
    for wanted in RECOMMENDED:
        own = [shape.columns[name] for name in wanted.columns]
        if wanted is NEXT:
            own = _ordered_by(facts, shape, options) or own
        if not any(_serves(index, wanted, own, shape) for index in facts.indexes):
            behind = f" for the records that are {' or '.join(wanted.states)}" if wanted.states else ""
            mend = mender.recommended(wanted, own)
            sought = SOUGHT.get(wanted.suffix, ())
            walks = bool(sought) and not any(_finds(index, sought, shape) for index in facts.indexes)
            over = ": every look walks over all that is finished" if walks else ""
            yield Finding(
                f"no index on ({', '.join(own)}){behind}{over}",
                mend,
                fatal=False,
                alone="CONCURRENTLY" in mend,
                warned=walks,
            )
    if options.notify_channel is not None and not facts.triggered:
        yield Finding(
            f"notify_channel is {options.notify_channel!r}, and no trigger of the table notifies: workers poll",
            trigger_ddl(shape, options.notify_channel),
            fatal=False,
        )


def _ordered_by(facts: Facts, shape: Shape, options: TableOptions[Any]) -> list[str]:
    """The table's columns that say whose turn it is; none where anything else has a say in it."""
    try:
        order = order_of(options, shape)
    except ConfigurationError:
        return []
    names = [one.name if isinstance(one, Column) else "" for one in order]
    return list(dict.fromkeys(names)) if all(name in facts.columns for name in names) else []


def _finds(index: Index, states: Sequence[str], shape: Shape) -> bool:
    """Does it lead to the rows in these states, whatever their order?"""
    own = shape.columns["state"]
    if not index.valid or index.predicate is None:
        return index.valid and index.columns[:1] == [own]
    return own in index.predicate and all(f"'{state}'" in index.predicate for state in states)


def _serves(index: Index, wanted: Recommended, own: list[str], shape: Shape) -> bool:
    """Does it begin with these columns, and hold the rows that are looked for?"""
    if not index.valid or index.columns[: len(own)] != own:
        return False
    if index.predicate is None:
        return not wanted.states
    named = [state for state in State if f"'{state}'" in index.predicate]
    return bool(wanted.states) and {*wanted.states} <= {*named} and shape.columns["state"] in index.predicate


PATIENCE = 5


"""Seconds that a lock is waited for."""


async def check(line: Session, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """What there is, and every trouble with it: the fatal ones first. Raises what psycopg raises."""
    async with _only_reading(line):
        facts = await survey(line, shape)
        found = list(judge(facts, shape))
        await be_brief(line)
        found += [finding async for finding in key_findings(line, facts, shape, options)]
        moved = {documented for finding in found for documented in finding.columns}
        found += [finding async for finding in glance(line, facts, shape, moved)]
        given = {documented: own for finding in reversed(found) for documented, own in finding.columns.items()}
        then = msgspec.structs.replace(shape, columns={**shape.columns, **given})
        found += advise(facts, then, options)
        if not any(finding.fatal for finding in found):
            lacking = shape.lacking(*absent_columns(facts, shape))
            found += [finding async for finding in try_expressions(line, lacking, options, facts)]
    return facts, sorted(_mended_once(found), key=lambda finding: not finding.fatal)


def _mended_once(found: Sequence[Finding]) -> Iterator[Finding]:
    """Two troubles with one column, and the worker gets one column of its own."""
    given: set[str] = set()
    for finding in found:
        again = bool(finding.columns) and given.issuperset(finding.columns)
        given.update(finding.columns)
        yield msgspec.structs.replace(finding, mend="") if again else finding


async def admit(line: Session, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """For ``open``: what there is, if a worker can serve it, and what such a worker is to be warned of.

    Raises TableUnsuitable with every fatal finding.
    """
    facts, found = await check(line, options, shape)
    refuse_fatal(shape, found)
    return facts, [finding for finding in found if finding.warned]


def absent_columns(facts: Facts, shape: Shape) -> tuple[str, ...]:
    """The optional ones that the table does not have: for ``Shape.lacking``."""
    return tuple(name for name in OPTIONAL if facts.column(shape, name) is None)


@asynccontextmanager
async def _only_reading(line: Session) -> AsyncIterator[None]:
    """A transaction in which nothing can be written, and nobody is waited for longer than a few seconds."""
    async with line.transaction():
        await line.execute(
            b"set transaction read only; set local timezone = 'UTC'; set local lock_timeout = '%ds'" % PATIENCE
        )
        yield
