"""Limits that a task declares: how many of its jobs run at the same time, and how many start per second.

A limit has a name, by default that of its task. Tasks that declare the same name share the limit. The store keeps one
row per name, and every worker obeys that row. The arithmetic of rates is here, and for PostgreSQL in limits.sql.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, a_type
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import Duration, format_duration, parse_duration, seconds
from stowhand.jobs.limits import KEY_SEPARATOR

MAX_CONCURRENCY = 1_000_000
"""Maximum of the number of jobs of a limit that run at the same time."""
MAX_RATE = 1_000_000
"""Maximum of the number of jobs of a rate, and of its burst."""
MAX_RATE_SECONDS = 366 * 86_400.0


def own_serial(stored: str | None) -> str | None:
    """Return the serial key of a job; ``None`` if the stored one is the key of a limit."""
    return None if stored is None or KEY_SEPARATOR in stored else stored


def key_name(limit: str, path: str | None, payload: str) -> str:
    """Return the name under which the key of a job is stored, for the value of an argument in its payload.

    ``path`` is ``None`` if the enqueuer computes keys, and has passed none for this job.

    PostgreSQL computes the same (limits.sql).
    """
    value: Any = None if path is None else strict_json.decode(payload)
    for name in () if path is None else path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return stored_key(limit, value or "" if isinstance(value, str | None) else strict_json.encode_plain(value))


def stored_key(limit: str, key: str) -> str:
    """Return the name under which a key of a limit is stored. Long keys are shortened by their hash."""
    if len(key) > limits.MAX_SERIAL_CHARACTERS:
        key = key[:96] + hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    return f"{limit}{KEY_SEPARATOR}{key}"


Key = str | Callable[..., object]
"""An argument of a task, or a function of some of its arguments by name."""


class Concurrency(msgspec.Struct, frozen=True):
    """At most ``limit`` jobs run at the same time, over all workers.

    Args:
        limit: Maximum number of running jobs; at least 1.
        key: An argument of the task, such as ``"customer_id"`` or ``"order.region"``: the limit is for the jobs of each
            value. Jobs without the argument share one key. Or a function of some arguments by name; then callers of SQL
            pass ``limit_key``. ``None``: for all jobs.
        name: Name of the limit. Tasks that use the same name share it. ``None``: the name of the task.
        per: ``"store"``, or ``"worker"``: in each worker process separately, for memory or a GPU. Such a limit has no
            name, and the store keeps nothing of it.
        fair: The keys take turns: among jobs of the same priority, between two claims of one key every other key with a
            due job is claimed.

    Raises:
        ConfigurationError: A value is invalid.

    """

    limit: int
    key: Key | None = None
    name: str | None = None
    per: Literal["store", "worker"] = "store"
    fair: bool = False

    def __post_init__(self) -> None:
        _check_number("Concurrency", "limit", self.limit, MAX_CONCURRENCY)
        if self.per not in ("store", "worker"):
            raise ConfigurationError(f"Concurrency: per: got {self.per!r}; use 'store' or 'worker'")
        if self.per == "worker" and (self.name is not None or self.key is not None):
            raise ConfigurationError("Concurrency: a limit per worker has no name and no key; leave them out")
        _check_name("Concurrency", "name", self.name)
        _check_key(self)


class Rate(msgspec.Struct, frozen=True):
    """At most ``limit`` jobs start in each period, over all workers: in any time t at most burst + t * limit / per.

    Args:
        limit: Number of starts in a period; at least 1.
        per: The period: seconds, a timedelta, or a phrase such as ``"1s"`` or ``"1m"``.
        key: As with ``Concurrency``.
        name: Name of the limit. Tasks that use the same name share it. ``None``: the name of the task.
        burst: Number of jobs that may start at once after a pause. With 1 the starts are evenly spaced.
        fair: As with ``Concurrency``.

    Raises:
        ConfigurationError: A value is invalid.

    """

    limit: int
    per: Duration = 1.0
    key: Key | None = None
    name: str | None = None
    burst: int = 1
    fair: bool = False

    def __post_init__(self) -> None:
        _check_number("Rate", "limit", self.limit, MAX_RATE)
        _check_number("Rate", "burst", self.burst, MAX_RATE)
        try:
            period = seconds(self.per)
        except ValueError as error:
            raise ConfigurationError(f"Rate: per: {error}") from None
        if not 0.001 <= period <= MAX_RATE_SECONDS:
            raise ConfigurationError(f"Rate: per: got {self.per!r}; use 1 ms to 366 days")
        msgspec.structs.force_setattr(self, "per", period)
        _check_name("Rate", "name", self.name)
        _check_key(self)

    @property
    def period(self) -> float:
        """The period in seconds."""
        return seconds(self.per)


class LimitValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of one limit in a store. ``None``: not limited in this respect."""

    concurrency: int | None = None
    rate: int | None = None
    rate_seconds: float | None = None
    burst: int | None = None
    key_concurrency: int | None = None
    """This and the following are for each key."""
    key_rate: int | None = None
    key_rate_seconds: float | None = None
    key_burst: int | None = None

    @property
    def has_rate(self) -> bool:
        """Whether any value of the rate is set."""
        return any(value is not None for value in (self.rate, self.rate_seconds, self.burst))

    def of_keys(self) -> LimitValues:
        """Return the values for each key as those of a limit."""
        return LimitValues(self.key_concurrency, self.key_rate, self.key_rate_seconds, self.key_burst)

    def __str__(self) -> str:
        parts = [*_describe(self), *(f"{part} per key" for part in _describe(self.of_keys()))]
        return ", ".join(parts) or "no limit"

    @property
    def rate_text(self) -> str:
        """The rate, such as ``5 per 1s, burst 10``; empty without one."""
        return next(_describe(LimitValues(rate=self.rate, rate_seconds=self.rate_seconds, burst=self.burst)), "")


