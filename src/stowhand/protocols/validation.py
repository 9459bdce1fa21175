"""Validates the arguments of a queue store's methods, as ``limits`` validates jobs. Raises InvalidJob."""

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
"""Characters of a crontab item's identifier."""
MAX_SEARCH_TEXT_LENGTHS = {
    "task": limits.MAX_TASK_CHARACTERS,
    "queue": limits.MAX_QUEUE_CHARACTERS,
    "serial": limits.MAX_SERIAL_CHARACTERS,
    "key": limits.MAX_KEY_CHARACTERS,
    "flag": limits.MAX_FLAG_CHARACTERS,
    "worker": 1000,
    "error": 1000,
}
"""Characters of what is searched for, at most."""
UNKNOWN_JOB_ID = 0
"""An id that no job has."""
MANUALLY_FAILED = "Manually marked as failed"


def validate_id(job_id: int, field: str = "job_id") -> int:
    """The id; ``NO_JOB`` for a number that no job can have, so that it is not found, like any unknown id."""
    if type(job_id) is not int:
        raise InvalidJob(f"{field}: {a_type(job_id)}; {_how_to_give_id(job_id)}")
    return job_id if 0 < job_id < 2**63 else UNKNOWN_JOB_ID


def _how_to_give_id(value: object) -> str:
    if isinstance(value, str) and value.isdecimal():
        return f"give a number: int({value!r})"
    if isinstance(getattr(value, "id", None), int):  # a handle, or a job
        return "give its id: job.id"
    return "give a whole number"


def validate_key(key: str) -> str:
    """The key; an empty one, which no job has, for a text that no store can keep."""
    if not isinstance(key, str):
        raise InvalidJob(f"key: {a_type(key)}; give a string")
    return key if is_storable(key) else ""


def validate_step(since: datetime, until: datetime, step: float) -> int:
    """The step in whole seconds."""
    _check_time("since", since)
    _check_time("until", until)
    if not (step >= MINUTE_SECONDS and step % MINUTE_SECONDS == 0):
        raise InvalidJob(f"step: {step:g} s; figures are kept by the minute: give 60 or a multiple of it")
    return int(step)


def validate_filter(job_filter: JobFilter) -> JobFilter:
    """The filter; names that no store can keep are replaced by empty ones, which nothing has."""
    if not isinstance(job_filter, JobFilter):
        raise InvalidJob(f"{a_type(job_filter)} is no filter; give a JobFilter, as in JobFilter(states=('failed',))")
    job_filter = msgspec.structs.replace(job_filter, states=_read_states(job_filter.states))
    _check_times(job_filter)
    names = {
        field: _read_name(field, getattr(job_filter, field)) for field in MAX_SEARCH_TEXT_LENGTHS if field != "flag"
    }
    unknown: dict[str, str | None]
    unknown = {field: "" for field, name in names.items() if name is not None and not is_storable(name)}
    if "error" in unknown:  # every error contains the empty text: the empty key makes the filter find nothing
        unknown |= {"key": "", "error": None}
    elif job_filter.error == "":
        unknown["error"] = None
    return msgspec.structs.replace(job_filter, **unknown) if unknown else job_filter


def validate_search(search: Search) -> Search | None:
    """The search; ``None`` where nothing can be found: no store can keep such a name. Raises InvalidJob."""
    if not isinstance(search, Search):
        raise InvalidJob(f"{a_type(search)} is no search; give a Search, as in Search(states=('failed',))")
    if not 1 <= search.limit <= MAX_SEARCH_RESULTS:
        raise InvalidJob(f"limit: {search.limit}; give 1 to {MAX_SEARCH_RESULTS}")
    search = msgspec.structs.replace(search, states=_read_states(search.states))
    _check_times(search)
    for field, max_length in MAX_SEARCH_TEXT_LENGTHS.items():
        text = _read_name(field, getattr(search, field))
        if text is not None and len(text) > max_length:
            raise InvalidJob(f"{field}: {len(text)} characters; {max_length} at most")
        if text is not None and not is_storable(text):
            return None
    parse_position(search)
    return msgspec.structs.replace(search, error=None) if search.error == "" else search


def _read_states(value: Iterable[State]) -> tuple[State, ...]:
    _refuse_text("states", value, "several, as in states=('failed',)")
    states = []
    for one in value:
        try:
            states.append(State(one))
        except ValueError:
            raise InvalidJob(f"states: {one!r}{suggest(one, State)}") from None
    return tuple(states)


