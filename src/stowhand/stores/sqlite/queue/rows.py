"""Conversion of rows to ``Job``, and of ``NewJob`` to rows."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import AttemptEnd, FailedAttempt
from stowhand.jobs.fields import FIELDS, Kind
from stowhand.jobs.job import DEFAULT_MAX_ATTEMPTS, Job, NewJob, State
from stowhand.jobs.task_limits import own_serial
from stowhand.stores.kernel.columns import COLUMN_NAMES, DETAILS
from stowhand.stores.sqlite.queue.moment import Moment, micros, to_datetime, to_micros

PAYLOAD_LIMIT = 1024 * 1024
"""Maximum number of bytes of JSON text."""

MAX_TIME_MICROS = 253402300799999999
"""The last microsecond of the year 9999."""
JobRow = tuple[Any, ...]
"""The columns of the views, in their order."""

_CONVERTED_COLUMNS = ("max_attempts", "flags", "queue")
"""Details that are converted before they are written."""
_UNCONVERTED_COLUMNS = ("task", "payload", "key", *(name for name in DETAILS if name not in _CONVERTED_COLUMNS))
INSERTED_COLUMNS = (
    *_UNCONVERTED_COLUMNS,
    "run_at",
    *_CONVERTED_COLUMNS,
    "on_failure",
    "expires_at",
    "created_at",
    "updated_at",
)
"""The columns of ``to_row``."""
_unconverted_values = attrgetter(*_UNCONVERTED_COLUMNS)
_STATES_BY_VALUE = {state.value: state for state in State}
_flags = msgspec.json.Decoder(tuple[str, ...])
_json = msgspec.json.Encoder()


def to_job(row: JobRow) -> Job:
    """Convert a row of the columns ``JOB_COLUMNS``, which do not include the lease."""
    values = list(row)
    for position, convert in _CONVERSIONS_BY_POSITION:
        if (value := values[position]) is not None:
            values[position] = convert(value)
    values[_FLAGS_POSITION] = values[_FLAGS_POSITION] or ()
    values[_SERIAL_POSITION] = own_serial(values[_SERIAL_POSITION])
    return Job(*_in_order(values))


def to_try(row: JobRow) -> FailedAttempt:
    """Convert a row of the statement ``tries``."""
    number, round_, worker, started_at, ended_at, outcome, error_class, error = row
    return FailedAttempt(
        number=number,
        round=round_,
        worker=worker,
        started_at=None if started_at is None else to_datetime(started_at),
        ended_at=to_datetime(ended_at),
        outcome=AttemptEnd(outcome),
        error_class=error_class,
        error=error,
    )


def _read_flags(text: str) -> tuple[str, ...]:
    """Return the flags. Text of other programs that is not a list becomes one flag, so that no claim fails."""
    try:
        return _flags.decode(text)
    except msgspec.MsgspecError:
        return (text,)


_VALUE_READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.STATE: _STATES_BY_VALUE.__getitem__,
    Kind.MOMENT: to_datetime,
    Kind.TRUTH: bool,
    Kind.NAMES: _read_flags,
}
_CONVERSIONS_BY_POSITION = [
    (position, _VALUE_READERS[field.kind]) for position, field in enumerate(FIELDS) if field.kind in _VALUE_READERS
]
_FLAGS_POSITION = COLUMN_NAMES.index("flags")
_SERIAL_POSITION = COLUMN_NAMES.index("serial")
_in_order = itemgetter(*map(COLUMN_NAMES.index, Job.__struct_encode_fields__))


def to_row(job: NewJob, now: Moment) -> tuple[Any, ...]:
    """Return the values of ``INSERTED_COLUMNS`` for a new job."""
    job = check(job)
    if job.run_at is not None:
        due = to_micros(job.run_at)
    elif job.delay:
        due = now.after(job.delay)
    else:
        due = now.wall
    flags = as_json(tuple(dict.fromkeys(job.flags))) if job.flags else None
    attempts = DEFAULT_MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts
    expires_at = None if job.expires is None else min(due + micros(job.expires), MAX_TIME_MICROS)
    on_failure = None if job.on_failure is None else as_json(job.on_failure)
    return (*_unconverted_values(job), due, attempts, flags, job.queue, on_failure, expires_at, now.wall, now.wall)


def check(job: NewJob) -> NewJob:
    """Return the job with its options checked. Raise InvalidJob."""
    check_size(job.payload)
    return limits.check_options(job)


def check_text(field: str, text: str) -> None:
    """Raise InvalidJob for text that SQLite cannot store. Many of its functions truncate a text at NUL."""
    if "\x00" in text:
        raise InvalidJob(f"{field} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidJob(f"{field} contains lone surrogates, which are not characters") from None


def check_size(payload: str) -> None:
    """Raise InvalidJob for a payload that is too large or not valid text."""
    check_text("the payload", payload)
    if len(payload) * 4 > PAYLOAD_LIMIT and (size := len(payload.encode())) > PAYLOAD_LIMIT:
        raise InvalidJob(f"the payload has {size} bytes; the limit is {PAYLOAD_LIMIT} (1 MiB)")


def as_json(value: object) -> str:
    """Encode a value for statements that take a list as one parameter."""
    return _json.encode(value).decode()
