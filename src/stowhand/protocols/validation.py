"""Validates the arguments of a queue store's methods, as ``limits`` validates jobs. Each function raises InvalidJob."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from stowhand.errors import InvalidJob, a_type, suggest
from stowhand.jobs import limits
from stowhand.jobs.job import State
from stowhand.jobs.text import clean
from stowhand.protocols.queue_store import LEDGER_DAYS, JobFilter, Reschedule, Tick
from stowhand.protocols.search import MAX_SEARCH_RESULTS, Search, parse_position
from stowhand.protocols.throughput import MINUTE_SECONDS

IDENTIFIER_LIMIT = 256
"""Maximum characters of a crontab item's identifier."""
MAX_SEARCH_TEXT_LENGTHS = {
    "task": limits.MAX_TASK_CHARACTERS,
    "queue": limits.MAX_QUEUE_CHARACTERS,
    "serial": limits.MAX_SERIAL_CHARACTERS,
    "key": limits.MAX_KEY_CHARACTERS,
    "flag": limits.MAX_FLAG_CHARACTERS,
    "worker": 1000,
    "error": 1000,
}
"""Maximum characters of each text of a search."""
UNKNOWN_JOB_ID = 0
"""An id that no job has."""
MANUALLY_FAILED = "Manually marked as failed"


def validate_id(job_id: int, field: str = "job_id") -> int:
    """Return the id; ``UNKNOWN_JOB_ID`` for a number that no job can have, so that no job is found."""
    if type(job_id) is not int:
        raise InvalidJob(f"{field}: got {a_type(job_id)}; {_id_advice(job_id)}")
    return job_id if 0 < job_id < 2**63 else UNKNOWN_JOB_ID


def _id_advice(value: object) -> str:
    if isinstance(value, str) and value.isdecimal():
        return f"use a number: int({value!r})"
    if isinstance(getattr(value, "id", None), int):  # a handle, or a job
        return "use its id: job.id"
    return "use a whole number"


def validate_key(key: str) -> str:
    """Return the key; the empty key, which no job has, for a text that no store can keep."""
    if not isinstance(key, str):
        raise InvalidJob(f"key: got {a_type(key)}; use a string")
    return key if is_storable(key) else ""


def validate_step(since: datetime, until: datetime, step: float) -> int:
    """Return the step in whole seconds."""
    _check_time("since", since)
    _check_time("until", until)
    if not (step >= MINUTE_SECONDS and step % MINUTE_SECONDS == 0):
        raise InvalidJob(f"step: {step:g} s; throughput is kept by the minute: use 60 or a multiple of it")
    return int(step)


def validate_filter(job_filter: JobFilter) -> JobFilter:
    """Return the filter. Names that no store can keep are replaced by empty ones, which match nothing."""
    if not isinstance(job_filter, JobFilter):
        raise InvalidJob(f"{a_type(job_filter)} is not a filter; use a JobFilter, as in JobFilter(states=('failed',))")
    job_filter = msgspec.structs.replace(job_filter, states=_read_states(job_filter.states))
    _check_times(job_filter)
    names = {
        field: _read_name(field, getattr(job_filter, field)) for field in MAX_SEARCH_TEXT_LENGTHS if field != "flag"
    }
    unknown: dict[str, str | None]
    unknown = {field: "" for field, name in names.items() if name is not None and not is_storable(name)}
    if "error" in unknown:  # every error contains the empty text, so the empty key makes the filter match nothing
        unknown |= {"key": "", "error": None}
    elif job_filter.error == "":
        unknown["error"] = None
    return msgspec.structs.replace(job_filter, **unknown) if unknown else job_filter


def validate_search(search: Search) -> Search | None:
    """Return the search; ``None`` if it cannot match anything, because no store can keep one of its texts."""
    if not isinstance(search, Search):
        raise InvalidJob(f"{a_type(search)} is not a search; use a Search, as in Search(states=('failed',))")
    if not 1 <= search.limit <= MAX_SEARCH_RESULTS:
        raise InvalidJob(f"limit: {search.limit}; use 1 to {MAX_SEARCH_RESULTS}")
    search = msgspec.structs.replace(search, states=_read_states(search.states))
    _check_times(search)
    for field, max_length in MAX_SEARCH_TEXT_LENGTHS.items():
        text = _read_name(field, getattr(search, field))
        if text is not None and len(text) > max_length:
            raise InvalidJob(f"{field}: {len(text)} characters; use at most {max_length}")
        if text is not None and not is_storable(text):
            return None
    parse_position(search)
    return msgspec.structs.replace(search, error=None) if search.error == "" else search


