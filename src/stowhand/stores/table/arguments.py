"""What people may ask of a table: states, conditions, moments. Refused before any SQL, with what to give instead; and
what they may ask of a record in its state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from stowhand.errors import ConfigurationError, InvalidJob, a_type, hint, suggest
from stowhand.jobs.conditions import Where
from stowhand.jobs.durations import seconds
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.outcomes import LONGEST_DELAY
from stowhand.protocols.queue_store import Answer, Done
from stowhand.stores.table.names import is_sql, read_column

WAITING = (State.QUEUED, State.ERRORED)


def read_states(given: Sequence[State | str]) -> tuple[State, ...]:
    """Each once. Raises ConfigurationError for none at all, and for what is no state."""
    if not given:
        raise ConfigurationError(f"states: none given; give at least one of {', '.join(State)}")
    states: list[State] = []
    for one in given:
        try:
            state = State(one)
        except ValueError:
            raise ConfigurationError(f"states: no state {one!r}{hint(one, State) or suggest(one, State)}") from None
        if state not in states:
            states.append(state)
    return tuple(states)


def read_conditions(given: object, *, folds: bool = True) -> tuple[Any, ...]:
    """A condition, or several that must all hold. Raises ConfigurationError for text: it would be SQL."""
    several = given if isinstance(given, tuple | list) else (given,)
    for one in several:
        if isinstance(one, Where):
            read_column(one.column, field="condition", folds=folds)
        elif isinstance(one, str):
            shown = one.replace('"', '\\"')
            raise ConfigurationError(
                f'condition: text given, {one!r}; SQL of your own is written sql("{shown}"),'
                ' a comparison with a value Where("column", "<", value)'
            )
        elif not is_sql(one):
            raise ConfigurationError(f'condition: {a_type(one)} given; give Where("column", "<", value) or sql("…")')
    return tuple(several)


def read_after(given: object) -> datetime | float | None:
    """A moment (aware), or seconds from now."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidJob(f"after: {given} has no time zone; give an aware datetime, or seconds from now")
        return given
    if isinstance(given, bool) or not isinstance(given, timedelta | int | float | str):
        raise InvalidJob(f"after: {a_type(given)} given; give an aware datetime, a timedelta or seconds")
    try:
        delay = seconds(given)
    except ValueError as error:
        raise InvalidJob(f"after: {error}") from None
    if math.isnan(delay) or not 0 <= delay <= LONGEST_DELAY:
        raise InvalidJob(f"after: {given} given; give 0 seconds to 100 years")
    return delay


def retry_refusal(record_id: JobId, state: str | None) -> Answer | None:
    """Why a record in this state (``None``: there is no such record) is not retried; ``None``: it is."""
    if state is None:
        return Answer(record_id, Done.MISSING, f"there is no record {record_id}")
    if state == State.PROCESSING:
        return Answer(record_id, Done.REFUSED, "it is running; cancel it instead, or wait for its end")
    if state == State.COMPLETED:
        return Answer(record_id, Done.REFUSED, "it is completed, which is final: INSERT a record anew")
    return None


def cancel_refusal(record_id: JobId, state: str | None, *, can_ask: bool) -> Answer | None:
    """The same for a cancellation. ``can_ask``: the table has the column by which a running attempt learns of it."""
    if state is None:
        return Answer(record_id, Done.MISSING, f"there is no record {record_id}")
    if state == State.CANCELED:
        return Answer(record_id, Done.UNCHANGED, "it was canceled already")
    if state == State.PROCESSING and not can_ask:
        return Answer(record_id, Done.REFUSED, "it is running, and the table has no column cancel to ask it by")
    if state in (*WAITING, State.PROCESSING):
        return None
    return Answer(record_id, Done.REFUSED, f"it is {state}")