def _describe(values: LimitValues) -> Iterator[str]:
    if values.concurrency is not None:
        yield f"{values.concurrency} at once"
    if values.rate is not None and values.rate_seconds is not None:
        burst = f", burst {values.burst}" if (values.burst or 1) > 1 else ""
        yield f"{values.rate} per {format_duration(values.rate_seconds)}{burst}"


class TaskLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one task: the names of those in the store, and the number of running jobs in each worker."""

    concurrency: str | None = None
    rate: str | None = None
    key_limit: str | None = None
    """The limit with keys."""
    key: str | None = None
    """The argument that is the key; ``None``: the enqueuer computes it."""
    fair: bool = False
    """Whether the keys take turns."""
    per_worker: int | None = None

    @property
    def names(self) -> set[str]:
        """The names of its limits in the store."""
        return {name for name in (self.concurrency, self.rate, self.key_limit) if name is not None}


NO_LIMITS = TaskLimits()


class TaskDeclarations(msgspec.Struct, frozen=True):
    """What a worker's tasks declare, for the store: producers and other workers may not know the tasks."""

    queues: Mapping[str, str] = {}
    """The queue of each task."""
    tasks: Mapping[str, TaskLimits] = {}
    """The tasks with limits in the store."""
    limits: Mapping[str, LimitValues] = {}
    """The values of these limits, by name."""


NO_DECLARATIONS = TaskDeclarations()


class DeclaredLimits(msgspec.Struct, frozen=True):
    """The limits of one task as it declares them."""

    limits: TaskLimits = NO_LIMITS
    values: Mapping[str, LimitValues] = {}
    """The values of those in the store, by name."""
    key_function: Callable[..., object] | None = None


def read_limits(task: str, declared: object) -> DeclaredLimits:
    """Return the limits of a task. Raises ConfigurationError."""
    if declared is None:
        return DeclaredLimits()
    if isinstance(declared, Concurrency | Rate):
        declared = [declared]
    if not isinstance(declared, Iterable) or isinstance(declared, str | bytes | Mapping):
        raise ConfigurationError(f"limits: got {a_type(declared)}; use a list of Concurrency(…) and Rate(…)")
    kinds: set[str] = set()
    names: dict[str, Any] = {}
    values: dict[str, LimitValues] = {}
    for limit in declared:
        kind, own_names, own_values = _read_limit(task, limit)
        if kind in kinds:
            raise ConfigurationError(f"limits: two limits of the same kind: {kind}; use one of them")
        kinds.add(kind)
        if any(names.get(field, name) != name for field, name in own_names.items()):
            raise ConfigurationError("limits: a task has one key; use the same key and name in both limits")
        names |= own_names
        if isinstance(limit, Concurrency | Rate) and limit.fair:
            names["fair"] = True
        for name in (own_names[field] for field in ("concurrency", "rate", "key_limit") if field in own_names):
            values[name] = merge(values.get(name), own_values)
    key = names.get("key")
    if callable(key):
        names["key"] = None
    return DeclaredLimits(TaskLimits(**names), values, key if callable(key) else None)


