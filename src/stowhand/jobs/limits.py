"""The limits of a job, checked before it reaches a store. Errors name the field, the problem and the limit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload, a_type, suggest
from stowhand.jobs import strict_json
from stowhand.jobs.durations import MAX_DURATION_SECONDS, seconds
from stowhand.jobs.fields import FIELDS, MAX_INT32, Kind
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.jobs.lifecycle import STATES_WITH_PAYLOAD, Settlement
from stowhand.jobs.queues import DEFAULT_QUEUE

_MAX_LENGTHS = {field.name: field.limits[1] for field in FIELDS if field.kind is Kind.TEXT and field.limits}
_MIN_VALUES = {field.name: field.limits[0] for field in FIELDS if field.kind is Kind.WHOLE and field.limits}
_OPTIONAL_FIELDS = tuple(name for name in (*_MAX_LENGTHS, *_MIN_VALUES) if name not in ("task", "priority"))
_USUAL_VALUES = (
    tuple(DEFAULT_QUEUE if name == "queue" else None for name in _OPTIONAL_FIELDS),
    (None,) * len(_OPTIONAL_FIELDS),
)
"""Frequent values, the most frequent first, which need no check. An App names the queue of each job."""
_optional_of = attrgetter(*_OPTIONAL_FIELDS)
MAX_TASK_CHARACTERS = _MAX_LENGTHS["task"]
MAX_SERIAL_CHARACTERS = _MAX_LENGTHS["serial"]
MAX_QUEUE_CHARACTERS = _MAX_LENGTHS["queue"]
MAX_KEY_CHARACTERS = _MAX_LENGTHS["key"]
MAX_FLAGS = 64
MAX_FLAG_CHARACTERS = 128
MAX_HANDLER_BYTES = 16 * 1024
"""Bytes of an ``on_failure`` job as JSON."""
MAX_FORBIDDEN_FLAGS = 10_000
PURGE_TASK = "jobs:purge_completed"
BUILT_IN_TASKS = (PURGE_TASK,)
"""Tasks that every worker has. They delete jobs, so ordinary producers may not enqueue them."""

# Names are printed in lists, logs and errors: a line break or an escape sequence in one would forge a line there.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check(job: NewJob, *, built_in: bool = False) -> NewJob:
    """Return the job with values of the exact types; only unambiguous values are coerced. Raises InvalidJob.

    ``built_in`` allows built-in tasks, for administrators and crontabs.
    """
    checked = check_options(job)
    if not built_in:
        refuse_built_in(checked)
    elif checked.task in BUILT_IN_TASKS:
        _refuse_rules(checked)
    check_payload(checked)
    return checked


def _refuse_rules(job: NewJob) -> None:
    for field in ("on_failure", "expires", "unique_period"):
        if getattr(job, field) is not None:
            raise InvalidJob(f"{field}: not allowed for a job of the built-in task {job.task!r}; leave it out")
    if job.key_mode not in (KeyMode.REPLACE, KeyMode.PRESERVE_RUN_AT):
        raise InvalidJob(
            f"key_mode: {job.key_mode.value!r} is not allowed for a job of the built-in task {job.task!r};"
            " use 'replace' or 'preserve_run_at'"
        )


def check_payload(job: NewJob) -> None:
    """Raise InvalidJob unless the payload is strict JSON."""
    try:
        strict_json.validate(_text("payload", job.payload))
    except UndecodablePayload as error:
        raise InvalidJob(f"payload: {error}") from None


def check_remaining_payload(settlement: Settlement) -> None:
    """Check the remaining payload of a batch like a producer's payload. Raises InvalidJob."""
    if settlement.payload is not None and settlement.state in STATES_WITH_PAYLOAD:
        try:
            strict_json.validate(settlement.payload)
        except UndecodablePayload as error:
            raise InvalidJob(f"the payload: {error}") from None


def refuse_built_in(job: NewJob) -> None:
    """Raise InvalidJob for a job of a built-in task."""
    if job.task in BUILT_IN_TASKS:
        raise InvalidJob(
            f"task {job.task!r} is built in and deletes jobs; enqueue it from a crontab, with `stowhand enqueue"
            f" {job.task}`, or with an administrator's add_built_in"
        )


def check_built_in(job: NewJob) -> NewJob:
    """Check a job of a built-in task as ``check`` does. Raises InvalidJob, also for other tasks."""
    if job.task not in BUILT_IN_TASKS:
        raise InvalidJob(f"task {job.task!r} is not a built-in task ({', '.join(BUILT_IN_TASKS)}); enqueue it as usual")
    return check(job, built_in=True)


