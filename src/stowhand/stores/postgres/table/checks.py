"""What is wrong with a table and a view: every trouble, each with the DDL that mends it.

``judge`` and ``advise`` go by the catalog's facts alone. What else a check looks at: columns.py, identity.py (is there
one row for one id), sample.py (rows).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.jobs.job import State
from stowhand.stores.database.link import Session, rows
from stowhand.stores.database.trouble import first_line, is_cut, is_forbidden, is_transient
from stowhand.stores.postgres.table.catalog import Entry, Facts, Index, survey
from stowhand.stores.postgres.table.columns import WRITTEN, column_findings, default_findings
from stowhand.stores.postgres.table.composing import Composer
from stowhand.stores.postgres.table.fixes import Mender, grant
from stowhand.stores.postgres.table.identity import key_findings
from stowhand.stores.postgres.table.sample import limit_looks, row_findings
from stowhand.stores.table.backend import Finding, refuse_fatal
from stowhand.stores.table.ddl import NEXT, RECOMMENDED, SOUGHT, trigger_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.expressions import order_of
from stowhand.stores.table.judging import absent, near_relation
from stowhand.stores.table.names import OPTIONAL, Column, Relation, Shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.triggers import said_of, sets_column

GIVEN = ("state", "num_resets", "num_failures", "worker_hostname", "cancel")
"""Columns that an INSERT need not name."""
PATIENCE = 5
"""Seconds that a lock is waited for."""
KINDS = {"p": "a partitioned table", "v": "a view", "m": "a materialised view", "f": "a foreign table"}


async def validate(session: Session, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """For ``open``: what there is, if a worker can serve it, and what such a worker is to be warned of.

    Raises TableUnsuitable with every fatal finding.
    """
    facts, found = await check(session, options, shape)
    refuse_fatal(shape, found)
    return facts, [finding for finding in found if finding.warned]


async def check(session: Session, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """What there is, and every trouble with it: the fatal ones first. Raises what psycopg raises."""
    async with _only_reading(session):
        facts = await survey(session, shape)
        found = list(judge(facts, shape))
        await limit_looks(session)
        found += [finding async for finding in key_findings(session, facts, shape, options)]
        moved = {documented for finding in found for documented in finding.columns}
        found += [finding async for finding in row_findings(session, facts, shape, moved)]
        given = {documented: own for finding in reversed(found) for documented, own in finding.columns.items()}
        then = msgspec.structs.replace(shape, columns={**shape.columns, **given})
        found += advise(facts, then, options)
        if not any(finding.fatal for finding in found):
            lacking = shape.lacking(*absent_columns(facts, shape))
            found += [finding async for finding in _expression_findings(session, lacking, options, facts)]
    return facts, sorted(_mended_once(found), key=lambda finding: not finding.fatal)


def _mended_once(found: Sequence[Finding]) -> Iterator[Finding]:
    """Two troubles with one column give the worker one column of its own."""
    given: set[str] = set()
    for finding in found:
        again = bool(finding.columns) and given.issuperset(finding.columns)
        given.update(finding.columns)
        yield msgspec.structs.replace(finding, mend="") if again else finding


@asynccontextmanager
async def _only_reading(session: Session) -> AsyncIterator[None]:
    """A transaction in which nothing can be written, and no lock is waited for longer than a few seconds."""
    async with session.transaction():
        await session.execute(
            b"set transaction read only; set local timezone = 'UTC'; set local lock_timeout = '%ds'" % PATIENCE
        )
        yield


def judge(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """By the catalog's facts alone, in the order in which troubles are best mended."""
    if facts.server.standby:
        yield Finding("the server is a standby, which cannot be written to: connect to the primary")
    elif facts.server.read_only:
        yield Finding("default_transaction_read_only is on, so nothing can be written: turn it off for this login")
    if facts.table is None:
        yield _absent(facts, shape, shape.table)
    else:
        yield from _table(facts, shape, facts.table)
        yield from column_findings(facts, shape, Mender(facts, shape))
        yield from _rights(facts, shape, facts.table)
        yield from _triggers(facts, shape)
    if shape.viewed:
        yield from _view(facts, shape)


def _absent(facts: Facts, shape: Shape, wanted: Relation) -> Finding:
    """Names what may have been meant, or gives the DDL that makes it."""
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
    near = near_relation(wanted, here)
    meant = None if near is None else Relation(near, wanted.schema).quoted
    makeable = wanted is shape.table or facts.table is not None or bool(_absent(facts, shape, shape.table).mend)
    return absent(shape, wanted, meant, "postgres", makeable=makeable)


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
    for one in facts.heartbeat_triggers:
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
    """Defaults, indexes and a trigger, for a table that can have them.

    ``shape``: with the columns that a worker will have; nothing is advised about one that it no longer needs.
    """
    if facts.table is None or facts.table.kind not in "rp":
        return
    mender = Mender(facts, shape)
    for documented in GIVEN:
        if (column := facts.column(shape, documented)) is not None:
            yield from default_findings(documented, column, mender)
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
    """The table's columns that order claims; none where anything but columns does."""
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


async def _expression_findings(
    session: Session, shape: Shape, options: TableOptions[Any], facts: Facts
) -> AsyncIterator[Finding]:
    """Has the server parse the options' expressions, so that an error is found here and not at the first claim.

    For a table without fatal findings. The SELECT that they are put into gives no row, so none is computed.
    """
    try:
        composer = Composer(options, shape, facts)
    except (ConfigurationError, TableUnsuitable) as error:
        yield Finding(str(error))
        return
    values = {**composer.values, "ids": [], "now": None}
    for option, statement, given in (
        ("column_expressions", composer.statements["read"], values),
        ("order_by_expression", composer.statements["order"], composer.order_values),
    ):
        refusal = await _refused(session, statement, given)
        if refusal is not None:
            granted = grant("SELECT", facts.view, facts.server.user) if facts.view is not None else ""
            yield Finding(f"{option}: {first_line(refusal)}", granted if is_forbidden(refusal) else "")


async def _refused(session: Session, statement: bytes, values: Mapping[str, object]) -> psycopg.Error | None:
    try:
        async with session.transaction():
            await rows(session, statement, values)
    except psycopg.Error as error:
        if is_cut(error):
            raise
        return None if is_transient(error) else error
    return None


def absent_columns(facts: Facts, shape: Shape) -> tuple[str, ...]:
    """The optional ones that the table does not have: for ``Shape.lacking``."""
    return tuple(name for name in OPTIONAL if facts.column(shape, name) is None)
