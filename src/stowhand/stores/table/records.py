"""Rows become records: dicts, or what the options say; and the key is found in them.

A row of which no record can be made becomes an ``Unreadable``: its attempt fails, the others go on.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Unreadable
from stowhand.jobs.text import clean
from stowhand.stores.table.names import MOMENTS

LOGS = "execution_logs"
ERROR_LIMIT = 2048


class Records:
    """Makes records of rows, as the options say."""

    def __init__(
        self,
        record: type | None,
        scan: Callable[[Sequence[Any]], Any] | None,
        record_id: Callable[[Any], Any] | None,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self._scan = scan
        self._record = record
        self._record_id = record_id
        own = {name: name for name in ("id", *MOMENTS)} | dict(columns or {})
        self._keys = dict.fromkeys(("id", own["id"]))
        self._moments = frozenset(MOMENTS) | {own[name] for name in MOMENTS}
        self._fields = None if record is None else fields_of(record)

    def read(self, names: Sequence[str], values: Sequence[Any]) -> Any:
        """A record, or an Unreadable. Never raises."""
        try:
            return self.make(names, values)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: scan is the user's, and one row must not stop the others
            return Unreadable(_in_one_line(error))

    def make(self, names: Sequence[str], values: Sequence[Any]) -> Any:
        """A record. Raises whatever ``scan`` or the type raises."""
        if self._scan is not None:
            return _no_coroutine(self._scan(values))
        row = dict(zip(names, values, strict=True))
        return row if self._record is None else self._typed(row, self._record)

    def from_row(self, names: Sequence[str] | None, row: Any) -> Any:
        """As ``make``, of a row that may have names of its own."""
        if isinstance(row, Mapping):
            return self.make(list(row), list(row.values()))
        return self.make(names or (), row)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Fields without which no record can be made, and which such rows lack."""
        return [field for field, required in (self._fields or {}).items() if required and field not in names]

    def key(self, record: Any) -> Any:
        """The record's key: what ``record_id`` gives, or its attribute or item ``id``, or what the column is called.

        A key is its own.
        """
        if record is None or isinstance(record, str | bytes | int | float | UUID):
            return record
        if self._record_id is not None:
            return self._record_id(record)
        for name in self._keys:
            if isinstance(record, Mapping):
                if name in record:
                    return record[name]
            elif hasattr(record, name):
                return getattr(record, name)
        raise ConfigurationError(f"{a_type(record)} has no id; give the id itself, or TableOptions(record_id=…)")

    def _typed(self, row: dict[str, Any], record: type) -> Any:
        stored = {LOGS: plain_logs(row[LOGS])} if LOGS in row and LOGS in (self._fields or ()) else {}
        moments = {name: _aware(row[name]) for name in self._moments & row.keys()}
        entries = {name: _entries(logs) for name, logs in stored.items()}
        # A uuid or a moment may be meant to be text, and the logs to be something of the program's own.
        plain = {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()} | stored
        for likely in (row | entries | moments, plain | moments, row | entries):
            with suppress(ValueError, TypeError):  # of msgspec and pydantic alike
                return _converted(likely, record)
        return _converted(plain, record)


async def rows_of(given: Any) -> tuple[Sequence[str] | None, list[Any]]:
    """All rows of a cursor (asynchronous or not) and the names of its columns; or of a list, without names."""
    if not hasattr(given, "fetchall"):
        return None, list(given)
    names = [column[0] for column in given.description or ()]
    rows = given.fetchall()
    return names, list(await rows if inspect.isawaitable(rows) else rows)


def read_logs(value: Any) -> list[ExecutionLogEntry]:
    """The entries of an ``execution_logs`` column, whatever its driver made of it; NULL is no entries.

    Raises ValueError (msgspec's) for what is no entry.
    """
    return [
        one if isinstance(one, ExecutionLogEntry) else msgspec.convert(one, ExecutionLogEntry, strict=False)
        for one in plain_logs(value)
    ]