def check_options(job: NewJob) -> NewJob:
    """Check a job as ``check`` does, except for its payload."""
    if not isinstance(job, NewJob):
        raise InvalidJob(f"{a_type(job)} is not a job; use a NewJob, which task.new_job(…) returns")
    check_name("task", job.task, MAX_TASK_CHARACTERS)
    _check_integer("priority", job.priority, -MAX_INT32 - 1)
    if (values := _optional_of(job)) not in _USUAL_VALUES:
        _check_optional(values)
    if job.run_at is not None:
        _check_time(job.run_at, job.delay)
    if job.on_failure is not None or job.expires is not None or job.unique_period is not None:
        job = _check_rules(job)
    delay = None if job.delay is None else read_delay(job.delay)
    key_mode = job.key_mode if type(job.key_mode) is KeyMode else _read_key_mode(job.key_mode)
    flags = () if job.flags == () else _read_flags(job.flags)
    # Identity: a KeyMode equals its text, and a delay of 1 equals 1.0.
    if delay is job.delay and key_mode is job.key_mode and flags is job.flags:
        return job
    return msgspec.structs.replace(job, delay=delay, key_mode=key_mode, flags=flags)


def _check_optional(values: Sequence[object]) -> None:
    for name, value in zip(_OPTIONAL_FIELDS, values, strict=True):
        if value is None:
            continue
        if name == "queue":
            check_queue(name, value)
        elif name == "serial":
            check_serial(name, value)
        elif name in _MAX_LENGTHS:
            check_name(name, value, _MAX_LENGTHS[name])
        else:
            _check_integer(name, value, _MIN_VALUES[name])


def _check_rules(job: NewJob) -> NewJob:
    if job.on_failure is not None:
        _check_handler(job.on_failure)
    if job.unique_period is not None and (job.key is None or job.key_mode != KeyMode.UNIQUE):
        raise InvalidJob("unique_period: needs a key and the key mode 'unique'")
    expires, period = (read_positive(getattr(job, field), field) for field in ("expires", "unique_period"))
    if expires is job.expires and period is job.unique_period:
        return job
    return msgspec.structs.replace(job, expires=expires, unique_period=period)


def _check_handler(handler: NewJob) -> None:
    try:
        # Values that need coercion are refused: the store writes this job unchanged.
        is_exact = check_options(handler) is handler
        refuse_built_in(handler)
    except InvalidJob as error:
        raise InvalidJob(f"on_failure: {error}") from None
    if not is_exact:
        raise InvalidJob("on_failure: use delay in seconds and flags as a tuple, as a task's template has them")
    if handler.key is not None or handler.expires is not None:
        raise InvalidJob("on_failure: key and expires are not allowed; some failures would go unreported")
    if handler.on_failure is not None or handler.payload != NewJob(task="").payload:
        raise InvalidJob("on_failure: payload and on_failure are not allowed in its job; leave them out")
    if (size := len(msgspec.json.encode(handler))) > MAX_HANDLER_BYTES:
        raise InvalidJob(f"on_failure: {size} bytes, the limit is {MAX_HANDLER_BYTES}; use fewer flags")


def refuse_repeated_key(job: NewJob, keys: dict[str, KeyMode]) -> None:
    """Raise InvalidJob if an earlier job of the same call has the same key, unless both have the mode ``unique``.

    ``keys`` has the keys of the call with their modes; this job's key is added.
    """
    if job.key is None:
        return
    earlier_mode = keys.get(job.key)
    if earlier_mode is not None and not (earlier_mode == job.key_mode == KeyMode.UNIQUE):
        raise InvalidJob(f"duplicate key {job.key!r} in one call; nothing was written")
    keys[job.key] = job.key_mode


def check_details(
    *, priority: int | None, attempts: int | None, max_attempts: int | None, run_at: datetime | None
) -> None:
    """Check new values of a waiting job; ``None`` keeps the job's own value. Raises InvalidJob."""
    for field, number, minimum in (
        ("priority", priority, -MAX_INT32 - 1),
        ("attempts", attempts, 0),
        ("max_attempts", max_attempts, 1),
    ):
        if number is not None:
            _check_integer(field, number, minimum)
    if run_at is not None:
        _check_time(run_at, None)


def check_max_attempts(number: object) -> None:
    """Check a number of attempts: 32 bits, at least 1. Raises InvalidJob."""
    _check_integer("max_attempts", number, 1)


def check_name(field: str, name: object, limit: int) -> str:
    """Return the name if it is one line of 1 to ``limit`` characters. Raises InvalidJob."""
    text = _text(field, name)
    if not text:
        raise InvalidJob(f"{field}: empty; use 1 to {limit} characters")
    if len(text) > limit:
        raise InvalidJob(f"{field}: {len(text)} characters, the limit is {limit}")
    if not text.isprintable() and (match := _CONTROL_CHARACTERS.search(text)):
        raise InvalidJob(f"{field}: {_describe(match.group())} at position {match.start()}; use one line of text")
    return text


KEY_SEPARATOR = "\t"
"""Between the name of a limit and a key, in the stored serial key of its jobs. No serial key contains it."""


def check_serial(field: str, name: object) -> str:
    """Return the name if it is a serial key, or the key of a limit as it is stored. Raises InvalidJob."""
    if isinstance(name, str) and KEY_SEPARATOR in name:
        limit, key = name.split(KEY_SEPARATOR, 1)
        check_name(f"{field}: limit", limit, MAX_TASK_CHARACTERS)
        if key:
            check_name(f"{field}: key", key, MAX_SERIAL_CHARACTERS)
        return name
    return check_name(field, name, MAX_SERIAL_CHARACTERS)


