"""Declared limits: what is refused, and the arithmetic of rates."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from stowhand import App
from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.jobs.task_limits import (
    LimitValues,
    TaskLimits,
    after_starts,
    key_name,
    next_start,
    own_serial,
    rate_opens_at,
    read_limits,
    starts_allowed,
)
from stowhand.limits import Concurrency, Rate

REFUSED: dict[str, tuple[Any, str]] = {
    "no jobs": (lambda: Concurrency(0), "limit: got 0; use a whole number from 1"),
    "a truth": (lambda: Concurrency(True), "limit: got True; use a whole number"),
    "a period of nothing": (lambda: Rate(5, per="0s"), "per: got '0s'; use 1 ms to 366 days"),
    "a period that is no time": (lambda: Rate(5, per="soon"), "per: 'soon' is not a duration"),
    "no burst": (lambda: Rate(5, burst=0), "burst: got 0; use a whole number"),
    "an empty name": (lambda: Concurrency(5, name=""), "name: empty"),
    "a key of two lines": (lambda: Concurrency(5, key="a\tb"), "key: .* use one line"),
    "another place": (lambda: Concurrency(5, per=cast("Any", "node")), "per: got 'node'; use 'store' or 'worker'"),
    "a shared limit per worker": (lambda: Concurrency(5, name="x", per="worker"), "per worker has no name and no key"),
    "turns without a key": (
        lambda: Concurrency(5, fair=True),
        "Concurrency: fair: keys take turns, and this limit has none",
    ),
    "turns of a rate without a key": (lambda: Rate(5, fair=True), "Rate: fair: keys take turns"),
    "turns that are no truth": (lambda: Rate(5, key="k", fair=cast("Any", 1)), "fair: got 1; use True or False"),
    "a number": (lambda: read_limits("t", 5), "got an int; use a list"),
    "a text": (lambda: read_limits("t", "5/s"), "got a str; use a list"),
    "a list of texts": (lambda: read_limits("t", ["5/s"]), "got a str; use Concurrency"),
    "a class": (lambda: read_limits("t", [Rate]), r"got the class Rate; use Rate\("),
    "two of one kind": (lambda: read_limits("t", [Rate(1), Rate(2)]), "two limits of the same kind: Rate"),
    "two keys": (
        lambda: read_limits("t", [Concurrency(1, key="a"), Rate(1, key="b")]),
        "a task has one key; use the same key and name",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_wrong_limit_is_refused_when_it_is_declared(mistake: str) -> None:
    declare, message = REFUSED[mistake]
    with pytest.raises(ConfigurationError, match=message):
        declare()


def test_a_key_is_an_argument_of_the_task_and_the_only_key() -> None:
    app = App("sqlite:///never-made.db")
    with pytest.raises(
        ConfigurationError, match=r"key: 'custmer' is not an argument of the task; did you mean 'customer'"
    ):
        app.task(name="a", limits=[Concurrency(1, key="custmer.id")])(lambda customer: None)
    with pytest.raises(ConfigurationError, match="a job has one key; use serial, or a limit with a key"):
        app.task(name="a", serial="q", limits=[Concurrency(1, key="customer")])(lambda customer: None)
    app.task(name="a", limits=[Concurrency(1, key="payload.id")])(lambda payload: None)


def test_tasks_that_share_a_limit_declare_the_same_values() -> None:
    app = App("sqlite:///never-made.db")
    app.task(name="a", limits=[Rate(5, name="api")])(lambda: None)
    app.task(name="b", limits=[Rate(5, name="api"), Concurrency(2, name="api")])(lambda: None)
    with pytest.raises(ConfigurationError, match=r"limit 'api' of the tasks 'a' .* and 'c' .*: 5 per 1s, and 6 per 1s"):
        app.task(name="c", limits=[Rate(6, name="api")])(lambda: None)
    assert app.registry.declarations().limits == {"api": LimitValues(concurrency=2, rate=5, rate_seconds=1.0, burst=1)}


@pytest.mark.parametrize("seed", range(20))
def test_no_period_has_more_starts_than_a_rate_promises(seed: int) -> None:
    choice = random.Random(seed)
    number, seconds, burst = choice.randint(1, 50), choice.choice([0.1, 1.0, 60.0]), choice.randint(1, 20)
    values = LimitValues(rate=number, rate_seconds=seconds, burst=burst)
    stored: float | None = None
    now, starts = 1_800_000_000.0, []
    for _ in range(300):
        now += choice.expovariate(2 * number / seconds)
        if allowed := min(starts_allowed(values, stored, now), choice.randint(0, 5)):
            stored = after_starts(values, stored, now, allowed)
            starts += [now] * allowed
        elif starts_allowed(values, stored, now) == 0:
            opens_at = rate_opens_at(values, stored, now)
            assert opens_at > now - 1e-6
            assert starts_allowed(values, stored, opens_at + 1e-6) == 1
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= burst + (starts[last] - starts[first]) * number / seconds + 1e-3
    assert len(starts) > 50


def test_a_time_far_ahead_is_ignored() -> None:
    values = LimitValues(rate=1, rate_seconds=1.0, burst=3)
    assert next_start(values, 103.0, 100.0) == 103.0
    assert next_start(values, 107.0, 100.0) == 107.0, "a claim that was delayed for some seconds"
    assert next_start(values, 109.0, 100.0) == 100.0, "the clock was set back, or the rate was raised"


def test_the_name_of_a_key_is_read_from_the_payload() -> None:
    payload = '{"customer": {"id": 7, "name": "Ann", "tags": ["a"]}, "empty": null}'
    paths = {"customer.id": "7", "customer.name": "Ann", "customer.tags": '["a"]', "empty": "", "absent.id": ""}
    assert {path: key_name("api", path, payload).removeprefix("api\t") for path in paths} == paths
    long = [key_name("api", "k", f'{{"k": "{"x" * 200}{end}"}}') for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name) <= 132 for name in long)
    assert [own_serial(name) for name in ("api\t7", "mail", None)] == [None, "mail", None]


@pytest.mark.parametrize("fair", [(True, False), (False, True), (True, True), (False, False)])
def test_the_keys_of_a_task_take_turns_if_one_of_its_limits_is_fair(fair: tuple[bool, bool]) -> None:
    declared = read_limits("t", [Concurrency(1, key="k", fair=fair[0]), Rate(1, key="k", fair=fair[1])])
    assert declared.limits == TaskLimits(key_limit="t", key="k", fair=any(fair))


def test_a_function_of_the_arguments_computes_the_key() -> None:
    app = App("sqlite:///never-made.db")
    limit = Concurrency(1, key=lambda customer: customer["region"].upper())

    @app.task(limits=[limit])
    async def call(customer: dict[str, str], number: int = 0) -> None: ...

    assert call.new_job({"region": "eu"}).serial == "call\tEU"
    assert app.registry.declarations().tasks == {"call": TaskLimits(key_limit="call")}
    with pytest.raises(InvalidJob, match="the function of limits: key raised KeyError"):
        call.new_job({})
    with pytest.raises(ConfigurationError, match="limits: key: the function takes nobody, which is not an argument"):
        app.task(name="b", limits=[Concurrency(1, key=lambda nobody: nobody)])(lambda customer: None)
