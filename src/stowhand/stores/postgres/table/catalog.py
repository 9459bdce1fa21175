"""What PostgreSQL's catalog says about a user's table and view, and what its CHECKs would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
from msgspec.structs import replace

from stowhand.jobs.job import State
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.statements import load_statements
from stowhand.stores.database.trouble import is_cut
from stowhand.stores.postgres.table.dialect import widened_check
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.check import READ_ONLY, Column, Facts, Index, Rule, refused_statement
from stowhand.stores.table.ddl import trigger_ddl
from stowhand.stores.table.names import MOMENTS, Relation, Shape, quote
from stowhand.stores.table.options import TableOptions

LOOK_SECONDS = 3
"""Seconds that one look at rows, or one CHECK, may take."""
_SQL = load_statements(files(__package__).joinpath("catalog.sql"), {})


class Catalog:
    """Questions of one transaction. Raises what psycopg raises."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, name: str, *values: object) -> list[Row]:
        """A statement of catalog.sql."""
        return await rows(self._session, _SQL[name], values)

    async def look(self, statement: str) -> list[Row]:
        """One bounded look; nothing where it takes too long, or is not permitted."""
        try:
            async with self._session.transaction():
                await self._session.execute(b"set local statement_timeout = '%ds'" % LOOK_SECONDS)
                return await rows(self._session, statement.encode())
        except psycopg.Error as error:
            if is_cut(error):
                raise
            return []

    async def relation(self, wanted: Relation) -> Row | None:
        """The table or view of that name."""
        found = await self.ask("relation", wanted.name, wanted.schema, wanted.schema)
        return found[0] if found else None

    async def columns(self, there: Row | None) -> dict[str, Column]:
        """By name."""
        found = [] if there is None else await self.ask("columns", there[0], there[0])
        return {row[0]: Column(*row) for row in found}


async def survey(catalog: Catalog, options: TableOptions[Any], shape: Shape) -> Facts:
    """Read the facts."""
    ((read_only, user, search_path),) = await catalog.ask("server")
    table = await catalog.relation(shape.table)
    view = await catalog.relation(shape.view) if shape.viewed else table
    problems: list[Finding] = []
    if read_only:
        problems.append(Finding("the server, or this login, only reads: connect to the primary, or let it write"))
    for wanted, found in ((shape.table, table), (shape.view, view)):
        if found is None:
            problems += [_elsewhere(wanted, row[0]) for row in await catalog.ask("elsewhere", wanted.name)]
    await catalog.ask("search_path", "")
    facts = Facts(
        kind="" if table is None else table[2],
        columns=await catalog.columns(table),
        view_kind="" if view is None else view[2],
        view_columns=await catalog.columns(view),
        schema="" if table is None else table[1],
        view_schema="" if view is None else view[1],
        problems=problems,
    )
    if table is not None:
        facts = await _survey_table(catalog, facts, table, options, shape, user)
    await catalog.ask("search_path", search_path)
    return facts


async def _survey_table(
    catalog: Catalog,
    facts: Facts,
    table: Row,
    options: TableOptions[Any],
    shape: Shape,
    user: str,
) -> Facts:
    triggers = await catalog.ask("triggers", shape.columns["last_heartbeat_at"], table[0])
    problems = [*facts.problems, *_of_table(table, shape, user), *_zoneless(facts, shape)]
    if options.notify_channel is not None and not any(on_insert for _, _, on_insert, _ in triggers):
        problem = f"notify_channel is {options.notify_channel!r}, and no trigger of the table notifies: workers poll"
        problems.append(Finding(problem, trigger_ddl(shape, options.notify_channel), fatal=False))
    rules = _rules_of_type(facts.column(shape, "state"))
    for row in await catalog.ask("rules", table[0]):
        rules += await _rules_of(catalog, row, facts, shape)
    return replace(
        facts,
        problems=problems,
        indexes=[
            Index(name, unique, tuple(own), predicate)
            for name, unique, own, predicate in await catalog.ask("indexes", table[0])
        ],
        triggers={name: text for name, text, _, at_heartbeat in triggers if at_heartbeat},
        rules=rules,
    )


def _elsewhere(wanted: Relation, schema: str) -> Finding:
    there = Relation(wanted.name, schema).quoted
    return Finding(f"there is no {'.'.join(wanted.parts)} on the search_path; the schema {schema} has one: {there}")


def _of_table(table: Row, shape: Shape, user: str) -> Iterator[Finding]:
    _, schema, _, is_filtered, is_writable, keys = table
    written = [own for documented, own in shape.columns.items() if documented not in READ_ONLY and own in (keys or ())]
    shown = ".".join(shape.table.parts)
    if written:
        yield Finding(
            f"{shown} is partitioned by {', '.join(written)}, which a worker writes: the row would move to another"
            " partition under its lock; partition by another column, or map that one to another"
        )
    if not is_writable:
        there = Relation(shape.table.name, schema).quoted
        grant = f"GRANT SELECT, UPDATE ON {there} TO {quote(user)};"
        yield Finding(f"{user} may not read and update {shown}", grant)
    if is_filtered:
        yield Finding(
            f"row security of {shown} applies to {user}: rows that its policies hide are never run", fatal=False
        )


def _zoneless(facts: Facts, shape: Shape) -> Iterator[Finding]:
    own = [column.name for name in MOMENTS if (column := facts.column(shape, name)) and "without" in column.type]
    if own:
        yield Finding(
            f"timestamps without time zone ({', '.join(own)}) are read and written as UTC; a default of now() is right"
            " only in sessions whose time zone is UTC",
            fatal=False,
        )


# -- what is refused -----------------------------------------------------------------------------


def _rules_of_type(state: Column | None) -> list[Rule]:
    if state is None or state.labels is None or State.QUEUED not in state.labels:
        return []
    missing = [one for one in State if one not in state.labels]
    widened = "\n".join(f"ALTER TYPE {state.type} ADD VALUE IF NOT EXISTS '{one}';" for one in missing)
    return [Rule(f"the type {state.type} of column {state.name}", [state.name], missing, widened)]


async def _rules_of(catalog: Catalog, row: Row, facts: Facts, shape: Shape) -> list[Rule]:
    """A CHECK that concerns what a worker writes."""
    name, expression, columns = row
    written = [own for documented, own in shape.columns.items() if documented not in READ_ONLY]
    ours = [own for own in written if own in (columns or ())]
    what, state = f"the CHECK {name} on {', '.join(ours)}", facts.column(shape, "state")
    if state is None or columns != [state.name]:
        return [Rule(what, ours)] if ours else []
    refused = [State(row[0]) for row in await catalog.look(refused_statement(state, expression))]
    return [Rule(what, ours, refused, widened_check(shape, facts.schema, name, expression))]