def check_queue(field: str, name: object) -> str:
    """Return the name if it is valid for a queue. Raises InvalidJob.

    Commas and outer blanks are refused, because ``--queue a,b`` names two queues.
    """
    text = check_name(field, name, MAX_QUEUE_CHARACTERS)
    if "," in text or text != text.strip(" "):
        raise InvalidJob(
            f"{field}: {text!r}; the name of a queue must not contain a comma, or begin or end with a blank"
        )
    return text


def check_new_task(field: str, name: object) -> None:
    """Raise InvalidJob unless an application may declare a task with this name."""
    if check_name(field, name, MAX_TASK_CHARACTERS) in BUILT_IN_TASKS:
        raise InvalidJob(f"{field}: {name!r} is a built-in task of every worker; choose another name")


def read_delay(delay: object, field: str = "delay") -> float:
    """Return seconds from a timedelta, a number or a phrase. Raises InvalidJob."""
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float | str):
        raise InvalidJob(f"{field}: got {a_type(delay)}; use a timedelta, a number of seconds or a phrase such as '5m'")
    try:
        value = seconds(delay)
    except OverflowError:
        value = math.inf
    except ValueError as error:
        raise InvalidJob(f"{field}: {error}") from None
    if not math.isfinite(value):
        raise InvalidJob(f"{field}: {value}; use a finite number of seconds")
    if value < 0:
        raise InvalidJob(f"{field}: {value:g} seconds; it must not be negative")
    if value > MAX_DURATION_SECONDS:
        raise InvalidJob(f"{field}: {value:g} seconds, the limit is {MAX_DURATION_SECONDS:g} (100 years)")
    return value


def read_positive(duration: object, field: str) -> float | None:
    """Return a duration in seconds, more than 0, or ``None`` for ``None``. Raises InvalidJob."""
    value = None if duration is None else read_delay(duration, field)
    if value == 0:
        raise InvalidJob(f"{field}: 0 seconds; use more, or leave it out")
    return value


def _check_integer(field: str, number: object, minimum: int) -> None:
    # bool is a subclass of int, but True is not a priority.
    if type(number) is not int:
        raise InvalidJob(f"{field}: got {a_type(number)}; use a whole number")
    if not minimum <= number <= MAX_INT32:
        rendered = str(number) if abs(number) < 10**20 else "far too large a number"
        raise InvalidJob(f"{field}: {rendered}; the limits are {minimum} and {MAX_INT32}")


def _check_time(time: object, delay: object) -> None:
    if delay is not None:
        raise InvalidJob("run_at and delay: use one of them")
    if not isinstance(time, datetime):
        raise InvalidJob(f"run_at: got {a_type(time)}; use a datetime with a time zone")
    if time.utcoffset() is None:
        raise InvalidJob(
            f"run_at: {time.isoformat()} has no time zone; add one, as in datetime.now(UTC) or"
            " time.replace(tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    try:
        time.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(f"run_at: {time.isoformat()} is outside the years 1 to 9999 in UTC") from None


def _read_key_mode(mode: object) -> KeyMode:
    name = _text("key_mode", mode)
    if name not in tuple(KeyMode):
        raise InvalidJob(f"key_mode: {name[:40]!r}{suggest(name, KeyMode)}")
    return KeyMode(name)


def _read_flags(flags: object) -> tuple[str, ...]:
    names: tuple[Any, ...] = tuple(_read_list("flags", flags))
    if len(names) > MAX_FLAGS:
        raise InvalidJob(f"flags: {len(names)} flags, the limit is {MAX_FLAGS}")
    for name in names:
        check_name("flags", name, MAX_FLAG_CHARACTERS)
    return names


def read_forbidden(flags: object) -> tuple[str, ...]:
    """Return the flags whose jobs a worker does not claim. Raises InvalidJob."""
    if flags is None or flags == ():
        return ()
    names = tuple(dict.fromkeys(_text("forbidden flags", name) for name in _read_list("forbidden flags", flags)))
    if len(names) > MAX_FORBIDDEN_FLAGS:
        raise InvalidJob(f"forbidden flags: {len(names)} flags, the limit is {MAX_FORBIDDEN_FLAGS}")
    for name in names:
        check_name("forbidden flags", name, MAX_FLAG_CHARACTERS)
    return names


def read_names(field: str, names: object) -> tuple[str, ...]:
    """Return checked names of tasks. Raises InvalidJob."""
    return tuple(check_name(field, name, MAX_TASK_CHARACTERS) for name in _read_list(field, names))


def _read_list(field: str, names: object) -> Iterable[object]:
    # A string is iterable too: each letter would be a name.
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise InvalidJob(f"{field}: got {a_type(names)}; use a list of names")
    return names


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"{field}: got {a_type(value)}; use a string")
    return value


def _describe(character: str) -> str:
    if character == "\x00":
        return "NUL"
    if "\ud800" <= character <= "\udfff":
        return "a lone surrogate"
    return f"the control character U+{ord(character):04X}"