def _read_limit(task: str, limit: object) -> tuple[str, dict[str, Any], LimitValues]:
    """Return the kind of a limit, the fields of ``TaskLimits``, and the values for the store."""
    match limit:
        case Concurrency(number, _, _, "worker"):
            return "Concurrency(…, per='worker')", {"per_worker": number}, LimitValues()
        case Concurrency(number, None, name):
            return "Concurrency", {"concurrency": name or task}, LimitValues(concurrency=number)
        case Concurrency(number, key, name):
            keyed = {"key_limit": name or task, "key": key}
            return "Concurrency(…, key=…)", keyed, LimitValues(key_concurrency=number)
        case Rate(number, _, None, name, burst):
            return "Rate", {"rate": name or task}, LimitValues(rate=number, rate_seconds=limit.period, burst=burst)
        case Rate(number, _, key, name, burst):
            keyed = {"key_limit": name or task, "key": key}
            values = LimitValues(key_rate=number, key_rate_seconds=limit.period, key_burst=burst)
            return "Rate(…, key=…)", keyed, values
        case type() if limit in (Concurrency, Rate):
            raise ConfigurationError(f"limits: got the class {limit.__name__}; use {limit.__name__}(…)")
        case _:
            raise ConfigurationError(f"limits: got {a_type(limit)}; use Concurrency(…) or Rate(…)")


def merge(first: LimitValues | None, second: LimitValues) -> LimitValues:
    """Return the values of both declarations of one name. Raises ConfigurationError if they contradict each other."""
    if first is None:
        return second
    merged = {}
    for field in LimitValues.__struct_fields__:
        own, other = getattr(first, field), getattr(second, field)
        if own is not None and other is not None and own != other:
            raise ConfigurationError(f"two declarations of one limit: {first}, and {second}; use the same values")
        merged[field] = own if other is None else other
    return LimitValues(**merged)


def parse_rate(text: str) -> tuple[int, float]:
    """Return the number and the period in seconds of a text such as ``5/1s``. Raises ValueError."""
    number, separator, period = text.partition("/")
    if not (separator and number.strip().isdecimal()):
        raise ValueError(f"{text!r} is not a rate; write for example 5/1s or 100/1m")
    return int(number), parse_duration(period)


def format_rate(values: LimitValues) -> str:
    """Return the rate as ``parse_rate`` reads it; empty without one."""
    if values.rate is None or values.rate_seconds is None:
        return ""
    return f"{values.rate}/{format_duration(values.rate_seconds)}"


def check_changes(name: str, changes: LimitValues) -> None:
    """Check the values of an override, of which a concurrency may be 0. Raises InvalidJob."""
    if changes == LimitValues():
        raise InvalidJob(f"limit {name!r}: no value is given; use a concurrency, a rate or a burst")
    _check_each(name, changes, LimitValues(rate=1, rate_seconds=1.0), least_concurrency=0)


def unknown_limit(name: str) -> InvalidJob:
    """Return the error for a limit that is not in the store."""
    return InvalidJob(f"there is no limit {name!r}: a worker declares limits when it starts")


def refuse_undeclared(name: str, declared: LimitValues, changes: LimitValues) -> None:
    """Raise InvalidJob if the changes are of a kind that the limit's tasks do not declare."""
    if changes.concurrency is not None and declared.concurrency is None:
        raise InvalidJob(f"limit {name!r} has no concurrency: its tasks declare none")
    if declared.rate is None and changes.has_rate:
        raise InvalidJob(f"limit {name!r} has no rate: its tasks declare none")
    if changes.key_concurrency is not None and declared.key_concurrency is None:
        raise InvalidJob(f"limit {name!r} has no concurrency per key: its tasks declare none")
    if declared.key_rate is None and changes.of_keys().has_rate:
        raise InvalidJob(f"limit {name!r} has no rate per key: its tasks declare none")


def check_values(name: str, values: LimitValues) -> LimitValues:
    """Return the values of a limit if a task could declare them. Raises InvalidJob."""
    limits.check_name("limit", name, limits.MAX_TASK_CHARACTERS)
    _check_each(name, values, LimitValues(rate=0, rate_seconds=0.0), least_concurrency=1)
    return values


