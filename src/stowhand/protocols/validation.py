"""What an administrator and a timetable may be asked for; ``limits`` says the same of jobs. They raise InvalidJob."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NoReturn

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.text import clean
from stowhand.protocols.queue_store import LEDGER_DAYS, JobFilter, Reschedule, Tick

IDENTIFIER_LIMIT = 256
"""Characters of a crontab item's identifier."""
NOBODY = 0
"""The number of no job."""
MANUALLY_FAILED = "Manually marked as failed"


def validate_id(job_id: int, field: str = "job_id") -> int:
    """The number; NOBODY's for one that no job can have, so that it is found as little as any unknown one."""
    if type(job_id) is not int:
        raise InvalidJob(f"{field}: a {type(job_id).__qualname__}; give a whole number")
    return job_id if 0 < job_id < 2**63 else NOBODY


def wrong_connection(connection: object, wanted: str) -> ConfigurationError:
    """What to raise where ``enqueue_in`` was given what is no connection of the store's driver."""
    kind = type(connection)
    hint = (
        "; SQLAlchemy hands over its driver's: session.connection().connection.driver_connection, or, asynchronous,"
        " (await (await session.connection()).get_raw_connection()).driver_connection"
        if kind.__module__.partition(".")[0] == "sqlalchemy"
        else ""
    )
    return ConfigurationError(f"enqueue_in needs {wanted}, not a {kind.__module__}.{kind.__qualname__}{hint}")


def validate_key(key: str) -> str:
    """The key; an empty one, which no job bears, for what no store could hold."""
    if not isinstance(key, str):
        raise InvalidJob(f"key: a {type(key).__qualname__}; give a string")
    return key if is_storable(key) else ""


def validate_filter(wanted: JobFilter) -> JobFilter:
    """The same, with empty names, which nothing bears, for what no store could hold."""
    names = {field: getattr(wanted, field) for field in ("task", "queue", "key", "worker", "error")}
    for field in ("since", "until"):
        if (moment := getattr(wanted, field)) is not None and moment.tzinfo is None:
            raise InvalidJob(f"{field}: {moment} has no time zone; give for example datetime.now(UTC)")
    unknown: dict[str, str | None]
    unknown = {field: "" for field, name in names.items() if name is not None and not is_storable(name)}
    if "error" in unknown:  # an empty text would be in every error: that nothing is found says the key
        unknown |= {"key": "", "error": None}
    elif wanted.error == "":
        unknown["error"] = None
    return msgspec.structs.replace(wanted, **unknown) if unknown else wanted


def is_storable(text: str) -> bool:
    """Neither NUL nor a lone surrogate in it."""
    return clean(text, 4 * len(text)) == text


def validate_ids(job_ids: Iterable[int]) -> list[int]:
    """Each id once, in order. Numbers that no job can have are left out: to name an unknown job is harmless."""
    _refuse_text("job_ids", job_ids, "a list of numbers")
    return sorted({validate_id(one, "job_ids") for one in job_ids} - {NOBODY})


def validate_workers(workers: Iterable[str]) -> list[str]:
    """The names; what no store could hold, no worker is called."""
    _refuse_text("workers", workers, "a list of names")
    names = list(workers)
    for name in names:
        if not isinstance(name, str):
            raise InvalidJob(f"workers: a {type(name).__qualname__} among them; give names")
    return [name for name in names if is_storable(name)]


def _refuse_text(field: str, given: object, instead: str) -> None:
    # A lone text is iterable too, and every letter of it would be one of many.
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidJob(f"{field}: a {type(given).__qualname__}; give {instead}")


def validate_reschedule(to: Reschedule) -> Reschedule:
    """The values that a job may have, and no others."""
    if not isinstance(to, Reschedule):
        raise InvalidJob(f"to: a {type(to).__qualname__}; give a Reschedule")
    limits.check_details(priority=to.priority, attempts=to.attempts, max_attempts=to.max_attempts, run_at=to.run_at)
    return to


def validate_reason(reason: str | None) -> str:
    """Why jobs are failed by hand, safe to store."""
    if reason is None:
        return MANUALLY_FAILED
    if not isinstance(reason, str):
        raise InvalidJob(f"reason: a {type(reason).__qualname__}; give a text")
    return clean(reason)


def validate_identifier(identifier: str) -> str:
    """The name of an item of a crontab."""
    return limits.check_name("identifier", identifier, IDENTIFIER_LIMIT)


def validate_items(items: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Identifiers and their specs."""
    return [(validate_identifier(identifier), _check_spec(identifier, spec)) for identifier, spec in items]


def validate_ticks(ticks: Iterable[Tick], now: datetime) -> list[Tick]:
    """Whole minutes that the ledger still remembers: of older ones nobody could say whether they were scheduled."""
    return [_check_tick(tick, now - timedelta(days=LEDGER_DAYS)) for tick in ticks]


def validate_since(since: datetime) -> datetime:
    """Where a look at the ledger begins."""
    given: object = since
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise InvalidJob(f"since: {given}; give a moment with a time zone")
    return given


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
        raise InvalidJob(f"{identifier}: its spec is a {type(spec).__qualname__}; give a text")
    if clean(spec, 4 * len(spec)) != spec:
        raise InvalidJob(f"{identifier}: its spec holds NUL or a lone surrogate, which not every store can hold")
    return spec


def refuse_default_attempts() -> NoReturn:
    """Where every job comes from this package there is nobody for whom such a number would be kept."""
    raise ConfigurationError(
        "how many attempts a job has for which nobody says it is a setting of a PostgreSQL schema; here the call, the"
        " task or the preset says it"
    )
