"""Rows become records: dicts, the types of three libraries, or what ``scan`` makes; and keys are found in them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.jobs.conditions import Where
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.lease import Unreadable
from stowhand.stores.table.arguments import KeyType, job_id, read_after, read_conditions, read_key, read_states
from stowhand.stores.table.records import Records, read_logs, shown_log

NAMES = ("id", "path", "size", "at", "public", "execution_logs")
AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
U = UUID("7d2f0a52-6a6f-4a3e-9a0e-0a3f6a1c2b3d")
ENTRY = {"key": "step.0", "command": ["ls"], "startTime": "2024-05-01T12:00:00Z", "exitCode": 0, "durationMs": 7}


@dataclass
class Plain:
    id: int
    path: str
    size: Decimal
    at: datetime
    public: bool
    execution_logs: list[ExecutionLogEntry]
    note: str | None = None


class Struct(msgspec.Struct):
    id: int
    path: str
    size: Decimal
    at: datetime
    public: bool
    execution_logs: list[ExecutionLogEntry]


class Model(pydantic.BaseModel, arbitrary_types_allowed=True):
    id: int
    path: str
    size: Decimal
    at: datetime
    public: bool
    execution_logs: list[ExecutionLogEntry]


POSTGRES = (7, "null", Decimal("1.50"), AT, True, [ENTRY])
SQLITE = (7, "null", 1.5, "2024-05-01 12:00:00+00:00", 1, f"[{msgspec.json.encode(ENTRY).decode()}]")


def records(record: type | None = None, **given: Any) -> Records:
    return Records(record, given.get("scan"), given.get("record_id"), given.get("columns"))


@pytest.mark.parametrize("kind", [Plain, Struct, Model])
@pytest.mark.parametrize("row", [POSTGRES, SQLITE])
def test_a_typed_record_is_made_of_what_either_database_gives(kind: type, row: tuple[Any, ...]) -> None:
    instance = records(kind).make(NAMES, row)
    assert isinstance(instance, kind)
    got = [getattr(instance, name) for name in NAMES]
    assert got[:5] == [7, "null", Decimal("1.5"), AT, True]
    assert got[5] == [ExecutionLogEntry(key="step.0", command=("ls",), start_time=AT, exit_code=0, duration_ms=7)]


@pytest.mark.parametrize("kind", [Plain, Struct, Model])
def test_no_logs_are_an_empty_list(kind: type) -> None:
    assert records(kind).make(NAMES, (*POSTGRES[:5], None)).execution_logs == []


def test_a_record_is_a_dict_with_the_values_as_they_are() -> None:
    instance = records().make(NAMES, POSTGRES)
    assert instance == dict(zip(NAMES, POSTGRES, strict=True))
    assert instance["execution_logs"][0] is ENTRY


def test_columns_that_a_type_has_no_field_for_are_left_out() -> None:
    instance = records(Plain).make((*NAMES, "extra"), (*POSTGRES, object()))
    assert instance.note is None


def test_a_uuid_may_be_meant_as_text() -> None:
    @dataclass
    class Texts:
        id: str

    @dataclass
    class Uuids:
        id: UUID

    assert records(Texts).make(["id"], [U]).id == str(U)
    assert records(Uuids).make(["id"], [U]).id == U


def test_a_text_stays_a_text_whatever_it_says() -> None:
    @dataclass
    class Words:
        one: str | None
        two: int | str
        three: bool | str

    assert records(Words).make(["one", "two", "three"], ["null", "5", "true"]) == Words("null", "5", "true")


def test_logs_may_be_meant_as_something_of_the_programs_own() -> None:
    @dataclass
    class Loose:
        execution_logs: list[dict[str, Any]]

    assert records(Loose).make(["execution_logs"], [[ENTRY]]).execution_logs == [ENTRY]


def test_scan_is_given_exactly_the_values() -> None:
    assert records(scan=lambda row: ("made of", row)).read(NAMES, POSTGRES) == ("made of", POSTGRES)


def test_an_asynchronous_scan_is_refused() -> None:
    async def scan(row: Any) -> Any:
        return row

    assert "scan is asynchronous" in records(scan=scan).read(NAMES, POSTGRES).error


def test_a_row_of_which_no_record_can_be_made_is_unreadable() -> None:
    instance = records(Struct).read(NAMES, ("seven", *POSTGRES[1:]))
    assert isinstance(instance, Unreadable)
    assert "Expected `int`" in instance.error
    assert "$.id" in instance.error


def test_the_reason_is_one_line_without_what_no_column_can_hold() -> None:
    def scan(row: Any) -> Any:
        raise ValueError("two\nlines\x00" + "x" * 5000)

    error = records(scan=scan).read(NAMES, POSTGRES).error
    assert error.startswith("ValueError: two lines")
    assert "\x00" not in error
    assert len(error) <= 2048


def test_one_row_cannot_stop_the_others_with_what_is_no_exception() -> None:
    def scan(row: Any) -> Any:
        raise row[0]

    for panic in (
        asyncio.CancelledError("no"),
        GeneratorExit("no"),
        type("PanicException", (BaseException,), {})("no"),
    ):
        assert records(scan=scan).read(["x"], [panic]) == Unreadable(f"{type(panic).__name__}: no")
    for end in (KeyboardInterrupt, SystemExit):
        with pytest.raises(end):
            records(scan=scan).read(["x"], [end])


class Times(msgspec.Struct):
    queued_at: datetime
    begun: datetime | None
    other: datetime
    note: str


class TimesModel(pydantic.BaseModel):
    queued_at: datetime
    begun: datetime | None
    other: datetime
    note: str


@pytest.mark.parametrize("kind", [Times, TimesModel])
@pytest.mark.parametrize(
    "stored", ["2024-05-01 12:00:00.000000", AT.replace(tzinfo=None), "2024-05-01 14:00+02:00", AT]
)
def test_a_moment_of_a_documented_column_is_aware_and_utc_where_no_zone_is_said(kind: type, stored: Any) -> None:
    row = (stored, stored, "2024-05-01 12:00:00", "2024-05-01 12:00:00")
    instance = records(kind, columns={"started_at": "begun"}).make(["queued_at", "begun", "other", "note"], row)
    assert (instance.queued_at, instance.begun, instance.note) == (AT, AT, row[3])
    assert instance.other == AT.replace(tzinfo=None)


def test_a_moment_may_be_meant_as_text_and_a_dict_has_what_is_stored() -> None:
    @dataclass
    class Loose:
        id: str
        queued_at: str
        execution_logs: list[ExecutionLogEntry]

    row = (U, "2024-05-01 12:00:00", [ENTRY])
    instance = records(Loose).make(["id", "queued_at", "execution_logs"], row)
    assert (instance.id, instance.queued_at, instance.execution_logs[0].start_time) == (str(U), row[1], AT)
    assert records().make(["queued_at"], row[1:2]) == {"queued_at": row[1]}

    class Mixed(pydantic.BaseModel, arbitrary_types_allowed=True):
        queued_at: str
        execution_logs: list[ExecutionLogEntry]

    assert records(Mixed).make(["queued_at", "execution_logs"], row[1:]).execution_logs == instance.execution_logs

    class Named(msgspec.Struct):
        id: str
        queued_at: datetime

    assert records(Named).make(["id", "queued_at"], row[:2]) == Named(str(U), AT)


def test_an_error_without_a_printable_text_is_reported_by_its_name() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def scan(row: Any) -> Any:
        raise Nasty

    assert records(scan=scan).read(NAMES, POSTGRES) == Unreadable("Nasty")


def test_the_fields_that_rows_lack_are_known_before_any_row() -> None:
    assert records(Plain).missing(["id", "path", "size"]) == ["at", "public", "execution_logs"]
    assert records().missing([]) == []


def test_a_key_is_found_as_attribute_as_item_or_by_record_id() -> None:
    @dataclass
    class Keyed:
        number: int
        tags: list[str] = field(default_factory=list)

    assert records().key({"id": 5}) == 5
    assert records(Plain).key(Plain(6, "", Decimal(0), AT, True, [])) == 6
    assert records(Keyed, record_id=lambda one: one.number).key(Keyed(7)) == 7
    assert records().key(8) == 8
    assert records().key(U) == U
    with pytest.raises(ConfigurationError, match=r"Keyed has no id; .* TableOptions\(record_id="):
        records(Keyed).key(Keyed(7))


# -- logs ---------------------------------------------------------------------------------------------


def test_nulls_that_the_other_program_writes_are_what_is_absent() -> None:
    entry = {"key": "k", "command": None, "startTime": "2024-05-01T12:00:00.123456789Z", "exitCode": None, "out": None}
    (made,) = read_logs([msgspec.json.encode(entry).decode()])
    assert (made.command, made.exit_code, made.out) == ((), None, "")


def test_what_is_no_entry_is_shown_to_people_as_it_stands() -> None:
    shown = shown_log('{"odd": 1}')
    assert (shown.key, shown.out) == ("unreadable", '{"odd": 1}')
    assert shown_log("not json").out == "not json"


# -- what people give ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (KeyType.INTEGER, "7", "got a str; the key is a whole number: use an int"),
        (KeyType.INTEGER, "x", "got a str; the key is a whole number: use an int"),
        (KeyType.INTEGER, True, "got a bool"),
        (KeyType.INTEGER, 7.0, "got a float"),
        (KeyType.INTEGER, None, "got a NoneType"),
        (KeyType.INTEGER, 2**63, "beyond 64 bits"),
        (KeyType.UUID, 7, "got an int; the key is a uuid"),
        (KeyType.UUID, "7", "'7' is not a uuid"),
        (KeyType.TEXT, 7, "got an int; the key is text"),
        (KeyType.TEXT, U, "got a UUID; the key is text"),
        (KeyType.TEXT, "a\x00", "contains NUL"),
        (KeyType.TEXT, "\ud800", "lone surrogate"),
    ],
)
def test_a_key_of_the_wrong_type_is_refused(kind: KeyType, given: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=f"id: .*{said}"):
        read_key(kind, given)


def test_keys_have_one_spelling() -> None:
    assert read_key(KeyType.INTEGER, -5) == -5
    assert read_key(KeyType.UUID, U) == read_key(KeyType.UUID, str(U).upper()) == job_id(U) == str(U)
    assert read_key(KeyType.TEXT, "a b") == "a b"


def test_states_are_given_and_are_states() -> None:
    assert read_states(["queued", "queued", "errored"]) == ("queued", "errored")
    with pytest.raises(ConfigurationError, match="states: none given; use at least one of queued"):
        read_states([])
    with pytest.raises(ConfigurationError, match="no state 'cancelled'; did you mean 'canceled'"):
        read_states(["cancelled"])


def test_a_condition_that_is_text_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(ConfigurationError, match=r'written sql\("size < 5"\)'):
        read_conditions("size < 5")
    with pytest.raises(ConfigurationError, match="got a bool; use Where"):
        read_conditions([True])


def test_sql_in_the_column_of_a_comparison_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is SQL, not a name"):
        read_conditions(Where("size = 1 OR true --", "=", 1))


def test_a_moment_to_wait_for_is_aware_and_not_beyond_reason() -> None:
    assert read_after(None) is None
    assert read_after(0.25) == 0.25
    assert read_after("1h") == 3600
    assert read_after(AT) is AT
    for bad in (True, -1, float("nan"), float("inf"), "soon", AT.replace(tzinfo=None)):
        with pytest.raises(InvalidJob, match="after: "):
            read_after(bad)