def _read_states(value: Iterable[State]) -> tuple[State, ...]:
    _refuse_text("states", value, "a tuple, as in states=('failed',)")
    states = []
    for state in value:
        try:
            states.append(State(state))
        except ValueError:
            raise InvalidJob(f"states: {state!r}{suggest(state, State)}") from None
    return tuple(states)


def _check_times(search: JobFilter | Search) -> None:
    for field in ("since", "until"):
        if getattr(search, field) is not None:
            _check_time(field, getattr(search, field))


def _check_time(field: str, time: object) -> None:
    if not isinstance(time, datetime):
        raise InvalidJob(f"{field}: got {a_type(time)}; use a datetime: datetime.now(UTC) - timedelta(hours=2)")
    if time.tzinfo is None:
        raise InvalidJob(f"{field}: {time} has no time zone; use for example datetime.now(UTC)")


def _read_name(field: str, name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidJob(f"{field}: got {a_type(name)}; use a text")
    return name


def is_storable(text: str) -> bool:
    """Return whether every store can keep the text: it contains neither NUL nor a lone surrogate."""
    return clean(text, 4 * len(text)) == text


def validate_ids(job_ids: Iterable[int]) -> list[int]:
    """Return each id once, in order. Numbers that no job can have are left out, since unknown ids are not errors."""
    _refuse_text("job_ids", job_ids, "a list of numbers")
    return sorted({validate_id(job_id, "job_ids") for job_id in job_ids} - {UNKNOWN_JOB_ID})


def validate_workers(workers: Iterable[str]) -> list[str]:
    """Return the names, without those that no store can keep, because no worker has them."""
    _refuse_text("workers", workers, "a list of names")
    names = list(workers)
    for name in names:
        if not isinstance(name, str):
            raise InvalidJob(f"workers: the list contains {a_type(name)}; use names")
    return [name for name in names if is_storable(name)]


def _refuse_text(field: str, value: object, instead: str) -> None:
    # A string is iterable too, but each of its letters would become an element.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidJob(f"{field}: got {a_type(value)}; use {instead}")


def validate_reschedule(to: Reschedule) -> Reschedule:
    """Return the changes, if a job may have these values."""
    if not isinstance(to, Reschedule):
        raise InvalidJob(f"to: got {a_type(to)}; use a Reschedule")
    limits.check_details(priority=to.priority, attempts=to.attempts, max_attempts=to.max_attempts, run_at=to.run_at)
    if to.queue is not None:
        limits.check_queue("queue", to.queue)
    return to


def validate_reason(reason: str | None) -> str:
    """Return the reason of ``permanently_fail_jobs``, without characters that cannot be stored."""
    if reason is None:
        return MANUALLY_FAILED
    if not isinstance(reason, str):
        raise InvalidJob(f"reason: got {a_type(reason)}; use a text")
    return clean(reason)


def validate_identifier(identifier: str) -> str:
    """Return the identifier of a crontab's item."""
    return limits.check_name("identifier", identifier, IDENTIFIER_LIMIT)


def validate_items(items: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the identifiers with their specs."""
    return [(validate_identifier(identifier), _check_spec(identifier, spec)) for identifier, spec in items]


def validate_ticks(ticks: Iterable[Tick], now: datetime) -> list[Tick]:
    """Return the ticks, if they are whole minutes that are not older than the ledger's retention."""
    return [_check_tick(tick, now - timedelta(days=LEDGER_DAYS)) for tick in ticks]


def _check_tick(tick: Tick, oldest: datetime) -> Tick:
    name = validate_identifier(tick.identifier)
    at: object = tick.at
    if not isinstance(at, datetime) or at.utcoffset() is None or at.second or at.microsecond:
        raise InvalidJob(f"{name}: a tick at {at}; use a whole minute with a time zone")
    if at < oldest:
        raise InvalidJob(
            f"{name}: a tick at {at.isoformat()} is older than {LEDGER_DAYS} days, for which the ledger keeps ticks:"
            " it may have been scheduled already"
        )
    _check_spec(name, tick.spec)
    return msgspec.structs.replace(tick, job=limits.check(tick.job, built_in=True))


def _check_spec(identifier: str, spec: str) -> str:
    if not isinstance(spec, str):
        raise InvalidJob(f"{identifier}: its spec is {a_type(spec)}; use a text")
    if not is_storable(spec):
        raise InvalidJob(f"{identifier}: its spec contains NUL or a lone surrogate, which some stores cannot keep")
    return spec


NO_DEFAULT_ATTEMPTS = (
    "only a PostgreSQL schema stores a default number of attempts; here the enqueuer, the task or the preset sets it"
)
"""The reason for stores whose jobs all come from this package, so that nothing would use a default of the schema."""
