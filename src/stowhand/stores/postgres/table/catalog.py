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
from stowhand.stores.table.check import FILLED, READ_ONLY, Column, Facts, Index, RefusedStates
from stowhand.stores.table.ddl import trigger_ddl
from stowhand.stores.table.names import MOMENTS, Relation, Shape, quote
from stowhand.stores.table.options import TableOptions

LOOK_SECONDS = 3
"""Seconds that one look at rows, or one CHECK, may take."""
_SQL = load_statements(files(__package__).joinpath("catalog.sql"), {})
_STATE = quote("state of the row")
_TOKEN = "00000000-0000-4000-8000-000000000000"
_SAMPLES = {
    "failure_message": "'it failed'",
    "queued_at": "now() - interval '2 hours'",
    "started_at": "now() - interval '1 hour'",
    "last_heartbeat_at": "now() - interval '1 minute'",
    "finished_at": "now()",
    "process_after": "now() + interval '1 hour'",
}


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
    refused = _refused_by_type(facts.column(shape, "state"))
    for rule in await catalog.ask("rules", table[0]):
        refused += await _refused_by(catalog, rule, facts, shape)
    return replace(
        facts,
        problems=problems,
        indexes=[
            Index(name, unique, tuple(own), predicate)
            for name, unique, own, predicate in await catalog.ask("indexes", table[0])
        ],
        triggers={name: text for name, text, _, at_heartbeat in triggers if at_heartbeat},
        refused=refused,
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


def _refused_by_type(state: Column | None) -> list[RefusedStates]:
    if state is None or state.labels is None:
        return []
    missing = [one for one in State if one not in state.labels]
    widened = "\n".join(f"ALTER TYPE {state.type} ADD VALUE IF NOT EXISTS '{one}';" for one in missing)
    what = f"the type {state.type} of column {state.name}"
    return [RefusedStates(what, missing, of_state=True, widened=widened)] if missing else []


async def _refused_by(catalog: Catalog, rule: Row, facts: Facts, shape: Shape) -> list[RefusedStates]:
    """A CHECK is computed for rows as a worker leaves them; no row is needed."""
    name, expression, own = rule
    ours = {column: documented for documented, column in shape.columns.items() if documented != "id"}
    if not own or any(column not in ours for column in own):
        return []
    made = []
    for state in State:
        cells = [
            f"CAST({_value(ours[column], state)} AS {facts.columns[column].type}) AS {quote(column)}" for column in own
        ]
        made.append(f"SELECT '{state}' AS {_STATE}, {', '.join(cells)}")
    found = await catalog.look(
        f"SELECT {_STATE} FROM ({' UNION ALL '.join(made)}) AS possible WHERE NOT ({expression})"
    )
    if not found:
        return []
    of_state = own == [shape.columns["state"]]
    widened = widened_check(shape, facts.schema, name, expression) if of_state else ""
    what = f"the CHECK {name} on {', '.join(own)}"
    return [RefusedStates(what, [State(row[0]) for row in found], of_state, widened)]


def _value(documented: str, state: State) -> str:
    """As SQL. Times are in the order in which things happen."""
    match documented:
        case "state":
            return f"'{state}'"
        case "num_resets":
            return "0"
        case "num_failures":
            return "1" if documented in FILLED[state] else "0"
        case "cancel":
            return str(state is State.CANCELED)
        case "worker_hostname":
            return f"'worker/{_TOKEN}'"
        case "lease_token":
            return f"'{_TOKEN}'"
    return _SAMPLES[documented] if documented in FILLED[state] | {"queued_at"} else "NULL"