def _check_times(search: JobFilter | Search) -> None:
    for field in ("since", "until"):
        if getattr(search, field) is not None:
            _check_time(field, getattr(search, field))


def _check_time(field: str, time: object) -> None:
    if not isinstance(time, datetime):
        raise InvalidJob(f"{field}: {a_type(time)}; give a moment: datetime.now(UTC) - timedelta(hours=2)")
    if time.tzinfo is None:
        raise InvalidJob(f"{field}: {time} has no time zone; give for example datetime.now(UTC)")


def _read_name(field: str, name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidJob(f"{field}: {a_type(name)}; give a text")
    return name


def is_storable(text: str) -> bool:
    """It contains neither NUL nor a lone surrogate."""
    return clean(text, 4 * len(text)) == text


def validate_ids(job_ids: Iterable[int]) -> list[int]:
    """Each id once, in order. Numbers that no job can have are left out: unknown ids are no error."""
    _refuse_text("job_ids", job_ids, "a list of numbers")
    return sorted({validate_id(one, "job_ids") for one in job_ids} - {UNKNOWN_JOB_ID})


def validate_workers(workers: Iterable[str]) -> list[str]:
    """The names, without those that no store can keep: no worker has them."""
    _refuse_text("workers", workers, "a list of names")
    names = list(workers)
    for name in names:
        if not isinstance(name, str):
            raise InvalidJob(f"workers: {a_type(name)} among them; give names")
    return [name for name in names if is_storable(name)]


def _refuse_text(field: str, value: object, instead: str) -> None:
    # A single string is iterable too: every letter would be an element.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidJob(f"{field}: {a_type(value)}; give {instead}")


def validate_reschedule(to: Reschedule) -> Reschedule:
    """The changes, if a job may have these values."""
    if not isinstance(to, Reschedule):
        raise InvalidJob(f"to: {a_type(to)}; give a Reschedule")
    limits.check_details(priority=to.priority, attempts=to.attempts, max_attempts=to.max_attempts, run_at=to.run_at)
    if to.queue is not None:
        limits.check_queue("queue", to.queue)
    return to


def validate_reason(reason: str | None) -> str:
    """The reason of ``permanently_fail_jobs``, safe to store."""
    if reason is None:
        return MANUALLY_FAILED
    if not isinstance(reason, str):
        raise InvalidJob(f"reason: {a_type(reason)}; give a text")
    return clean(reason)


def validate_identifier(identifier: str) -> str:
    """The name of an item of a crontab."""
    return limits.check_name("identifier", identifier, IDENTIFIER_LIMIT)


def validate_items(items: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Identifiers and their specs."""
    return [(validate_identifier(identifier), _check_spec(identifier, spec)) for identifier, spec in items]


def validate_ticks(ticks: Iterable[Tick], now: datetime) -> list[Tick]:
    """The ticks: whole minutes that the ledger still remembers; whether older ones were scheduled is not known."""
    return [_check_tick(tick, now - timedelta(days=LEDGER_DAYS)) for tick in ticks]


def _check_tick(tick: Tick, oldest: datetime) -> Tick:
    name = validate_identifier(tick.identifier)
    at: object = tick.at
    if not isinstance(at, datetime) or at.utcoffset() is None or at.second or at.microsecond:
        raise InvalidJob(f"{name}: a tick at {at}; give a whole minute with a time zone")
    if at < oldest:
        raise InvalidJob(
            f"{name}: a tick at {at.isoformat()} is older than {LEDGER_DAYS} days, which is as far as the"
            " ledger remembers: it might have been scheduled before"
        )
    _check_spec(name, tick.spec)
    return msgspec.structs.replace(tick, job=limits.check(tick.job, built_in=True))


def _check_spec(identifier: str, spec: str) -> str:
    if not isinstance(spec, str):
        raise InvalidJob(f"{identifier}: its spec is {a_type(spec)}; give a text")
    if not is_storable(spec):
        raise InvalidJob(f"{identifier}: its spec holds NUL or a lone surrogate, which not every store can hold")
    return spec


NO_DEFAULT_ATTEMPTS = (
    "how many attempts a job has for which none is given is a setting of a PostgreSQL schema; here the call, the task"
    " or the preset says it"
)
"""For stores whose jobs all come from this package: a default in the schema would have no user."""
