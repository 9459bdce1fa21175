"""Checks of a user's arguments: states, conditions, times and keys, before any SQL is sent.

Also decides which operations are allowed on a record in its state.
"""

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

WAITING_STATES = (State.QUEUED, State.ERRORED)


def read_states(values: Sequence[State | str]) -> tuple[State, ...]:
    """Return each state once. Raises ConfigurationError for an empty sequence or an unknown state."""
    if not values:
        raise ConfigurationError(f"states: none given; use at least one of {', '.join(State)}")
    states: list[State] = []
    for value in values:
        try:
            state = State(value)
        except ValueError:
            raise ConfigurationError(
                f"states: no state {value!r}{hint(value, State) or suggest(value, State)}"
            ) from None
        if state not in states:
            states.append(state)
    return tuple(states)


def read_conditions(conditions: object, *, folds: bool = True) -> tuple[Any, ...]:
    """Return one or several conditions as a tuple. Raises ConfigurationError, also for SQL as bare text.

    ``folds``: the database folds bare names to lower case (PostgreSQL).
    """
    items = conditions if isinstance(conditions, tuple | list) else (conditions,)
    for condition in items:
        if isinstance(condition, Where):
            read_column(condition.column, field="condition", folds=folds)
        elif isinstance(condition, str):
            escaped = condition.replace('"', '\\"')
            raise ConfigurationError(
                f'condition: got text, {condition!r}; SQL of your own is written sql("{escaped}"),'
                ' a comparison with a value Where("column", "<", value)'
            )
        elif not is_sql(condition):
            raise ConfigurationError(f'condition: got {a_type(condition)}; use Where("column", "<", value) or sql("…")')
    return tuple(items)


def read_filters(value: object, *, folds: bool = True) -> tuple[Any, ...]:
    """Return the conditions of a count. Raises ConfigurationError for SUM_OPERATOR, which limits a whole claim."""
    conditions = read_conditions(value, folds=folds)
    for condition in conditions:
        if isinstance(condition, Where) and condition.op == SUM_OPERATOR:
            raise ConfigurationError(f"condition on {condition.column!r}: {condition.op!r} is for a claim; write '<='")
    return conditions


def read_after(value: object) -> datetime | float | None:
    """Return an aware datetime or a duration, as seconds from now. ``None`` is unchanged. Raises InvalidJob."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidJob(f"after: {value} has no time zone; use an aware datetime, or seconds from now")
        return value
    return read_delay(value, "after")


def requeue_refusal(record_id: JobId, state: str | None) -> Answer | None:
    """Return the refusal to requeue a record in this state (``None``: no such record); ``None`` if allowed."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state in (*WAITING_STATES, State.PROCESSING):
        return None
    return Answer(record_id, ActionResult.REFUSED, f"it is {state}, which is final: INSERT a record anew")


def retry_refusal(record_id: JobId, state: str | None) -> Answer | None:
    """Return the refusal to retry a record in this state; ``None`` if allowed."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state == State.PROCESSING:
        return Answer(record_id, ActionResult.REFUSED, "it is running; cancel it instead, or wait for its end")
    if state == State.COMPLETED:
        return Answer(record_id, ActionResult.REFUSED, "it is completed, which is final: INSERT a record anew")
    return None


def cancel_refusal(record_id: JobId, state: str | None, *, can_ask: bool) -> Answer | None:
    """Return the refusal to cancel; ``None`` if allowed. ``can_ask``: the table has a column ``cancel``."""
    if state is None:
        return Answer(record_id, ActionResult.MISSING, f"there is no record {record_id}")
    if state == State.CANCELED:
        return Answer(record_id, ActionResult.UNCHANGED, "it was canceled already")
    if state == State.PROCESSING and not can_ask:
        reason = "it is running, and the table has no column cancel for the request"
        return Answer(record_id, ActionResult.REFUSED, reason)
    if state in (*WAITING_STATES, State.PROCESSING):
        return None
    return Answer(record_id, ActionResult.REFUSED, f"it is {state}")


class KeyType(StrEnum):
    """Type of the id column."""

    INTEGER = "integer"
    """smallint, integer, bigint, or SQLite's INTEGER."""
    UUID = "uuid"
    """The job id is its text in lower case with hyphens."""
    TEXT = "text"


def read_key(kind: KeyType, value: Any, field: str = "id") -> JobId:
    """Return a user's key in the form of a lease's job id. Raises InvalidJob, which names the expected type."""
    if kind is KeyType.INTEGER:
        # The type must be exact: True equals 1 in Python, and 1.0 equals 1 in a database.
        if type(value) is not int:
            raise InvalidJob(f"{field}: got {a_type(value)}; the key is a whole number: use an int")
        if not -(2**63) <= value < 2**63:
            raise InvalidJob(f"{field}: {value} is beyond 64 bits")
        return value
    if kind is KeyType.UUID:
        if isinstance(value, str | UUID):
            try:
                return str(UUID(str(value)))
            except ValueError:
                raise InvalidJob(f"{field}: {value!r} is not a uuid; use a uuid.UUID or its text") from None
        raise InvalidJob(f"{field}: got {a_type(value)}; the key is a uuid: use a uuid.UUID or its text")
    if not isinstance(value, str):
        raise InvalidJob(f"{field}: got {a_type(value)}; the key is text: use a str")
    # UTF-8 has at most 4 bytes per character, so ``clean`` does not cut the text.
    if clean(value, 4 * len(value) + 1) != value:
        raise InvalidJob(f"{field}: {value!r} contains NUL or a lone surrogate, which no key can contain")
    return value


def job_id(value: Any) -> JobId:
    """Return an id from the database in the form of a lease's job id: a uuid becomes text."""
    return str(value) if isinstance(value, UUID) else value
