"""What a crontab may say, and what is said about one that is wrong: the README's grammar, line by line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stowhand.cron.command import MAX_JSON5_CHARACTERS
from stowhand.cron.crontab import parse_crontab, refuse_duplicates
from stowhand.cron.item import ParsedItem
from stowhand.errors import ConfigurationError, CrontabError
from stowhand.jobs.durations import SECONDS_BY_UNIT
from stowhand.jobs.job import KeyMode, NewJob

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
A_DAY = MONDAY, MONDAY + timedelta(days=1)
AT = datetime(2026, 1, 5, 4, 30, tzinfo=UTC)


def parse(line: str) -> ParsedItem:
    (item,) = parse_crontab(line)
    return item


def problems(text: str) -> list[str]:
    with pytest.raises(CrontabError) as caught:
        parse_crontab(text)
    return str(caught.value).split("\n")


def days(line: str, *, within: int = 7) -> list[int]:
    """The weekdays on which a daily item is due in a week that begins on a Monday; Sunday is 0."""
    return [tick.isoweekday() % 7 for tick in parse(line).ticks(MONDAY, MONDAY + timedelta(days=within))]


def test_the_readmes_first_example_is_due_on_mondays_at_half_past_four() -> None:
    item = parse("30 4 * * 1 send_weekly_email")
    assert list(item.ticks(MONDAY, MONDAY + timedelta(days=14))) == [AT, AT + timedelta(days=7)]
    assert (item.task, item.identifier, item.fill, item.tz, item.payload) == (
        *("send_weekly_email",) * 2,
        *(0.0, "UTC", {}),
    )


def test_the_readmes_second_example_has_a_fill_attempts_and_a_payload() -> None:
    item = parse("30 4 * * 1 send_weekly_email ?fill=2d&max=10 {onboarding:false}")
    assert (item.fill, item.payload) == (2 * 86_400.0, {"onboarding": False})
    assert item.job(AT, backfilled=False).max_attempts == 10


def test_the_readmes_third_example_is_due_every_four_hours() -> None:
    assert [tick.hour for tick in parse("0 */4 * * * rollup").ticks(*A_DAY)] == [0, 4, 8, 12, 16, 20]


def test_a_job_carries_its_tick_and_whether_it_was_backfilled() -> None:
    item = parse("0 */4 * * * rollup {_cron: 'mine', a: 1}")
    job = item.job(datetime(2026, 1, 5, 4, tzinfo=UTC), backfilled=False)
    assert json.loads(job.payload) == {"a": 1, "_cron": {"ts": "2026-01-05T04:00:00.000Z", "backfilled": False}}
    assert job.run_at == datetime(2026, 1, 5, 4, tzinfo=UTC)
    assert json.loads(item.job(AT, backfilled=True).payload)["_cron"]["backfilled"] is True


def test_every_option_reaches_the_job() -> None:
    line = "* * * * * t ?id=other/1&queue=mail%20out&priority=-5&max=3&jobKey=a%26b&jobKeyMode=preserve_run_at"
    line += "&work_queue=bulk"
    item = parse(line)
    job = item.job(AT, backfilled=False)
    assert item.identifier == "other/1"
    assert (job.task, job.serial, job.priority, job.max_attempts, job.key) == ("t", "mail out", -5, 3, "a&b")
    assert job.queue == "bulk"
    assert job.key_mode is KeyMode.PRESERVE_RUN_AT


def test_a_job_without_options_has_the_defaults() -> None:
    job = parse("* * * * * t").job(AT, backfilled=False)
    assert (job.serial, job.priority, job.max_attempts, job.key, job.key_mode) == (None, 0, None, None, KeyMode.REPLACE)


def test_comments_blank_lines_tabs_trailing_spaces_and_a_bom_are_accepted() -> None:
    text = "\ufeff# one\r\n\r\n  \t# two\n\t0\t4  * * *\tfirst   ?fill=4w3d2h1m  {a:'x # y',}  \t\r\n1 * * * * second\r"
    first, second = parse_crontab(text)
    assert (first.fill, first.payload, first.position) == (44_761 * 60.0, {"a": "x # y"}, "crontab line 4")
    assert second.identifier == "second"


@pytest.mark.parametrize("text", ["", "\n\n", "# only words", "\ufeff"])
def test_a_crontab_may_be_empty(text: str) -> None:
    assert parse_crontab(text) == ()


@pytest.mark.parametrize("wrong", [None, 5, b"* * * * * t", ["* * * * * t"]])
def test_a_value_that_is_not_text_is_refused(wrong: Any) -> None:
    with pytest.raises(CrontabError, match=f"^crontab: got an? {type(wrong).__name__}; use its text$"):
        parse_crontab(wrong)


@pytest.mark.parametrize("name", ["a", "_", "a:b", "a-b", "a_b", "mail/send", "A1", "a/b:c-d_e9", "shop.tasks.send"])
def test_identifiers_hold_colons_hyphens_underscores_slashes_and_dots(name: str) -> None:
    assert parse(f"* * * * * {name}").task == name
    assert parse(f"* * * * * t ?id={name}").identifier == name


@pytest.mark.parametrize("name", ["1a", "-a", ":a", ".a", "ä", "a$"])
def test_identifiers_begin_with_a_letter_and_hold_nothing_else(name: str) -> None:
    assert problems(f"* * * * * {name}") == [
        f"crontab line 1: task {name!r}; use a name that begins with a letter or _, then letters, digits, _ - : / ."
    ]
    assert f"id={name}" in problems(f"* * * * * t ?id={name}")[0]


def test_day_seven_is_sunday() -> None:
    assert days("0 0 * * 7 t") == days("0 0 * * 0 t") == [0]
    assert days("0 0 * * 5-7 t") == [5, 6, 0]
    assert days("0 0 * * 5-6 t") == [5, 6]
    assert days("0 0 * * 0-7 t") == [1, 2, 3, 4, 5, 6, 0]


def test_steps_count_from_the_least_value_of_the_field() -> None:
    january = parse("0 0 */10 1 * t").ticks(MONDAY - timedelta(days=4), MONDAY + timedelta(days=27))
    assert [tick.day for tick in january] == [1, 11, 21, 31]
    year = parse("0 0 1 */5 * t").ticks(MONDAY - timedelta(days=4), MONDAY + timedelta(days=360))
    assert [tick.month for tick in year] == [1, 6, 11]
    assert [tick.minute for tick in parse("*/25 0 * * * t").ticks(*A_DAY)] == [0, 25, 50]
    assert [tick.minute for tick in parse("*/90 0 * * * t").ticks(*A_DAY)] == [0]


def test_date_and_weekday_both_restricted_means_either() -> None:
    item = parse("0 0 15 1 1 t")
    assert [tick.day for tick in item.ticks(MONDAY - timedelta(days=4), MONDAY + timedelta(days=40))] == [
        *(5, 12, 15, 19, 26),
    ]


def test_a_single_restricted_field_of_date_and_weekday_decides() -> None:
    assert [tick.day for tick in parse("0 0 15 1 * t").ticks(*(MONDAY, MONDAY + timedelta(days=26)))] == [15]
    assert [tick.day for tick in parse("0 0 1-31 1 1 t").ticks(MONDAY, MONDAY + timedelta(days=20))] == [5, 12, 19]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("60 * * * * t", "minute '60': 60 is not within 0 to 59"),
        ("* 24 * * * t", "hour '24': 24 is not within 0 to 23"),
        ("* * 0 * * t", "day '0': 0 is not within 1 to 31"),
        ("* * 32 * * t", "day '32': 32 is not within 1 to 31"),
        ("* * * 13 * t", "month '13': 13 is not within 1 to 12"),
        ("* * * * 8 t", "weekday '8': 8 is not within 0 to 7 (0 and 7 are Sunday)"),
        ("* * * * MON t", "weekday 'MON': names are not supported; write 1"),
        ("* * * * mon-fri t", "weekday 'mon-fri': names are not supported; write numbers, 0 to 6"),
        ("* * * JAN * t", "month 'JAN': names are not supported; write 1"),
        ("* * * december * t", "month 'december': names are not supported; write 12"),
        ("10-20/5 * * * * t", "minute '10-20/5': a step is only allowed after *; write 10,15,20"),
        ("45/5 * * * * t", "minute '45/5': a step is only allowed after *; write 45,50,55"),
        ("* 22-2 * * * t", "hour '22-2': the start of 22-2 is not before its end; write 22-23,0-2"),
        ("* 3-3 * * * t", "hour '3-3': the start of 3-3 is not before its end; write 3"),
        ("*/0 * * * * t", "minute '*/0': the step is 0; use 1 or more"),
        ("1,,2 * * * * t", "minute '1,,2': a value is missing before or after a comma"),
        ("٣ * * * * t", "minute '٣': '٣' is not a number, a range (1-5), * or */n"),
        ("-1 * * * * t", "minute '-1': '-1' is not a number, a range (1-5), * or */n"),
        ("L * * * * t", "minute 'L': 'L' is not a number, a range (1-5), * or */n"),
        ("0 0 30 2 * t", "day '30' and month '2' match no date; no such month has such a day"),
        ("0 0 31 4,6,9,11 * t", "day '31' and month '4,6,9,11' match no date; no such month has such a day"),
        ("@daily t", "'@daily' is not supported; write 0 0 * * *"),
        ("@reboot t", "'@reboot' is not supported; write five fields, as in 0 4 * * *"),
        ("word", "no fields before 'word'; write five"),
        ("* * L * * t", "day 'L': 'L' is not a number"),
        ("* * * * t", "4 fields before 't'; write five: minute hour day month weekday"),
        ("t {a: 1}", "no fields before 't'; write five: minute hour day month weekday"),
        ("* * * * *", "'* * * * *' is too short; write five fields and a task, as in 0 4 * * * send_report"),
        ("0 0 0-1 * * * t", "'*' in place of the task; write five fields (there is no field for seconds)"),
        ("* * * * * {}", "no task; use a name that begins with a letter or _, then letters, digits, _ - : /"),
        ("* * * * * t word", "'word' after the task is neither ?options nor a {payload}"),
        ("* * * * * t ?", "an option without a name; write ?name=value&name=value"),
        ("* * * * * t ?max=1&", "an option without a name; write ?name=value&name=value"),
        ("* * * * * t ?serial=a", "no option 'serial'; did you mean 'queue'?"),
        ("* * * * * t ?fil=2d", "no option 'fil'; did you mean 'fill'?"),
        ("* * * * * t ?jobkey=2d", "no option 'jobkey'; did you mean 'jobKey'?"),
        (
            "* * * * * t ?x=1",
            "no option 'x'; available: fill, id, jobKey, jobKeyMode, max, priority, queue, tz, work_queue",
        ),
        ("* * * * * t ?max=1&max=1", "option 'max' is repeated; use it once"),
        ("* * * * * t ?max", "option 'max' has no value; write max=…"),
        ("* * * * * t ?queue=", "option 'queue' has no value; write queue=…"),
        ("* * * * * t ?max=many", "max=many: use a whole number"),
        ("* * * * * t ?max=0", "max: 0; the limits are 1 and 2147483647"),
        ("* * * * * t ?priority=2.5", "priority=2.5: use a whole number"),
        ("* * * * * t ?priority=-2147483649", "priority: -2147483649; the limits are -2147483648 and 2147483647"),
        ("* * * * * t ?fill=2", "fill=2: '2' is not a period; write for example 30m, 2d or 4w3d2h1m (unit"),
        ("* * * * * t ?fill=-2d", "fill=-2d: '-2d' is not a period"),
        ("* * * * * t ?fill=366d1s", "fill: 31622401 s; use 0 to 366d, the time for which ticks are remembered"),
        ("* * * * * t ?jobKeyMode=replace", "jobKeyMode: 'replace' has no effect without a key"),
        (
            "* * * * * t ?jobKey=k&jobKeyMode=unsafe_dedupe",
            "jobKeyMode: 'unsafe_dedupe'; available: preserve_run_at, replace",
        ),
        (f"* * * * * t ?queue={'q' * 129}", "queue: 129 characters, the limit is 128"),
        ("* * * * * t ?queue=a%0ab", "queue: the control character U+000A at position 1"),
        ("* * * * * t ?queue=100%", "queue=100%: % must be followed by two hexadecimal digits; write %25"),
        ("* * * * * t ?queue=%ff", "queue=%ff: its %XX sequences are not valid UTF-8"),
        ("* * * * * t ?tz=europe/berlni", "tz: 'europe/berlni' is not a time zone; did you mean 'Europe/Berlin'?"),
        ("* * * * * t ?tz=America", "tz: 'America' is not a time zone"),
        ("* * * * * t ?tz=../../etc/passwd", "tz: '../../etc/passwd' is not a time zone"),
        ("* * * * * t {a:", "payload: Unexpected end of input at column 4"),
        ("* * * * * t {a:1,a:2}", "payload: duplicate key 'a'"),
        ('* * * * * t {"a":1,"a":2}', "payload: duplicate key 'a'"),
        ("* * * * * t {a:NaN}", "payload: cannot be written as JSON: NaN and infinity are not JSON numbers"),
        ("* * * * * t {a:-Infinity}", "payload: cannot be written as JSON: NaN and infinity are not JSON numbers"),
        ('* * * * * t {"a":1e999}', "payload: cannot be written as JSON: NaN and infinity are not JSON numbers"),
        ("* * * * * t {a:'\\u0000'}", "payload: a string contains NUL"),
        ("* * * * * t [1]", "'[1]' after the task is neither ?options nor a {payload}"),
        ("* * * * * t {a:1} ?max=2", "payload: Unexpected \"?\" at column 7; write options before the payload"),
        ("* * * * * t " + '{"a":' * 65 + "1" + "}" * 65, "payload: nested deeper than the limit of 64"),
        ("* * * * * t " + "{a:" * 500 + "1" + "}" * 500, "payload: nested "),  # how deep JSON5 goes is Python's limit
        (
            "* * * * * t {a:'" + "x" * MAX_JSON5_CHARACTERS + "'}",
            f"payload: {MAX_JSON5_CHARACTERS + 6} characters of JSON5",
        ),
        ('* * * * * t {"a":"' + "x" * 2**20 + '"}', "payload: 1048584 bytes, the limit is 1048576"),
    ],
    ids=lambda value: value[:50],
)  # fmt: skip
def test_an_error_names_the_line_the_value_and_the_correction(line: str, said: str) -> None:
    result = problems(f"# comment\n\n{line}\n")
    assert any(problem.startswith(f"crontab line 3: {said}") for problem in result), result


def test_all_problems_of_all_lines_are_reported_at_once() -> None:
    result = problems("61 24 * * * 1t ?fil=2d {a}\n* * * * * good\n* * * *\n\n* * 0 * * t ?max=x")
    assert [problem.partition(": ")[0].removeprefix("crontab ") for problem in result] == [
        *["line 1"] * 5,
        "line 3",
        *["line 5"] * 2,
    ]


def test_two_items_with_one_identifier_are_refused_naming_both_lines() -> None:
    (problem,) = problems("0 1 * * * a\n0 2 * * * b\n0 3 * * * a\n")
    assert problem == (
        "crontab line 3: duplicate identifier 'a', also of crontab line 1;"
        " change one of them (?id=NAME, CronItem.identifier)"
    )
    assert len(parse_crontab("0 1 * * * a\n0 3 * * * a ?id=b\n")) == 2


def test_items_of_two_crontabs_are_held_apart_by_the_same_rule() -> None:
    ours, theirs = parse_crontab("* * * * * a\n* * * * * b", "ours"), parse_crontab("# c\n* * * * * a", "theirs")
    assert refuse_duplicates(ours) == ours
    with pytest.raises(CrontabError, match="theirs line 2: duplicate identifier 'a', also of ours line 1"):
        refuse_duplicates([*ours, *theirs])


def test_a_crontab_error_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        parse_crontab("nonsense")


def test_json5_is_accepted_in_all_its_ways() -> None:
    line = "* * * * * t {a: 'it''s', 'b': 0x10, \"c\": .5, d: +1, e: [1, 2,], f: {g: null,}, /* why */ h: '\\u{1F600}'}"
    line = line.replace("it''s", "it\\'s").replace("\\u{1F600}", "\\uD83D\\uDE00")
    assert parse(line).payload == {"a": "it's", "b": 16, "c": 0.5, "d": 1, "e": [1, 2], "f": {"g": None}, "h": "😀"}


def test_a_zone_with_a_plus_in_its_name_may_be_written_as_it_is() -> None:
    assert parse("* * * * * t ?tz=Etc/GMT+1").tz == parse("* * * * * t ?tz=Etc%2FGMT%2B1").tz == "Etc/GMT+1"


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("* * * * * t", "* * * * * t"),
        ("0-59 0-23 1-31 1-12 0-6 t ?id=t&tz=UTC&priority=0&fill=0s {}", "* * * * * t"),
        ("*/1 00 2,1,3 5,6 1,3-5,7 t", "* 0 1-3 5,6 0,1,3-5 t"),
        ("0,15,30,45 */12 * * * t", "*/15 0,12 * * * t"),
        ("* * * * * t ?tz=Etc/GMT%2B1&fill=1h30m&id=x", "* * * * * t ?id=x&fill=90m&tz=Etc/GMT%2B1"),
        ("* * * * * t {b:1, _cron:2, a:'ä'}", '* * * * * t {"a":"ä","b":1}'),
    ],
)
def test_equal_items_have_one_spelling(line: str, spec: str) -> None:
    assert parse(line).spec == spec


VALUES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A crontab's line that says nothing wrong."""
    fields = []
    for least, most in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6)):
        some = st.lists(st.integers(least, most), min_size=1, max_size=5).map(lambda found: ",".join(map(str, found)))
        fields.append(draw(st.just("*") | some | st.integers(1, most).map(lambda step: f"*/{step}")))
    given = {
        "id": draw(st.none() | st.from_regex(r"[_a-zA-Z][_a-zA-Z0-9:/-]{0,20}", fullmatch=True)),
        "fill": draw(st.none() | st.integers(0, 366 * 86_400).map(lambda seconds: f"{seconds}s")),
        "max": draw(st.none() | st.integers(1, 2**31 - 1)),
        "priority": draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        "tz": draw(st.none() | st.sampled_from(["UTC", "Europe/Berlin", "Etc/GMT%2B1"])),
    }
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    payload = draw(
        st.none() | st.dictionaries(VALUES, VALUES | st.integers(-(2**53), 2**53) | st.booleans(), max_size=4)
    )
    words = [*fields, "task", *([f"?{'&'.join(options)}"] if options else [])]
    return " ".join([*words, *([json.dumps(payload)] if payload is not None else [])])


