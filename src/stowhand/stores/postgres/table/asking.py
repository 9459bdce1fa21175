"""Shows a table and acts on single records, for people and for handlers. On any connection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from stowhand.errors import StoreUnreachable
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.protocols.queue_store import Answer, Done
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.postgres.table.context import TableContext
from stowhand.stores.table.record_view import ShownRecord, shown


async def requeue(context: TableContext, session: Session, record_id: JobId, after: datetime | float | None) -> Answer:
    """To queued; a running attempt is fenced out. Raises StoreUnreachable where the row is locked."""
    moment, delay = (after, None) if isinstance(after, datetime) else (None, after)
    key = str(record_id)
    done = await rows(session, context.statement("requeue"), context.values(id=key, after=moment, delay=delay))
    if done:
        canceled = done[0][0] == State.CANCELED
        return Answer(record_id, Done.DONE, "it was asked to cancel: canceled instead" if canceled else "")
    found = await rows(session, context.statement("state_of"), context.values(id=key))
    if not found:
        return Answer(record_id, Done.MISSING, f"there is no record {record_id}")
    if found[0][0] in (State.QUEUED, State.ERRORED, State.PROCESSING):
        raise _locked(context, record_id)
    return Answer(record_id, Done.REFUSED, f"it is {found[0][0]}, which is final: INSERT a record anew")


async def seconds_until(context: TableContext, session: Session, moment: datetime) -> float:
    """Counted from the database's clock."""
    ((seconds,),) = await rows(session, context.statement("seconds_until"), context.values(moment=moment))
    return float(seconds)


async def count(
    context: TableContext, session: Session, states: Sequence[State], conditions: Sequence[Any]
) -> dict[State, int]:
    """As the view shows them; every state asked for is a key."""
    statement, values = context.composer.counting("count", conditions)
    found = await rows(session, statement, {**values, **context.values(states=_names(states))})
    return dict.fromkeys(states, 0) | {State(state): number for state, number in found}


async def exists(context: TableContext, session: Session, states: Sequence[State], conditions: Sequence[Any]) -> bool:
    """Is there one?"""
    statement, values = context.composer.counting("exists", conditions)
    ((found,),) = await rows(session, statement, {**values, **context.values(states=_names(states))})
    return bool(found)


async def next_due(context: TableContext, session: Session) -> float | None:
    """Seconds until the earliest waiting record is due; 0 if one is; ``None`` if none waits."""
    ((seconds,),) = await rows(session, context.statement("next_due"), context.values())
    return None if seconds is None else float(seconds)


async def moment(context: TableContext, session: Session, name: str) -> float:
    """Seconds, as ``longest_wait`` and ``longest_run`` say."""
    ((seconds,),) = await rows(session, context.statement(name), context.values())
    return float(seconds)


async def logs(context: TableContext, session: Session, record_id: JobId) -> Sequence[str] | None:
    """Entry by entry, as JSON text."""
    found = await rows(session, context.statement("logs"), context.values(id=str(record_id)))
    return None if not found else [entry or "null" for entry in found[0][0] or ()]


async def page(
    context: TableContext, session: Session, states: Sequence[State], after: JobId | None, limit: int
) -> Sequence[ShownRecord]:
    """Records in these states, by id."""
    above = None if after is None else str(after)
    found = await rows(
        session, context.statement("page"), context.values(states=_names(states), after=above, limit=limit)
    )
    return [_shown(context, row) for row in found]


async def find(context: TableContext, session: Session, record_id: JobId) -> ShownRecord | None:
    """One record."""
    found = await rows(session, context.statement("find"), context.values(id=str(record_id)))
    return _shown(context, found[0]) if found else None


async def retry(context: TableContext, session: Session, record_id: JobId) -> Answer:
    """To queued, as if it had never been tried."""
    if await rows(session, context.statement("retry"), context.values(id=str(record_id))):
        return Answer(record_id, Done.DONE)
    state = await _state(context, session, record_id)
    if state is None:
        return Answer(record_id, Done.MISSING, f"there is no record {record_id}")
    if state == State.PROCESSING:
        return Answer(record_id, Done.REFUSED, "it is running; cancel it instead, or wait for its end")
    if state == State.COMPLETED:
        return Answer(record_id, Done.REFUSED, "it is completed, which is final: INSERT a record anew")
    raise _locked(context, record_id)


async def cancel(context: TableContext, session: Session, record_id: JobId) -> Answer:
    """A waiting record is canceled, a running one is asked to stop."""
    done = await rows(session, context.statement("cancel"), context.values(id=str(record_id)))
    if done:
        running = done[0][0] == State.PROCESSING
        return Answer(record_id, Done.ASKED if running else Done.DONE, "it is running, and asked to stop" * running)
    state = await _state(context, session, record_id)
    if state is None:
        return Answer(record_id, Done.MISSING, f"there is no record {record_id}")
    if state == State.CANCELED:
        return Answer(record_id, Done.UNCHANGED, "it was canceled already")
    if state == State.PROCESSING and not context.shape.has("cancel"):
        return Answer(record_id, Done.REFUSED, "it is running, and the table has no column cancel to ask it by")
    if state in (State.QUEUED, State.ERRORED, State.PROCESSING):
        raise _locked(context, record_id)
    return Answer(record_id, Done.REFUSED, f"it is {state}")


async def _state(context: TableContext, session: Session, record_id: JobId) -> str | None:
    found = await rows(session, context.statement("state_of"), context.values(id=str(record_id)))
    return str(found[0][0]) if found else None


def _locked(context: TableContext, record_id: JobId) -> StoreUnreachable:
    return StoreUnreachable(f"{context}: an open transaction holds record {record_id}; try again when it has ended")


def _shown(context: TableContext, row: Row) -> ShownRecord:
    return shown((context.job_id(str(row[0])), *row[1:]))


def _names(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]
