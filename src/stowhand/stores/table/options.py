"""The options of a user's table: a frozen value that refuses contradictions when it is created.

In expressions a text is a name and nothing else. ``sql(…)`` and objects of the driver (``psycopg.sql``) pass through
unchanged; the backend renders them, or refuses those it does not know.
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
from stowhand.jobs.fields import MAX_INT32
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.jobs.text import clean
from stowhand.stores.table.names import (
    COLUMNS,
    POSTGRES_NAME_BYTES,
    TOKEN_COLUMN,
    Column,
    ParsedExpression,
    Shape,
    read_expression,
    read_shape,
)
from stowhand.stores.table.records import fields_of

if TYPE_CHECKING:
    # With neither ``record`` nor ``scan`` a record is a dict. (Type checkers know this module without installation.)
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=dict[str, Any])
else:
    R = TypeVar("R")

RESET_FAILURE_MESSAGE = "job processor died while handling this message too many times"
Expression = str | Sql | Any
"""A column by its name (``id``, ``j.id``), your own ``sql(…)``, or, on PostgreSQL, an object of ``psycopg.sql``.
Text that is not a name is refused: it would be SQL."""


class TableOptions(msgspec.Struct, Generic[R], frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a user's table. Durations are ``timedelta`` or seconds, exact to the microsecond."""

    name: str
    """The store's name, in logs and metrics; a claim's ``task``."""
    table_name: str
    """The table that is locked and updated: ``jobs``, ``app.jobs``, ``"Jobs"``, or with an alias: ``jobs j``."""
    view_name: str | None = None
    """The view that records are read from, optionally with an alias; ``None``: the table itself."""
    column_expressions: Sequence[Expression] = ()
    """The values of a record; ``()``: the fields of ``record``, or every column of the view."""
    record: type[R] | None = None
    """A dataclass, a msgspec.Struct or a pydantic model, built from the columns by name. A ``datetime`` of a documented
    column is aware, and UTC where the column has no zone. (Other values, and dicts, are as the driver returns them.)"""
    scan: Callable[[Sequence[Any]], R] | None = None
    """Builds a record from one row, the values of ``column_expressions``, instead of ``record``. With neither, a record
    is a dict."""
    record_id: Callable[[R], Any] | None = None
    """Returns a record's key; ``None``: its attribute or item ``id``, or of the name mapped to ``id``."""
    order_by_expression: Expression | Sequence[Expression] = ()
    """The order of claims; ``()``: by id."""
    alternate_column_names: Mapping[str, str] = {}
    """By documented name, the table's own. ``lease_token`` may be mapped too: then the claim's token has its own
    column, and ``worker_hostname`` contains the worker's name alone. Use it only if no other program claims from
    the table, since others do not know that column. (Other programs are fenced too: a claim is identified by its
    ``started_at`` and its token.)"""
    unique_ids: bool = False
    """Asserts that ids are unique although no unique index enforces it: a table partitioned by another column (a day)
    cannot have one. PostgreSQL only. If it is false, one claim may take, and one write finish, several rows."""
    max_resets: int = 5
    """How often a record may be reset after its worker was lost; the next time it fails. 0: the first time."""
    stalled_max_age: Duration = 30.0
    """Without a heartbeat for this time, a record in processing is reset. At least three heartbeats."""
    reset_failure_message: str = RESET_FAILURE_MESSAGE
    """The failure message of a record with too many resets."""
    retry_after: Duration = 0.0
    """How long an errored record waits, unless the handler decides otherwise."""
    max_num_retries: int = 0
    """The number of retries: 2 means at most 3 attempts. 0: no retries, whatever ``retry_after``."""
    heartbeat_interval: Duration | None = None
    """``None``: a third of ``stalled_max_age``, unless the worker sets it."""
    cancel_interval: Duration | None = None
    """How soon a running handler learns of a cancellation request; ``None``: with the heartbeat."""
    transactional: bool = False
    """Handlers run in a transaction that holds their record locked. PostgreSQL only."""
    notify_channel: str | None = None
    """A channel on which a trigger of the table notifies (``stowhand table ddl --notify``); ``None``: poll."""

    def __post_init__(self) -> None:
        problems = [
            *_name_problems(self.name),
            *_column_problems(self.alternate_column_names),
            *_relation_problems(self),
            *_expression_problems(self),
            *_record_problems(self),
            *_count_problems(self),
            *_time_problems(self),
            *_other_problems(self),
        ]
        if problems:
            raise ConfigurationError("; ".join(problems))
        for field in _DURATION_FIELDS:
            # A value of 0.3 stays exact; a timedelta is exact to the microsecond either way.
            value = getattr(self, field)
            msgspec.structs.force_setattr(self, field, None if value is None else seconds(value))
        msgspec.structs.force_setattr(self, "alternate_column_names", dict(self.alternate_column_names))
        msgspec.structs.force_setattr(self, "column_expressions", tuple(self.column_expressions))

    @property
    def stalled(self) -> float:
        """The lease, ``stalled_max_age``, in seconds."""
        return seconds(self.stalled_max_age)

    @property
    def retry_delay(self) -> float:
        """``retry_after`` in seconds."""
        return seconds(self.retry_after)


