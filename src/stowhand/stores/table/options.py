"""How a user's table is served: one frozen value with a sentence per option; contradictions are refused when made.

In expressions a text is a name and nothing else. ``sql(…)`` and what a driver composes (``psycopg.sql``) pass through
as they are; the backend renders them, or refuses what is not its own.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stowhand.errors import ConfigurationError, TableUnsuitable, a_type, hint, suggest
from stowhand.jobs import limits
from stowhand.jobs.conditions import Sql
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, seconds
from stowhand.jobs.fields import INT32
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.jobs.text import clean
from stowhand.stores.table.names import COLUMNS, POSTGRES_LIMIT, TOKEN, Column, Read, Shape, read_expression, read_shape
from stowhand.stores.table.records import fields_of

if TYPE_CHECKING:
    # With neither ``record`` nor ``scan`` a record is a dict. (Checkers know this module without its being installed.)
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=dict[str, Any])
else:
    R = TypeVar("R")

RESET_FAILURE_MESSAGE = "job processor died while handling this message too many times"
Expression = str | Sql | Any
"""A column by its name (``id``, ``j.id``), ``sql(…)`` of your own, or, on PostgreSQL, what ``psycopg.sql`` composes.
Text that is no name is refused: it would be SQL."""


class TableOptions(msgspec.Struct, Generic[R], frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Durations are ``timedelta`` or seconds, exact to the microsecond."""

    name: str
    """The store's name, in logs and metrics; a claim's ``task``."""
    table_name: str
    """The table that is locked and updated: ``jobs``, ``app.jobs``, ``"Jobs"``, each with an alias if you like:
    ``jobs j``."""
    view_name: str | None = None
    """The view that records are read from, with an alias if you like; ``None``: the table itself."""
    column_expressions: Sequence[Expression] = ()
    """What a record is made of; ``()``: the fields of ``record``, or every column of the view."""
    record: type[R] | None = None
    """A dataclass, a msgspec.Struct or a pydantic model, made of the columns by name. A ``datetime`` of a documented
    column is aware; where the column says no zone it is UTC. (Elsewhere, and in dicts, values are as the driver has
    them.)"""
    scan: Callable[[Sequence[Any]], R] | None = None
    """Makes a record of one row: exactly the values of ``column_expressions``. Instead of ``record``. With neither, a
    record is a dict."""
    record_id: Callable[[R], Any] | None = None
    """Gives a record's key; ``None``: its attribute, or its item, ``id``, or of the name that is mapped to ``id``."""
    order_by_expression: Expression | Sequence[Expression] = ()
    """Whose turn it is; ``()``: by id."""
    alternate_column_names: Mapping[str, str] = {}
    """Documented name -> the table's own. ``lease_token`` may be mapped too: then the claim's token has a column of its
    own, and ``worker_hostname`` holds the worker's name alone. For tables that only workers of ours claim from: to
    others that column says nothing. (Fenced are those too: a claim is known by its ``started_at`` beside its token.)"""
    unique_ids: bool = False
    """No two rows ever have the same id, although no unique index says so: a table that is partitioned by another
    column (a day) cannot have one. PostgreSQL only. Untrue, it lets one claim take, and one write end, both rows."""
    max_resets: int = 5
    """How often a record may be taken back from a worker that died; the next time it is failed. 0: the first time."""
    stalled_max_age: Duration = 30.0
    """Without a heartbeat for so long, a record in processing is taken back. At least three heartbeats."""
    reset_failure_message: str = RESET_FAILURE_MESSAGE
    """What such a record is failed with."""
    retry_after: Duration = 0.0
    """How long an errored record waits, where the handler does not say."""
    max_num_retries: int = 0
    """Secondary attempts: 2 means at most 3 attempts. 0: no retries, whatever ``retry_after``."""
    heartbeat_interval: Duration | None = None
    """``None``: a third of ``stalled_max_age``, unless the worker says."""
    cancel_interval: Duration | None = None
    """How soon a running handler learns that its record is to be canceled; ``None``: with the heartbeat."""
    transactional: bool = False
    """Handlers run in a transaction that holds their record locked. PostgreSQL only."""
    notify_channel: str | None = None
    """A channel on which a trigger of the table notifies (``stowhand table ddl --notify``); ``None``: poll."""

    def __post_init__(self) -> None:
        problems = [
            *_of_name(self.name),
            *_of_columns(self.alternate_column_names),
            *_of_relations(self),
            *_of_expressions(self),
            *_of_record(self),
            *_of_counts(self),
            *_of_times(self),
            *_of_rest(self),
        ]
        if problems:
            raise ConfigurationError("; ".join(problems))
        for field in _DURATIONS:
            # What was given as 0.3 stays exact; a timedelta is exact to the microsecond either way.
            value = getattr(self, field)
            msgspec.structs.force_setattr(self, field, None if value is None else seconds(value))
        msgspec.structs.force_setattr(self, "alternate_column_names", dict(self.alternate_column_names))
        msgspec.structs.force_setattr(self, "column_expressions", tuple(self.column_expressions))

    @property
    def stalled(self) -> float:
        """``stalled_max_age`` in seconds: the lease."""
        return seconds(self.stalled_max_age)

    @property
    def retry_delay(self) -> float:
        """``retry_after`` in seconds."""
        return seconds(self.retry_after)


