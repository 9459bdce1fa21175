"""Builds records from rows: dicts, or the type of the options. Also finds a record's key.

A row that cannot become a record becomes an ``Unreadable``: its attempt fails, and others continue.
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
from stowhand.stores.table.names import TIME_COLUMNS

LOGS_COLUMN = "execution_logs"
MAX_ERROR_CHARACTERS = 2048


class Records:
    """Builds records from rows, as the options require."""

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
        own = {name: name for name in ("id", *TIME_COLUMNS)} | dict(columns or {})
        self._keys = dict.fromkeys(("id", own["id"]))
        self._time_names = frozenset(TIME_COLUMNS) | {own[name] for name in TIME_COLUMNS}
        self._fields = None if record is None else fields_of(record)

    def read(self, names: Sequence[str], values: Sequence[Any]) -> Any:
        """Return a record, or an Unreadable. Never raises."""
        try:
            return self.make(names, values)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: scan is the user's, and one row must not stop the others
            return Unreadable(_in_one_line(error))

    def make(self, names: Sequence[str], values: Sequence[Any]) -> Any:
        """Return a record. Raises whatever ``scan`` or the type raises."""
        if self._scan is not None:
            return _no_coroutine(self._scan(values))
        row = dict(zip(names, values, strict=True))
        return row if self._record is None else self._typed(row, self._record)

    def from_row(self, names: Sequence[str] | None, row: Any) -> Any:
        """Return a record of a row that may have its own names."""
        if isinstance(row, Mapping):
            return self.make(list(row), list(row.values()))
        return self.make(names or (), row)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the required fields that rows with these names lack."""
        return [field for field, required in (self._fields or {}).items() if required and field not in names]

    def key(self, record: Any) -> Any:
        """Return the record's key: by ``record_id``, or its attribute or item ``id`` or of the column's own name.

        A key is returned unchanged.
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
        raise ConfigurationError(f"{a_type(record)} has no id; use the id itself, or TableOptions(record_id=…)")

    def _typed(self, row: dict[str, Any], record: type) -> Any:
        stored = (
            {LOGS_COLUMN: plain_logs(row[LOGS_COLUMN])}
            if LOGS_COLUMN in row and LOGS_COLUMN in (self._fields or ())
            else {}
        )
        times = {name: _to_aware(row[name]) for name in self._time_names & row.keys()}
        entries = {name: _entries(logs) for name, logs in stored.items()}
        # The type may declare a uuid or a time as text, and the logs as a type of its own.
        plain = {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()} | stored
        for candidate in (row | entries | times, plain | times, row | entries):
            with suppress(ValueError, TypeError):  # of msgspec and pydantic alike
                return _converted(candidate, record)
        return _converted(plain, record)


async def rows_of(source: Any) -> tuple[Sequence[str] | None, list[Any]]:
    """Return the column names and all rows of a cursor (asynchronous or not), or of a list, without names."""
    if not hasattr(source, "fetchall"):
        return None, list(source)
    names = [column[0] for column in source.description or ()]
    rows = source.fetchall()
    return names, list(await rows if inspect.isawaitable(rows) else rows)


def read_logs(value: Any) -> list[ExecutionLogEntry]:
    """Return the entries of an ``execution_logs`` column, as any driver reads it; none for NULL.

    Raises ValueError (msgspec's) for an invalid entry.
    """
    return [
        entry if isinstance(entry, ExecutionLogEntry) else msgspec.convert(entry, ExecutionLogEntry, strict=False)
        for entry in plain_logs(value)
    ]


def plain_logs(value: Any) -> list[Any]:
    """Return entries as JSON objects, without nulls: other programs may write those for absent fields."""
    entries = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    return [_plain(entry) for entry in entries or ()]


def shown_log(entry: str) -> ExecutionLogEntry:
    """Return an entry to display. An invalid entry becomes the output of an entry ``unreadable``."""
    try:
        return read_logs([entry])[0]
    except ValueError:
        return ExecutionLogEntry(key="unreadable", start_time=datetime.fromtimestamp(0, UTC), out=entry)


def fields_of(record: object) -> dict[str, bool] | None:
    """Return by field name whether it is required; ``None`` if the type has no list of fields."""
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
    # Not strict, because SQLite has neither booleans nor times. A text stays a text where the type says so.
    return validate(row) if validate is not None else msgspec.convert(row, record, strict=False)


def _to_aware(value: Any) -> Any:
    """Return a time that a worker may have written as an aware datetime, in UTC if it has no zone."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return time.replace(tzinfo=UTC) if isinstance(time, datetime) and time.tzinfo is None else time


def _entries(logs: list[Any]) -> list[Any]:
    try:
        return read_logs(logs)
    except ValueError:
        return logs


def _plain(entry: Any) -> Any:
    result = msgspec.json.decode(entry) if isinstance(entry, str | bytes) else entry
    return {name: value for name, value in result.items() if value is not None} if isinstance(result, dict) else result


def _alias(name: str, field: Any) -> str:
    given = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
    return given if isinstance(given, str) else name


def _no_coroutine(result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("scan is asynchronous; it must be a plain function")
    return result


def _in_one_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - boundary: an error whose text cannot be made is still an error
        text = ""
    name = type(error).__name__
    return clean(f"{name}: {text}" if text else name, MAX_ERROR_CHARACTERS)


PAGE_SIZE = 100
MAX_PAGE_SIZE = 10_000
"""Records in one page."""
LIVE_STATES = (State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED)
"""The states to list where none is named."""
RECORD_FIELDS = (
    *("id", "state", "num_failures", "num_resets", "queued_at", "started_at", "finished_at", "process_after"),
    *("last_heartbeat_at", "worker_hostname", "failure_message", "cancel"),
)
"""Documented names, in the order of the statements' columns."""


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record. Times are aware; ``None`` where the column is NULL, absent, or contains no time."""

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


def shown_record(values: tuple[Any, ...]) -> ShownRecord:
    """Return the record of a row of ``RECORD_FIELDS``. Times are datetimes or microseconds since 1970."""
    row = dict(zip(RECORD_FIELDS, values, strict=True))
    times = {name: _to_datetime(row[name]) for name in RECORD_FIELDS if name.endswith(("_at", "_after"))}
    return ShownRecord(
        id=row["id"],
        state=str(row["state"]),
        num_failures=row["num_failures"] or 0,
        num_resets=row["num_resets"] or 0,
        worker=row["worker_hostname"] or "",
        failure_message=row["failure_message"],
        cancel=bool(row["cancel"]),
        **times,
    )


def _to_datetime(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return None if value is None else datetime.fromtimestamp(value / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