MIN_HEARTBEATS_PER_LEASE = 3
"""A lease must outlast several heartbeats: one may fail, and the next one may be late."""
MAX_STORE_NAME_CHARACTERS = 128
_DURATION_FIELDS = ("stalled_max_age", "retry_after", "heartbeat_interval", "cancel_interval")


def _name_problems(name: object) -> Iterator[str]:
    try:
        limits.check_name("name", name, MAX_STORE_NAME_CHARACTERS)
    except ValueError as error:
        yield f'{error} (the store\'s name, in logs and metrics: name="uploads")'


def _column_problems(alternate: object) -> Iterator[str]:
    """Names that are not documented ones, and two of them for one column."""
    if not isinstance(alternate, Mapping):
        yield f'alternate_column_names: got {a_type(alternate)}; use a dict: {{"state": "status"}}'
        return
    known = (*COLUMNS, TOKEN_COLUMN)
    for name in alternate:
        if name not in known:
            suggestion = hint(name, known) or suggest(name, known)
            yield (
                f"alternate_column_names: no documented column {name!r}{suggestion}"
                " (documented name -> the table's own)"
            )


def _relation_problems(options: TableOptions[Any]) -> Iterator[str]:
    alternate: object = options.alternate_column_names
    try:
        shape = read_shape(
            options.table_name, options.view_name, alternate if isinstance(alternate, Mapping) else {}, folds=False
        )
    except ConfigurationError as error:
        yield str(error)
        return
    owners: dict[str, str] = {}
    for documented, own in shape.columns.items():
        other = owners.setdefault(own.lower(), documented)
        if other != documented:
            yield (
                f"alternate_column_names: {other!r} and {documented!r} are both the column {own!r};"
                f" map each to a column of its own"
            )


def _expression_problems(options: TableOptions[Any]) -> Iterator[str]:
    order = options.order_by_expression
    lists = {
        "column_expressions": options.column_expressions,
        "order_by_expression": order if isinstance(order, list | tuple) else (order,),
    }
    for field, value in lists.items():
        if isinstance(value, str) or not isinstance(value, Sequence):
            yield f"{field}: got {a_type(value)}; use a list: [{value!r}]"
            continue
        for expression in value:
            try:
                read_expression(field, expression, folds=False)
            except ConfigurationError as error:
                yield str(error)


def _record_problems(options: TableOptions[Any]) -> Iterator[str]:
    if options.record is not None and options.scan is not None:
        yield "record and scan: both given; record= makes a record of columns by name, scan= of one row: use one"
    elif options.scan is not None and not options.column_expressions:
        yield "scan: it takes the values of column_expressions, and there are none; list them"
    if options.record is not None and fields_of(options.record) is None:
        yield (
            f"record: got {options.record!r}; use a dataclass, a msgspec.Struct or a pydantic model,"
            " or scan= for anything else"
        )
    for field in ("scan", "record_id"):
        function = getattr(options, field)
        if function is not None and not callable(function):
            yield f"{field}: got {a_type(function)}; use a function"


def _count_problems(options: TableOptions[Any]) -> Iterator[str]:
    for field in ("max_resets", "max_num_retries"):
        value = getattr(options, field)
        # bool is an int to Python.
        if type(value) is not int:
            yield f"{field}: got {a_type(value)}; use a whole number"
        elif not 0 <= value < MAX_INT32:
            yield f"{field}: got {reprlib.repr(value)}; use 0 to {MAX_INT32 - 1}"


def _time_problems(options: TableOptions[Any]) -> Iterator[str]:
    problems = [problem for field in _DURATION_FIELDS if (problem := _duration_problem(field, getattr(options, field)))]
    yield from problems
    if problems or options.heartbeat_interval is None:
        return
    interval, min_lease = (
        seconds(options.heartbeat_interval),
        seconds(options.heartbeat_interval) * MIN_HEARTBEATS_PER_LEASE,
    )
    # Three times 0.1 is more than 0.3.
    if min_lease > options.stalled * 1.000001:
        yield (
            f"stalled_max_age: got {options.stalled:g} s, which live records would not outlast: it must be at least"
            f" {MIN_HEARTBEATS_PER_LEASE} heartbeats, {MIN_HEARTBEATS_PER_LEASE} x {interval:g} s = {min_lease:g} s;"
            f" use stalled_max_age={min_lease:g},"
            f" or heartbeat_interval={options.stalled / MIN_HEARTBEATS_PER_LEASE:g}"
        )