BEATS = 3
"""A lease must outlast so many of them: a heartbeat may fail, and the next one may be late."""
NAME_LIMIT = 128
_DURATIONS = ("stalled_max_age", "retry_after", "heartbeat_interval", "cancel_interval")


def _of_name(name: object) -> Iterator[str]:
    try:
        limits.check_name("name", name, NAME_LIMIT)
    except ValueError as error:
        yield f'{error} (the store\'s name, in logs and metrics: name="uploads")'


def _of_columns(alternate: object) -> Iterator[str]:
    """Names that are not documented ones, and two of them for one column."""
    if not isinstance(alternate, Mapping):
        yield f'alternate_column_names: {a_type(alternate)} given; give a dict: {{"state": "status"}}'
        return
    known = (*COLUMNS, TOKEN)
    for name in alternate:
        if name not in known:
            said = hint(name, known) or suggest(name, known)
            yield f"alternate_column_names: no documented column {name!r}{said} (documented name -> the table's own)"


def _of_relations(options: TableOptions[Any]) -> Iterator[str]:
    given: object = options.alternate_column_names
    try:
        shape = read_shape(
            options.table_name, options.view_name, given if isinstance(given, Mapping) else {}, folds=False
        )
    except ConfigurationError as error:
        yield str(error)
        return
    bearers: dict[str, str] = {}
    for documented, own in shape.columns.items():
        other = bearers.setdefault(own.lower(), documented)
        if other != documented:
            yield (
                f"alternate_column_names: {other!r} and {documented!r} are both the column {own!r};"
                f" map each to a column of its own"
            )


def _of_expressions(options: TableOptions[Any]) -> Iterator[str]:
    order = options.order_by_expression
    lists = {
        "column_expressions": options.column_expressions,
        "order_by_expression": order if isinstance(order, list | tuple) else (order,),
    }
    for field, given in lists.items():
        if isinstance(given, str) or not isinstance(given, Sequence):
            yield f"{field}: {a_type(given)} given; give a list: [{given!r}]"
            continue
        for one in given:
            try:
                read_expression(field, one, folds=False)
            except ConfigurationError as error:
                yield str(error)


def _of_record(options: TableOptions[Any]) -> Iterator[str]:
    if options.record is not None and options.scan is not None:
        yield "record and scan: both given; record= makes a record of columns by name, scan= of one row: give one"
    elif options.scan is not None and not options.column_expressions:
        yield "scan: it takes the values of column_expressions, and there are none; list them"
    if options.record is not None and fields_of(options.record) is None:
        yield (
            f"record: {options.record!r} given; give a dataclass, a msgspec.Struct or a pydantic model,"
            " or scan= for anything else"
        )
    for field in ("scan", "record_id"):
        given = getattr(options, field)
        if given is not None and not callable(given):
            yield f"{field}: {a_type(given)} given; give a function"


def _of_counts(options: TableOptions[Any]) -> Iterator[str]:
    for field in ("max_resets", "max_num_retries"):
        value = getattr(options, field)
        # bool is an int to Python.
        if type(value) is not int:
            yield f"{field}: {a_type(value)} given; give a whole number"
        elif not 0 <= value < INT32:
            yield f"{field}: {reprlib.repr(value)} given; give 0 to {INT32 - 1}"


def _of_times(options: TableOptions[Any]) -> Iterator[str]:
    troubles = [trouble for field in _DURATIONS if (trouble := _trouble(field, getattr(options, field)))]
    yield from troubles
    if troubles or options.heartbeat_interval is None:
        return
    beat, least = seconds(options.heartbeat_interval), seconds(options.heartbeat_interval) * BEATS
    # Three times 0.1 is more than 0.3.
    if least > options.stalled * 1.000001:
        yield (
            f"stalled_max_age: {options.stalled:g} s given, which live records would not outlast: it must be at least"
            f" {BEATS} heartbeats, {BEATS} x {beat:g} s = {least:g} s; give stalled_max_age={least:g},"
            f" or heartbeat_interval={options.stalled / BEATS:g}"
        )


