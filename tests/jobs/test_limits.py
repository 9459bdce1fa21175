"""What a job may be: every refusal names the field, the trouble and the limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowhand.errors import InvalidJob
from stowhand.jobs import limits, strict_json
from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement

KEPT = "; keep the data in a file or a table, and pass its path or id"
JANUARY = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def job(**fields: Any) -> NewJob:
    return NewJob(**{"task": "send", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": ""}, "task: empty; use 1 to 128 characters"),
        ({"task": "x" * 129}, "task: 129 characters, the limit is 128"),
        ({"task": "a\nb"}, "task: the control character U+000A at position 1; use one line of text"),
        ({"task": "a\x00"}, "task: NUL at position 1; use one line of text"),
        ({"task": "\ud800"}, "task: a lone surrogate at position 0; use one line of text"),
        ({"task": 7}, "task: got an int; use a string"),
        ({"serial": "q" * 129}, "serial: 129 characters, the limit is 128"),
        ({"serial": ""}, "serial: empty; use 1 to 128 characters"),
        ({"queue": "a,b"}, "queue: 'a,b'; the name of a queue must not contain a comma, or begin or end with a blank"),
        ({"queue": " a"}, "queue: ' a'; the name of a queue must not contain a comma, or begin or end with a blank"),
        ({"key": "k" * 513}, "key: 513 characters, the limit is 512"),
        ({"key": "\x1b[31m"}, "key: the control character U+001B at position 0; use one line of text"),
        ({"flags": ["f"] * 65}, "flags: 65 flags, the limit is 64"),
        ({"flags": ["f" * 129]}, "flags: 129 characters, the limit is 128"),
        ({"flags": "loud"}, "flags: got a str; use a list of names"),
        ({"flags": [1]}, "flags: got an int; use a string"),
        ({"priority": 2**31}, "priority: 2147483648; the limits are -2147483648 and 2147483647"),
        ({"priority": -(2**31) - 1}, "priority: -2147483649; the limits are -2147483648 and 2147483647"),
        ({"priority": 10**4000}, "priority: far too large a number; the limits are -2147483648 and 2147483647"),
        ({"priority": True}, "priority: got a bool; use a whole number"),
        ({"priority": 1.0}, "priority: got a float; use a whole number"),
        ({"max_attempts": 0}, "max_attempts: 0; the limits are 1 and 2147483647"),
        ({"max_attempts": True}, "max_attempts: got a bool; use a whole number"),
        ({"max_resets": -1}, "max_resets: -1; the limits are 0 and 2147483647"),
        ({"delay": -0.5}, "delay: -0.5 seconds; it must not be negative"),
        ({"delay": float("nan")}, "delay: nan; use a finite number of seconds"),
        ({"delay": float("inf")}, "delay: inf; use a finite number of seconds"),
        ({"delay": 10**400}, "delay: inf; use a finite number of seconds"),
        ({"delay": 4e9}, "delay: 4e+09 seconds, the limit is 3.15576e+09 (100 years)"),
        ({"delay": "soon"}, "delay: 'soon' is not a duration; write for example 250ms, 30s, 5m, 1.5h or 2d"),
        ({"delay": True}, "delay: got a bool; use a timedelta, a number of seconds or a phrase such as '5m'"),
        ({"run_at": "tomorrow"}, "run_at: got a str; use a datetime with a time zone"),
        ({"run_at": JANUARY.replace(tzinfo=UTC), "delay": 1.0}, "run_at and delay: use one of them"),
        (
            {"key_mode": "replase"},
            "key_mode: 'replase'; did you mean 'replace'? Available: replace, preserve_run_at, unique, unsafe_dedupe",
        ),
        ({"key_mode": 1}, "key_mode: got an int; use a string"),
        ({"payload": {"a": 1}}, "payload: got a dict; use a string"),
        ({"payload": '{"a":NaN}'}, f"payload: JSON is malformed: {strict_json.NOT_A_NUMBER}"),
        ({"payload": '{"a":1e5000}'}, "payload: a number with exponent 5000, the limit is 308 in either direction"),
        ({"payload": '"' + "x" * 2**20 + '"'}, "payload: 1048578 bytes, the limit is 1048576" + KEPT),
    ],
    ids=lambda given: given if isinstance(given, str) else next(iter(given)),
)
def test_the_error_of_an_invalid_job_names_the_field_and_the_limit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        limits.check(job(**fields))
    assert str(caught.value) == message


def test_a_naive_run_at_is_refused_with_a_lesson() -> None:
    with pytest.raises(InvalidJob, match=r"run_at: 2026-01-01T00:00:00 has no time zone; add one"):
        limits.check(job(run_at=JANUARY))


@pytest.mark.parametrize(("year", "month", "day", "hours"), [(9999, 12, 31, -24), (1, 1, 1, 1)])
def test_a_run_at_outside_of_the_calendar_in_utc_is_refused(year: int, month: int, day: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours, minutes=1))
    with pytest.raises(InvalidJob, match="outside the years 1 to 9999"):
        limits.check(job(run_at=datetime(year, month, day, 23 if hours < 0 else 0, 59, tzinfo=zone)))


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "x" * 128, "serial": "q" * 128, "key": "k" * 512, "flags": tuple("f" * 128 for _ in range(64))},
        {"task": "mail/send-it:now.später 😀", "key": "with space\u00a0and\u200dmore"},
        {"priority": 2**31 - 1, "max_attempts": 2**31 - 1, "max_resets": 0},
        {"priority": -(2**31), "max_attempts": 1, "delay": 0.0},
        {"run_at": JANUARY.replace(tzinfo=UTC), "payload": "[1, 2]"},
        {"payload": '"' + "x" * (2**20 - 2) + '"'},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_what_is_just_within_the_limits_is_left_as_it_is(fields: dict[str, Any]) -> None:
    given_job = job(**fields)
    assert limits.check(given_job) is given_job


def test_plainly_meant_values_get_their_exact_types() -> None:
    checked = limits.check(job(delay=timedelta(minutes=1), flags=["a", "b"], key_mode="unsafe_dedupe", key="k"))
    assert (checked.delay, checked.flags, checked.key_mode) == (60.0, ("a", "b"), KeyMode.UNSAFE_DEDUPE)
    assert type(checked.key_mode) is KeyMode


@given(
    st.builds(
        lambda **fields: fields,
        task=st.text(max_size=140) | st.integers(),
        serial=st.none() | st.text(max_size=140),
        priority=st.integers(-(2**33), 2**33) | st.booleans() | st.floats(),
        delay=st.none() | st.floats() | st.timedeltas() | st.text(),
        flags=st.lists(st.text(max_size=5), max_size=70) | st.text(max_size=3) | st.none(),
        max_attempts=st.integers(-1, 3) | st.none(),
    )
)
def test_whatever_is_given_the_answer_is_a_checked_job_or_invalid_job(fields: dict[str, Any]) -> None:
    try:
        checked = limits.check(NewJob(**fields))
    except InvalidJob as error:
        assert str(error).partition(":")[0] in NewJob.__struct_fields__  # noqa: PT017
    else:
        assert limits.check(checked) is checked
        assert "\x00" not in checked.task


def test_what_is_left_of_a_batch_is_checked_where_it_is_written_and_only_there() -> None:
    limits.check_remaining_payload(Settlement(State.ERRORED, AttemptOutcome.RETRY, payload="[1]"))
    limits.check_remaining_payload(Settlement(State.COMPLETED, AttemptOutcome.OK, payload="{not json"))
    for state in (State.ERRORED, State.FAILED):
        with pytest.raises(InvalidJob, match="the payload: "):
            limits.check_remaining_payload(Settlement(state, AttemptOutcome.FAILED, payload="{not json"))