def _duration_problem(field: str, value: object) -> str | None:
    if value is None and field.endswith("_interval"):
        return None
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
        return f"{field}: got {a_type(value)}; use a timedelta, seconds or a phrase such as '30s'"
    try:
        duration = seconds(value)
    except ValueError as error:
        return f"{field}: {error}"
    if math.isnan(duration):
        return f"{field}: got {value!r}; use seconds"
    if duration < 0 or (duration == 0 and field != "retry_after"):
        return f"{field}: got {value}, must {'not be negative' if field == 'retry_after' else 'be more than 0'}"
    return f"{field}: got {reprlib.repr(value)}, the limit is 100 years" if duration > MAX_DURATION_SECONDS else None


def _other_problems(options: TableOptions[Any]) -> Iterator[str]:
    flags: dict[str, object] = {"unique_ids": options.unique_ids, "transactional": options.transactional}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            yield f"{name}: got {a_type(flag)}; use True or False"
    message: object = options.reset_failure_message
    channel = options.notify_channel
    if not isinstance(message, str) or not message.strip() or clean(message, 4 * len(message)) != message:
        yield f"reset_failure_message: got {reprlib.repr(message)}; use a sentence"
    if channel is not None:
        try:
            limits.check_name("notify_channel", channel, POSTGRES_NAME_BYTES)
        except ValueError as error:
            yield str(error)
        else:
            if len(channel.encode()) > POSTGRES_NAME_BYTES:
                yield f"notify_channel: longer than the {POSTGRES_NAME_BYTES} bytes of a channel's name"


class SelectedExpression(msgspec.Struct, frozen=True):
    """One item of the list after SELECT."""

    expression: ParsedExpression
    name: str | None = None
    """The name after AS; ``None``: the database's name, or the one in the expression itself."""


def order_of(options: TableOptions[Any], shape: Shape) -> tuple[ParsedExpression, ...]:
    """Return the order of claims. The id is last, so that the order is always total."""
    order = options.order_by_expression
    parts = tuple(
        read_expression("order_by_expression", expression, folds=shape.folds)
        for expression in (order if isinstance(order, list | tuple) else (order,))
    )
    last = Column(shape.columns["id"], shape.view_label)
    by_id = bool(parts) and isinstance(parts[-1], Column) and parts[-1].name == last.name
    return parts if by_id else (*parts, last)


def select_expressions(
    options: TableOptions[Any], shape: Shape, columns: Sequence[str]
) -> tuple[SelectedExpression, ...]:
    """Return the expressions of a record. ``columns``: the names of the view (or table) in the catalog.

    Raises TableUnsuitable when a required field of ``record`` is not among them.
    """
    if options.column_expressions:
        return tuple(
            SelectedExpression(parsed, parsed.name if isinstance(parsed, Column) else None)
            for parsed in (
                read_expression(f"column_expressions[{position}]", expression, folds=shape.folds)
                for position, expression in enumerate(options.column_expressions)
            )
        )
    label = shape.view_label
    fields = None if options.record is None else fields_of(options.record)
    if fields is None:
        return tuple(SelectedExpression(Column(name, label), name) for name in columns)
    expressions, missing = [], []
    for field, required in fields.items():
        name = _nearest_spelling(field, shape, columns)
        if name is not None:
            expressions.append(SelectedExpression(Column(name, label), field))
        elif required:
            missing.append(field)
    if missing or not expressions:
        raise TableUnsuitable(_unsuitable(missing, options, shape, columns))
    return tuple(expressions)


def _nearest_spelling(field: str, shape: Shape, columns: Sequence[str]) -> str | None:
    """Return the column of that name, else the mapped one of a documented name, else one that differs in case alone."""
    if field in columns:
        return field
    if field in COLUMNS and shape.columns[field] in columns:
        return shape.columns[field]
    alike = [name for name in columns if name.lower() == field.lower()]
    return alike[0] if len(alike) == 1 else None


def _unsuitable(missing: list[str], options: TableOptions[Any], shape: Shape, columns: Sequence[str]) -> str:
    record = getattr(options.record, "__qualname__", str(options.record))
    location = shape.view.display_name
    if not missing:
        return f"{location}: none of its columns is a field of {record}; use column_expressions"
    named = [f"{field!r}{f' ({near[2:]})' if (near := hint(field, columns)) else ''}" for field in missing]
    return (
        f"{location}: no such column: {', '.join(named)}, which {record} cannot do without;"
        ' select it under that name in the view, or by column_expressions: sql("… AS field")'
    )
