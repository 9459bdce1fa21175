"""Items written in Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from stowhand.cron.crontab import parse_cron_items, parse_crontab
from stowhand.cron.item import CronDate, CronItem, CronOptions, ParsedItem
from stowhand.errors import CrontabError
from stowhand.jobs.job import KeyMode

AT = datetime(2026, 1, 5, 4, 30, tzinfo=UTC)


def parse(**given: Any) -> ParsedItem:
    (item,) = parse_cron_items([CronItem(**({"task": "t", "match": "* * * * *"} | given))])
    return item


def problems(*items: Any) -> list[str]:
    with pytest.raises(CrontabError) as caught:
        parse_cron_items(items)
    return str(caught.value).split("\n")


def test_an_item_of_a_task_and_a_match_has_the_defaults() -> None:
    item = parse()
    job = item.job(AT, backfilled=False)
    assert (item.identifier, item.fill, item.tz, item.payload) == ("t", 0.0, "UTC", {})
    assert (job.max_attempts, job.serial, job.priority, job.key, job.key_mode) == (None, None, 0, None, KeyMode.REPLACE)


def test_an_item_and_a_line_that_say_the_same_are_the_same() -> None:
    options = CronOptions(
        backfill_period=timedelta(days=2), max_attempts=10, queue_name="q", priority=-1, job_key="k k",
        job_key_mode="preserve_run_at", work_queue="bulk",
    )  # fmt: skip
    item = parse(
        task="mail", match="30 4 * * 1", identifier="weekly", payload={"a": 1}, tz="Europe/Berlin", options=options
    )
    line = (
        "30 4 * * 1 mail ?id=weekly&fill=2d&max=10&queue=q&priority=-1&jobKey=k+k&jobKeyMode=preserve_run_at"
        "&work_queue=bulk&tz=Europe/Berlin {a:1}"
    )
    (written,) = parse_crontab(line)
    assert item.spec == written.spec
    assert item.job(AT, backfilled=True) == written.job(AT, backfilled=True)
    assert (item.options.queue_name, item.options.work_queue) == ("q", "bulk")
    assert (parse().options.queue_name, parse().options.work_queue) == (None, None)


def test_pattern_is_another_name_for_match() -> None:
    (item,) = parse_cron_items([CronItem(task="t", pattern="0 0 * * *")])
    assert item.spec == "0 0 * * * t"


def test_a_function_decides_instead_of_the_fields() -> None:
    calls = []

    def first_working_day(date: CronDate) -> bool:
        calls.append(date)
        return date.hour == 9 and date.minute == 0 and date.weekday in range(1, 6) and date.day <= 3

    item = parse(match=first_working_day, tz="Europe/Berlin")
    result = item.next_after(datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert result == datetime(2026, 2, 2, 8, tzinfo=UTC)
    date = calls[-1]
    assert (date.minute, date.hour, date.day, date.month, date.weekday) == (0, 9, 2, 2, 1)
    assert (date.at, date.at.isoformat()) == (result, "2026-02-02T09:00:00+01:00")
    assert item.due(result)
    assert not item.due(result + timedelta(minutes=1))
    assert list(item.ticks(result, result + timedelta(minutes=5))) == [result]
    assert item.spec.endswith("first_working_day t ?tz=Europe/Berlin")
    assert item.spec.startswith("tests.") or "test_cron_items" in item.spec


def test_a_function_is_asked_about_eight_days_ahead() -> None:
    item = parse(match=lambda date: date.at == datetime(2026, 1, 20, tzinfo=UTC))
    assert item.next_after(datetime(2026, 1, 11, tzinfo=UTC)) is None
    assert item.next_after(datetime(2026, 1, 12, tzinfo=UTC)) == datetime(2026, 1, 20, tzinfo=UTC)


def test_a_callable_object_is_a_function_too() -> None:
    class Never:
        def __call__(self, date: CronDate) -> bool:
            return False

    assert "Never t" in parse(match=Never()).spec


def test_a_payload_is_whatever_becomes_an_object_and_is_copied() -> None:
    class Report(msgspec.Struct):
        of: str
        _cron: str = "mine"

    options = {"nested": [1]}
    item = parse(payload=options)
    options["nested"].append(2)
    assert item.payload == {"nested": [1]}
    assert json.loads(parse(payload=Report("sales")).job(AT, backfilled=False).payload) == {
        "of": "sales",
        "_cron": {"ts": "2026-01-05T04:30:00.000Z", "backfilled": False},
    }


def test_a_period_of_backfill_is_seconds_or_a_timedelta_rounded_up() -> None:
    periods: list[float | timedelta] = [0, 90, 1.2, timedelta(minutes=3), timedelta(milliseconds=1), 366 * 86_400]
    rows = [parse(options=CronOptions(backfill_period=period)).fill for period in periods]
    assert rows == [0, 90, 2, 180, 1, 366 * 86_400]


def test_a_task_may_have_any_name_that_a_job_may_have() -> None:
    assert parse(task="mail.send now").task == "mail.send now"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"match": None}, "use exactly one of match and its alias pattern"),
        ({"pattern": "* * * * *"}, "use exactly one of match and its alias pattern"),
        ({"match": "* * *"}, "match '* * *': 3 words; write five fields, as in '0 4 * * *'"),
        ({"match": "* * * * * task"}, "match '* * * * * task': 6 words; write five fields"),
        ({"match": ""}, "match '': 0 words; write five fields"),
        ({"match": "60 * * * MON"}, "minute '60': 60 is not within 0 to 59"),
        ({"match": 5}, "match: got an int; use five fields such as '0 4 * * *', or a function"),
        ({"task": ""}, "task: empty; use 1 to 128 characters"),
        ({"task": None}, "task: got a NoneType; use a string"),
        ({"identifier": "a\tb"}, "identifier: the control character U+0009"),
        ({"identifier": ""}, "identifier: empty"),
        ({"identifier": "i" * 257}, "identifier: 257 characters, the limit is 256"),
        ({"payload": [1]}, "payload: [1]; use an object"),
        ({"payload": {"a": float("nan")}}, "payload: cannot be written as JSON: NaN and infinity"),
        ({"payload": {"a": 1j}}, "payload: cannot be written as JSON: a complex has no JSON form"),
        ({"tz": "Mars/Base"}, "tz: 'Mars/Base' is not a time zone"),
        ({"tz": 1}, "tz: got an int; use a name such as Europe/Berlin"),
        ({"options": {"max_attempts": 3}}, "options: got a dict; use CronOptions(…)"),
        ({"options": CronOptions(backfill_period=-1)}, "backfill_period: -1 s; use 0 to 366d"),
        ({"options": CronOptions(backfill_period=float("nan"))}, "backfill_period: nan s; use 0 to 366d"),
        ({"options": CronOptions(backfill_period=float("inf"))}, "backfill_period: inf s; use 0 to 366d"),
        (
            {"options": CronOptions(backfill_period=True)},
            "backfill_period: got a bool; use seconds, a timed",
        ),
        ({"options": CronOptions(backfill_period="soon")}, "backfill_period: 'soon' is not a duration"),
        ({"options": CronOptions(max_attempts=0)}, "max_attempts: 0; the limits are 1 and 2147483647"),
        ({"options": CronOptions(max_attempts=True)}, "max_attempts: got a bool; use a whole number"),
        ({"options": CronOptions(priority=2**31)}, "priority: 2147483648; the limits are"),
        ({"options": CronOptions(queue_name="")}, "queue_name: empty; use 1 to 128 characters"),
        ({"options": CronOptions(work_queue="")}, "work_queue: empty; use 1 to 128 characters"),
        ({"options": CronOptions(job_key="k" * 513)}, "job_key: 513 characters, the limit is 512"),
        ({"options": CronOptions(job_key_mode="replace")}, "job_key_mode: 'replace' has no effect without a key"),
        (
            {"options": CronOptions(job_key="k", job_key_mode="unsafe_dedupe")},
            "job_key_mode: 'unsafe_dedupe'; available: preserve_run_at, replace",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_mistake_names_the_item_the_field_and_what_would_be_right(given: dict[str, Any], said: str) -> None:
    given = {"task": "t", "match": "* * * * *"} | given
    (first, *_) = problems(CronItem(task="good", match="* * * * *"), CronItem(**given))
    assert first.startswith("cron item 2 (")
    assert f"): {said}" in first


def test_an_async_function_is_refused_because_what_it_returns_is_always_true() -> None:
    async def match(date: CronDate) -> bool:
        return False

    assert problems(CronItem(task="t", match=match)) == [  # type: ignore[arg-type]
        "cron item 1 (t): match: an async function; use a plain function"
    ]


def test_an_awaitable_result_of_match_is_an_error() -> None:
    async def later(date: CronDate) -> bool:
        return False

    class Asked:
        async def __call__(self, date: CronDate) -> bool:
            return False

    assert problems(CronItem(task="t", match=Asked())) == [  # type: ignore[arg-type]
        "cron item 1 (t): match: an async function; use a plain function"
    ]
    hidden = parse(match=lambda date: later(date))
    with pytest.raises(TypeError, match="returned a coroutine; use a plain function that returns True or False"):
        hidden.due(AT)


@pytest.mark.parametrize("wrong", [None, 5, "* * * * * t", CronItem(task="t", match="* * * * *")])
def test_a_value_that_is_not_a_list_of_items_is_refused(wrong: Any) -> None:
    with pytest.raises(CrontabError, match=f"^cron items: got an? {type(wrong).__name__}; use a list of CronItem$"):
        parse_cron_items(wrong)


def test_an_unprintable_name_is_reported_in_ascii() -> None:
    (problem, _) = problems(CronItem(task="two\nlines\ud800", match="* * * * *"))
    assert problem.startswith(r"cron item 1 ('two\nlines\ud800'): task: ")
    (problem, *_) = problems(CronItem(task="x" * 1000, match="* * * * *"))
    assert problem.startswith(f"cron item 1 ({'x' * 40}…): task: ")


def test_all_problems_of_all_items_are_reported_at_once() -> None:
    result = problems(
        CronItem(task="", match="60 * * * *", options=CronOptions(max_attempts=0, priority=2**40)),
        "no item",
        CronItem(task="a", match="* * * * *"),
        CronItem(task="a", match="0 * * * *"),
    )
    assert [problem.partition(":")[0] for problem in result] == [
        *["cron item 1 ()"] * 5,
        "cron item 2",
        "cron item 4 (a)",
    ]
    assert "duplicate identifier 'a', also of cron item 3 (a)" in result[-1]
