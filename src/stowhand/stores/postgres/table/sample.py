"""A bounded look at rows, and at plans: what the catalog cannot tell.

A sample of the table, a thousand of its ids in the view, a CHECK computed for rows that only might be. Every look has
a few seconds; one that takes longer, or is not permitted, finds nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Set

import msgspec
import psycopg

from stowhand.jobs.job import State
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.trouble import is_cut
from stowhand.stores.postgres.table.catalog import Facts, Rule
from stowhand.stores.postgres.table.fixes import STATES, Mender
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.judging import COUNTERS, FILLED
from stowhand.stores.table.names import Shape, quote

PATIENCE = 3
"""Seconds that one look may take."""
PAGES = 2000
"""Of a table, at most; spread over all of it."""
ROWS = 1000
"""Looked for in the view."""
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


async def row_findings(session: Session, facts: Facts, shape: Shape, moved: Set[str]) -> AsyncIterator[Finding]:
    """In a transaction that only reads. ``moved``: what gets another column, so that this one's values say nothing."""
    async for finding in _rules(session, facts, shape):
        moved |= finding.columns.keys()
        yield finding
    async for finding in _references(session, facts, shape):
        yield finding
    if facts.table is None or facts.table.kind not in "rp" or not facts.table.reachable:
        return
    async for finding in _rows(session, facts, shape, moved):
        yield finding
    if shape.viewed and facts.view is not None and shape.columns["id"] in facts.view_columns:
        async for finding in _view(session, facts, shape):
            yield finding


async def _rules(session: Session, facts: Facts, shape: Shape) -> AsyncIterator[Finding]:
    """Would a CHECK refuse what we write? It is computed for rows as we leave them; no row is needed."""
    if facts.table is None:
        return
    mender = Mender(facts, shape)
    for rule in facts.rules:
        made = _possible_rows(rule, facts, shape)
        if made is None:
            continue
        statement = f"SELECT {_STATE} FROM ({made}) AS possible WHERE NOT ({rule.expression})"
        found = await look(session, statement)
        if not found:
            continue
        states = [row[0] for row in found]
        own_state = shape.columns["state"]
        where = f"of the domain {rule.domain}" if rule.domain else f"on {', '.join(rule.columns or ())}"
        problem = f"the CHECK {rule.name} {where} does not let pass a record that is {', '.join(states)}"
        optional = states == [State.CANCELED] and facts.column(shape, "cancel") is None
        of_state = rule.domain is not None or rule.columns == [own_state]
        alone = None if rule.columns is None or len(rule.columns) > 1 else ours_of(shape, rule.columns[0])
        if of_state and State.QUEUED not in states:
            yield Finding(problem, mender.widen(rule), fatal=not optional)
        elif of_state or alone is not None:  # it says something else of a row than a worker does
            yield mender.beside("state" if of_state else alone or "", problem, using="{}::text" if of_state else "{}")
        else:
            yield Finding(problem, fatal=not optional)


def ours_of(shape: Shape, own: str) -> str | None:
    """The documented name of a column."""
    return next((documented for documented, name in shape.columns.items() if name == own), None)


def _possible_rows(rule: Rule, facts: Facts, shape: Shape) -> str | None:
    """Rows as a worker leaves them, by state. ``None``: the rule is about what we do not write."""
    if rule.domain is not None:
        column = facts.column(shape, "state")
        if column is None or column.domain != rule.domain:
            return None
        return " UNION ALL ".join(f"SELECT '{one}' AS {_STATE}, '{one}'::{column.type} AS value" for one in State)
    ours = {own: documented for documented, own in shape.columns.items() if documented != "id"}
    if not rule.columns or any(name not in ours for name in rule.columns):
        return None
    made = []
    for state in State:
        cells = [f"'{state}' AS {_STATE}"]
        for name in rule.columns:
            value = _value(ours[name], state)
            cells.append(f"({value})::{facts.columns[name].type} AS {quote(name)}")
        made.append(f"SELECT {', '.join(cells)}")
    return " UNION ALL ".join(made)


def _value(documented: str, state: State) -> str:
    """As SQL. Times are in the order in which things happen."""
    match documented:
        case "state":
            return f"'{state}'"
        case "num_failures":
            return "1" if documented in FILLED[state] else "0"
        case "num_resets":
            return "0"
        case "cancel":
            return str(state is State.CANCELED)
        case "worker_hostname":
            return f"'worker/{_TOKEN}'"
        case "lease_token":
            return f"'{_TOKEN}'"
        case _:
            return _SAMPLES[documented] if documented in FILLED[state] | {"queued_at"} else "NULL"


async def _references(session: Session, facts: Facts, shape: Shape) -> AsyncIterator[Finding]:
    """Where the states are rows of another table, does it have ours?"""
    for reference in facts.references:
        if reference.column != shape.columns["state"]:
            continue
        key = quote(reference.key)
        found = await look(session, f"SELECT {key}::text FROM {reference.table} WHERE {key}::text IN ({STATES})")
        missing = [] if found is None else [state for state in State if (state,) not in found]
        if missing:
            yield Finding(
                f"the table {reference.table}, which says what {reference.column} may be, lacks: {', '.join(missing)}",
                "\n".join(f"INSERT INTO {reference.table} ({key}) VALUES ('{state}');" for state in missing),
                fatal=missing != [State.CANCELED] or facts.column(shape, "cancel") is not None,
            )