def _check_each(name: str, values: LimitValues, absent: LimitValues, *, least_concurrency: int) -> None:
    """Raise InvalidJob if a value is out of range. ``absent``: the values of a rate in place of those that are None."""
    try:
        for own in (values, values.of_keys()):
            if own.concurrency is not None and own.concurrency != least_concurrency:
                Concurrency(own.concurrency)
            if own.has_rate:
                rate = overridden(absent, own)
                assert rate.rate is not None
                assert rate.rate_seconds is not None
                Rate(rate.rate, rate.rate_seconds, burst=1 if rate.burst is None else rate.burst)
    except ConfigurationError as error:
        raise InvalidJob(f"limit {name!r}: {error}") from None


def next_start(values: LimitValues, stored: float | None, now: float) -> float:
    """Return the start of the next job of a rate if all starts were evenly spaced (GCRA).

    Times are seconds of one clock. ``stored`` is this time after the last start; ``None``: none has started. It is at
    most ``burst`` intervals and a delay ahead, unless the clock was set back or the limit was changed: then it is
    ignored.
    """
    return now if stored is None or _is_ignored(values, stored, now) else max(stored, now)


def closed_until(values: LimitValues, stored: float | None, now: float) -> float:
    """Return the time at which a rate lets, or has let, the next job start; 0 if it has not been closed."""
    if stored is None or _is_ignored(values, stored, now):
        return 0.0
    return stored - ((values.burst or 1) - 1) * _interval(values)


def _is_ignored(values: LimitValues, stored: float, now: float) -> bool:
    return stored > now + (values.burst or 1) * _interval(values) + _MAX_DELAY_SECONDS


def starts_allowed(values: LimitValues, stored: float | None, now: float) -> int:
    """Return how many jobs of a rate may start now."""
    ahead = (next_start(values, stored, now) - now) / _interval(values)
    return max(int((values.burst or 1) - ahead + _ROUNDING), 0)


def after_starts(values: LimitValues, stored: float | None, now: float, number: int) -> float:
    """Return the value to store when this many jobs start now."""
    return next_start(values, stored, now) + number * _interval(values)


def rate_opens_at(values: LimitValues, stored: float | None, now: float) -> float:
    """Return the time from which a job of a rate may start."""
    return next_start(values, stored, now) - ((values.burst or 1) - 1) * _interval(values)


def _interval(values: LimitValues) -> float:
    """Return the seconds between two starts that are evenly spaced."""
    assert values.rate is not None
    assert values.rate_seconds is not None
    return values.rate_seconds / values.rate


_MAX_DELAY_SECONDS = 5.0
"""A slow claim uses a time that it has read before. By then, a later claim may have moved the start of the next job. To
ignore that start would exceed the rate."""
_ROUNDING = 1e-6
"""Starts are counted in whole numbers: an allowance of 0.9999999 is one start."""


OTHER_LIMITS = "and a Budget for a table of yours (stowhand.table), or the Limiter of a flow's queue"
"""What limits jobs that have no task."""


def refuse_limits(function: object, place: str) -> None:
    """Raise ConfigurationError if the function is a task that declares limits. ``place``: where they do not hold."""
    if isinstance(own := getattr(function, "limits", None), TaskLimits) and own != NO_LIMITS:
        raise ConfigurationError(
            f"{place}: this task declares limits, which hold only for the jobs of its App; use a function without"
            f" limits, {OTHER_LIMITS}"
        )


def overridden(declared: LimitValues, override: LimitValues) -> LimitValues:
    """Return the values in effect: those of the override where it has some."""
    changes = {name: value for name in LimitValues.__struct_fields__ if (value := getattr(override, name)) is not None}
    return msgspec.structs.replace(declared, **changes)


def _check_number(kind: str, field: str, value: object, maximum: int) -> None:
    if type(value) is not int or not 1 <= value <= maximum:
        raise ConfigurationError(f"{kind}: {field}: got {value!r}; use a whole number from 1 to {maximum:,}")


def _check_key(limit: Concurrency | Rate) -> None:
    kind = type(limit).__name__
    _check_name(kind, "key", None if callable(limit.key) else limit.key)
    if type(limit.fair) is not bool:
        raise ConfigurationError(f"{kind}: fair: got {limit.fair!r}; use True or False")
    if limit.fair and limit.key is None:
        raise ConfigurationError(f"{kind}: fair: keys take turns, and this limit has none; add a key")


def _check_name(kind: str, field: str, name: object) -> None:
    if name is not None:
        try:
            limits.check_name(field, name, limits.MAX_TASK_CHARACTERS)
        except InvalidJob as error:
            raise ConfigurationError(f"{kind}: {error}") from None