@settings(max_examples=80, derandomize=True, database=None, deadline=None)
@given(lines())
def test_a_spec_reads_back_as_the_same_item(line: str) -> None:
    item = parse(line)
    again = parse(item.spec)
    assert again.spec == item.spec
    assert (again.identifier, again.fill, again.tz) == (item.identifier, item.fill, item.tz)
    assert without_payload(again) == without_payload(item)
    assert again.payload == item.payload


def without_payload(item: ParsedItem) -> NewJob:
    """The order of the keys is not part of an item."""
    return msgspec.structs.replace(item.job(AT, backfilled=True), payload="")


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(VALUES, VALUES, VALUES)
def test_queues_and_keys_survive_the_query_string(queue: str, key: str, value: str) -> None:
    quoted = ["".join(f"%{byte:02X}" for byte in text.encode()) for text in (queue, key)]
    item = parse(f"* * * * * t ?queue={quoted[0]}&jobKey={quoted[1]} {json.dumps({'value': value})}")
    for found in (item, parse(item.spec)):
        job = found.job(AT, backfilled=False)
        assert (job.serial, job.key, json.loads(job.payload)["value"]) == (queue, key, value)


NOISE = st.text(st.sampled_from("0123456789*/,- \t\r\n#?&={}[]'\"abM:%+@_\\\x00\ud800é٣") | st.characters())


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(NOISE, st.sampled_from(["", "* * * * * t ", "* * * * * t ?", "* * * * * t {", "* * * * ", "0 0 1 1 "]))
@example("9" * 5000 + " * * * * t ?max=" + "9" * 5000 + "&fill=" + "9" * 5000 + "w {a:" + "9" * 5000 + "}", "")
@example("[" * 3000, "* * * * * t {a:")
@example("{a:" * 3000, "* * * * * t ")
@example('{"a":' * 3000, "* * * * * t ")
@example("*/" + "9" * 5000 + " " + "9" * 5000 + "-" + "9" * 5000 + " * * * t", "")
def test_any_text_is_an_item_or_a_crontab_error(noise: str, start: str) -> None:
    try:
        items = parse_crontab(start + noise)
    except CrontabError:
        return
    assert [parse(item.spec).spec for item in items] == [item.spec for item in items]


def fill_of(phrase: str) -> float:
    return parse(f"* * * * * t ?fill={phrase}").fill


def test_phrases_add_up() -> None:
    assert fill_of("4w3d2h1m") == 44_761 * 60
    assert [fill_of(f"1{unit}") for unit in "smhdw"] == [1, 60, 3600, 86_400, 604_800]
    assert fill_of("1m1m") == 120
    assert fill_of("0s") == 0


@pytest.mark.parametrize(
    "text", ["5", "d", "1.5h", "-1d", "1+d", "1D", "1y", "1d+", "%D9%A3d", "1d%0A", "9" * 13 + "s"]
)
def test_an_invalid_phrase_is_refused(text: str) -> None:
    with pytest.raises(CrontabError, match="is not a period; write for example 30m"):
        fill_of(text)


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.sampled_from("wdhms")), min_size=1, max_size=5))
def test_a_phrase_is_its_sum_and_is_said_as_one_that_is_read_back(parts: list[tuple[int, str]]) -> None:
    item = parse("* * * * * t ?fill=" + "".join(f"{number}{unit}" for number, unit in parts))
    assert item.fill == sum(number * SECONDS_BY_UNIT[unit] for number, unit in parts)
    assert parse(item.spec).fill == item.fill