def plain_logs(value: Any) -> list[Any]:
    """As JSON has them: a list of objects. Nulls are left out: the other program may write them for what is absent."""
    entries = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    return [_plain(one) for one in entries or ()]


def shown_log(entry: str) -> ExecutionLogEntry:
    """An entry for people to read. What is none is shown unchanged, as the output of ``unreadable``."""
    try:
        return read_logs([entry])[0]
    except ValueError:
        return ExecutionLogEntry(key="unreadable", start_time=datetime.fromtimestamp(0, UTC), out=entry)


def fields_of(record: object) -> dict[str, bool] | None:
    """Field, as a row spells it -> must it be given? ``None``: the type has no list of fields."""
    if not isinstance(record, type):
        return None
    if issubclass(record, msgspec.Struct):
        return {field.encode_name: field.required for field in msgspec.structs.fields(record)}
    if dataclasses.is_dataclass(record):
        return {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(record)
            if field.init
        }
    models: Any = getattr(record, "model_fields", None)
    if isinstance(models, dict):
        return {_alias(name, field): field.is_required() for name, field in models.items()}
    return None


def _converted(row: dict[str, Any], record: type) -> Any:
    validate = getattr(record, "model_validate", None)  # pydantic's
    # Not strict, because SQLite has neither truths nor moments; a text is still a text where the type says so.
    return validate(row) if validate is not None else msgspec.convert(row, record, strict=False)


def _aware(value: Any) -> Any:
    """A moment that a worker may have written; where it says no zone it is UTC."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return when.replace(tzinfo=UTC) if isinstance(when, datetime) and when.tzinfo is None else when


def _entries(logs: list[Any]) -> list[Any]:
    try:
        return read_logs(logs)
    except ValueError:
        return logs


def _plain(entry: Any) -> Any:
    made = msgspec.json.decode(entry) if isinstance(entry, str | bytes) else entry
    return {name: value for name, value in made.items() if value is not None} if isinstance(made, dict) else made


def _alias(name: str, field: Any) -> str:
    given = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
    return given if isinstance(given, str) else name


def _no_coroutine(made: Any) -> Any:
    if inspect.iscoroutine(made):
        made.close()
        raise TypeError("scan is asynchronous; it must be a plain function")
    return made


def _in_one_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - boundary: an error whose text cannot be made is still an error
        text = ""
    name = type(error).__name__
    return clean(f"{name}: {text}" if text else name, ERROR_LIMIT)


PAGE_SIZE = 100
MAX_PAGE_SIZE = 10_000
"""Records in one page."""
LIVE = (State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED)
"""What is looked at where no state is named."""
FIELDS = (
    *("id", "state", "num_failures", "num_resets", "queued_at", "started_at", "finished_at", "process_after"),
    *("last_heartbeat_at", "worker_hostname", "failure_message", "cancel"),
)
"""Documented names, in the order of the statements' columns."""


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record. Moments are aware; ``None`` where the column is NULL, absent, or holds no moment."""

    id: JobId
    state: str
    """A ``State``, or any other text written there."""
    num_failures: int
    num_resets: int
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    process_after: datetime | None
    last_heartbeat_at: datetime | None
    worker: str
    """The worker that claimed it last, without the claim's token, which is secret."""
    failure_message: str | None
    cancel: bool


def shown(values: tuple[Any, ...]) -> ShownRecord:
    """Of a row of ``FIELDS``; moments as datetimes or as microseconds since 1970."""
    row = dict(zip(FIELDS, values, strict=True))
    moments = {name: _moment(row[name]) for name in FIELDS if name.endswith(("_at", "_after"))}
    return ShownRecord(
        id=row["id"],
        state=str(row["state"]),
        num_failures=row["num_failures"] or 0,
        num_resets=row["num_resets"] or 0,
        worker=row["worker_hostname"] or "",
        failure_message=row["failure_message"],
        cancel=bool(row["cancel"]),
        **moments,
    )


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return None if value is None else datetime.fromtimestamp(value / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