async def _rows(session: Session, facts: Facts, shape: Shape, moved: Set[str]) -> AsyncIterator[Finding]:
    mender, some = Mender(facts, shape), sample_of(facts, shape)
    if facts.column(shape, "state") is not None and "state" not in moved:
        state = shape["state"]
        found = await look(
            session,
            f"SELECT {state}::text, count(*)::int8 FROM {some} WHERE ({state}::text NOT IN ({STATES})) IS NOT FALSE"
            " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 6",
        )
        for value, count in found or ():
            shown = "NULL, which is no state" if value is None else f"{value!r}, which no worker knows"
            yield Finding(f"{records_have(count, facts)} the state {shown}: never run", fatal=False)
    for documented in COUNTERS:
        column = facts.column(shape, documented)
        if column is None or column.filled or documented in moved:
            continue
        found = await look(session, f"SELECT count(*)::int8 FROM {some} WHERE {shape[documented]} IS NULL")
        if found and found[0][0]:
            problem = f"{records_have(found[0][0], facts)} no {column.name}: it counts as 0"
            yield msgspec.structs.replace(mender.fill(documented), problem=problem)


async def _view(session: Session, facts: Facts, shape: Shape) -> AsyncIterator[Finding]:
    assert facts.view is not None
    shown, key, rows_there = ".".join(shape.view.parts), shape["id"], sample_of(facts, shape)
    view = f"{quote(facts.view.schema)}.{quote(facts.view.name)}"
    some = f"(SELECT {key} FROM {rows_there} LIMIT {ROWS}) AS few"
    found = await look(
        session,
        f"SELECT v.{key}::text FROM {some} JOIN {view} AS v ON v.{key} = few.{key}"
        " GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1",
    )
    for (one,) in found or ():
        yield Finding(
            f"the view {shown} shows a record more than once (id {one}, for one): it must show each once, and such"
            " a record's attempts will be errors",
            fatal=False,
            warned=True,
        )
    if await _hides_processing(session, facts, shape, view):
        yield Finding(
            f"the view {shown} hides records that are processing: what was claimed could not be read; leave the state"
            " out of its WHERE"
        )
        return
    if facts.column(shape, "state") is None:
        return
    state = shape["state"]
    running = f"(SELECT {key} FROM {rows_there} WHERE {state} = 'processing' LIMIT {ROWS}) AS few"
    found = await look(
        session,
        f"SELECT count(*)::int8 FROM {running} WHERE NOT EXISTS (SELECT FROM {view} AS v WHERE v.{key} = few.{key})",
    )
    if found and found[0][0]:
        count = found[0][0]
        hidden = "1 record that is" if count == 1 else f"{count} records that are"
        yield Finding(f"the view {shown} hides {hidden} processing", fatal=False)


async def _hides_processing(session: Session, facts: Facts, shape: Shape, view: str) -> bool:
    """Does the planner see that nothing processing can come out of it? It needs no rows for that."""
    if shape.columns["state"] not in facts.view_columns:
        return False
    await look(session, "SELECT set_config('constraint_exclusion', 'on', true)")
    plan = await look(
        session, f"EXPLAIN (FORMAT TEXT, COSTS OFF) SELECT FROM {view} WHERE {shape['state']} = 'processing'"
    )
    lines = [str(row[0]).strip() for row in plan or ()]
    return lines[:2] == ["Result", "One-Time Filter: false"]


async def limit_looks(session: Session) -> None:
    """Gives each statement PATIENCE seconds, for the rest of the transaction."""
    await session.execute(b"set local statement_timeout = '%ds'" % PATIENCE)


async def look(session: Session, statement: str) -> Sequence[Row] | None:
    """``None``: it may not be looked at, or it took too long. Raises what ends a connection."""
    try:
        async with session.transaction():
            return await rows(session, statement.encode())
    except psycopg.errors.SyntaxError:
        raise
    except psycopg.Error as error:
        if is_cut(error):
            raise
        return None


def records_have(count: int, facts: Facts | None = None) -> str:
    """``3 records have``, or of a sample. ``facts``: of the table that was perhaps not looked at as a whole."""
    among = "" if facts is None or _is_whole(facts) else " of a sample"
    return f"1 record{among} has" if count == 1 else f"{count} records{among} have"


def _is_whole(facts: Facts) -> bool:
    return facts.table is not None and facts.table.kind == "r" and facts.table.pages <= PAGES


def sample_of(facts: Facts, shape: Shape) -> str:
    """All of a small table; of a large one some pages, always the same."""
    assert facts.table is not None
    table = Mender(facts, shape).table
    if facts.table.kind != "r":
        return f"(SELECT * FROM {table} LIMIT {PAGES * 50}) AS sample"
    if _is_whole(facts):
        return table
    return f"{table} TABLESAMPLE SYSTEM ({100 * PAGES / facts.table.pages:.6f}) REPEATABLE (1)"
