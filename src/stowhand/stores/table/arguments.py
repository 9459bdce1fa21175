"""What people may ask of a table: states, conditions, moments. Refused before any SQL, with what to give instead; and
what they may ask of a record in its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from stowhand.errors import ConfigurationError, InvalidJob, a_type, hint, suggest
from stowhand.jobs.conditions import SUM_OPERATOR, Where
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId
from stowhand.jobs.limits import read_delay
from stowhand.jobs.text import clean
from stowhand.protocols.queue_store import ActionResult, Answer
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


def read_filters(given: object, *, folds: bool = True) -> tuple[Any, ...]:
    """The conditions of a count: as those of a claim, but for what bounds the records of one claim together."""
    conditions = read_conditions(given, folds=folds)
    for one in conditions:
        if isinstance(one, Where) and one.op == SUM_OPERATOR:
            raise ConfigurationError(f"condition on {one.column!r}: {one.op!r} is for a claim; write '<='")
    return conditions


def read_after(given: object) -> datetime | float | None:
    """A moment (aware), or seconds from now."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidJob(f"after: {given} has no time zone; give an aware datetime, or seconds from now")
        return given
    return read_delay(given, "after")


def requeue_refusal(record_id: JobId, state: str | None) -> Answer | None:
    """Why a record in this state (``None``: there is no such record) is not put back; ``None``: it is."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state in (*WAITING, State.PROCESSING):
        return None
    return Answer(record_id, ActionResult.REFUSED, f"it is {state}, which is final: INSERT a record anew")


def retry_refusal(record_id: JobId, state: str | None) -> Answer | None:
    """The same for a retry."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state == State.PROCESSING:
        return Answer(record_id, ActionResult.REFUSED, "it is running; cancel it instead, or wait for its end")
    if state == State.COMPLETED:
        return Answer(record_id, ActionResult.REFUSED, "it is completed, which is final: INSERT a record anew")
    return None


def cancel_refusal(record_id: JobId, state: str | None, *, can_ask: bool) -> Answer | None:
    """The same for a cancellation. ``can_ask``: the table has the column by which a running attempt learns of it."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state == State.CANCELED:
        return Answer(record_id, ActionResult.UNCHANGED, "it was canceled already")
    if state == State.PROCESSING and not can_ask:
        return Answer(record_id, ActionResult.REFUSED, "it is running, and the table has no column cancel to ask it by")
    if state in (*WAITING, State.PROCESSING):
        return None
    return Answer(record_id, ActionResult.REFUSED, f"it is {state}")


class Key(StrEnum):
    """What the id column holds."""

    INTEGER = "integer"
    """smallint, integer, bigint, or SQLite's INTEGER."""
    UUID = "uuid"
    """A job's id is its text, in lower case with hyphens."""
    TEXT = "text"


def read_key(kind: Key, given: Any, field: str = "id") -> JobId:
    """The id as leases hold it. Raises InvalidJob with what to give instead."""
    if kind is Key.INTEGER:
        # True is 1 to Python, and 1.0 is 1 to a database.
        if type(given) is not int:
            raise InvalidJob(f"{field}: {a_type(given)} given; the key is a whole number: give an int")
        if not -(2**63) <= given < 2**63:
            raise InvalidJob(f"{field}: {given} is beyond 64 bits")
        return given
    if kind is Key.UUID:
        if isinstance(given, str | UUID):
            try:
                return str(UUID(str(given)))
            except ValueError:
                raise InvalidJob(f"{field}: {given!r} is no uuid; give a uuid.UUID or its text") from None
        raise InvalidJob(f"{field}: {a_type(given)} given; the key is a uuid: give a uuid.UUID or its text")
    if not isinstance(given, str):
        raise InvalidJob(f"{field}: {a_type(given)} given; the key is text: give a str")
    if clean(given, 4 * len(given) + 1) != given:
        raise InvalidJob(f"{field}: {given!r} holds NUL or a lone surrogate, which no key can hold")
    return given


def job_id(value: Any) -> JobId:
    """What the database gave for the id, as leases hold it: a uuid becomes text."""
    return str(value) if isinstance(value, UUID) else value