def _trouble(field: str, value: object) -> str | None:
    if value is None and field.endswith("_interval"):
        return None
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
        return f"{field}: {a_type(value)} given; give a timedelta, seconds or a phrase such as '30s'"
    try:
        duration = seconds(value)
    except ValueError as error:
        return f"{field}: {error}"
    if math.isnan(duration):
        return f"{field}: {value!r} given; give seconds"
    if duration < 0 or (duration == 0 and field != "retry_after"):
        return f"{field}: {value} given, must {'not be negative' if field == 'retry_after' else 'be more than 0'}"
    return f"{field}: {reprlib.repr(value)} given, the limit is 100 years" if duration > MAX_DURATION_SECONDS else None


def _of_rest(options: TableOptions[Any]) -> Iterator[str]:
    flags: dict[str, object] = {"unique_ids": options.unique_ids, "transactional": options.transactional}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            yield f"{name}: {a_type(flag)} given; give True or False"
    message: object = options.reset_failure_message
    channel = options.notify_channel
    if not isinstance(message, str) or not message.strip() or clean(message, 4 * len(message)) != message:
        yield f"reset_failure_message: {reprlib.repr(message)} given; give a sentence"
    if channel is not None:
        try:
            limits.check_name("notify_channel", channel, POSTGRES_LIMIT)
        except ValueError as error:
            yield str(error)
        else:
            if len(channel.encode()) > POSTGRES_LIMIT:
                yield f"notify_channel: longer than the {POSTGRES_LIMIT} bytes of a channel's name"


class Selected(msgspec.Struct, frozen=True):
    """One item of the list that follows SELECT."""

    expression: Read
    name: str | None = None
    """What follows AS; ``None``: as the database calls it, or as the expression itself says."""


def order_of(options: TableOptions[Any], shape: Shape) -> tuple[Read, ...]:
    """What a claim is ordered by; the id is last, so that the order is always total."""
    given = options.order_by_expression
    parts = tuple(
        read_expression("order_by_expression", one, folds=shape.folds)
        for one in (given if isinstance(given, list | tuple) else (given,))
    )
    last = Column(shape.columns["id"], shape.view_label)
    by_id = bool(parts) and isinstance(parts[-1], Column) and parts[-1].name == last.name
    return parts if by_id else (*parts, last)


def selected(options: TableOptions[Any], shape: Shape, columns: Sequence[str]) -> tuple[Selected, ...]:
    """What makes a record. ``columns``: the names that the view (or table) has in the catalog.

    Raises TableUnsuitable when a field of ``record`` that must be given is not among them.
    """
    if options.column_expressions:
        return tuple(
            Selected(one, one.name if isinstance(one, Column) else None)
            for one in (
                read_expression(f"column_expressions[{at}]", given, folds=shape.folds)
                for at, given in enumerate(options.column_expressions)
            )
        )
    label = shape.view_label
    fields = None if options.record is None else fields_of(options.record)
    if fields is None:
        return tuple(Selected(Column(name, label), name) for name in columns)
    found, missing = [], []
    for field, required in fields.items():
        name = _nearest_spelling(field, shape, columns)
        if name is not None:
            found.append(Selected(Column(name, label), field))
        elif required:
            missing.append(field)
    if missing or not found:
        raise TableUnsuitable(_unsuitable(missing, options, shape, columns))
    return tuple(found)


def _nearest_spelling(field: str, shape: Shape, columns: Sequence[str]) -> str | None:
    """The column of that name; else what the documented name was mapped to; else one that differs in case alone."""
    if field in columns:
        return field
    if field in COLUMNS and shape.columns[field] in columns:
        return shape.columns[field]
    alike = [name for name in columns if name.lower() == field.lower()]
    return alike[0] if len(alike) == 1 else None


def _unsuitable(missing: list[str], options: TableOptions[Any], shape: Shape, columns: Sequence[str]) -> str:
    record = getattr(options.record, "__qualname__", str(options.record))
    where = shape.view.shown
    if not missing:
        return f"{where}: none of its columns is a field of {record}; give column_expressions"
    named = [f"{field!r}{f' ({near[2:]})' if (near := hint(field, columns)) else ''}" for field in missing]
    return (
        f"{where}: no such column: {', '.join(named)}, which {record} cannot do without;"
        ' select it under that name in the view, or by column_expressions: sql("… AS field")'
    )
