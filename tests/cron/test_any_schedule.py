"""Whatever happens to the clock, the store and the schedulers: each tick becomes a job, and never two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Run
from tests.cron.harness import Harness, in_harness

Match = Callable[[datetime], bool]

PATTERNS: dict[str, Match] = {
    "*/10 * * * *": lambda at: at.minute % 10 == 0,
    "7,8,59 * * * *": lambda at: at.minute in (7, 8, 59),
    "0 */3 * * *": lambda at: at.minute == 0 and at.hour % 3 == 0,
    "30 4 * * 1-5": lambda at: (at.hour, at.minute) == (4, 30) and at.isoweekday() <= 5,
    "0 0 * * *": lambda at: (at.hour, at.minute) == (0, 0),
    "15 12 1 * *": lambda at: (at.day, at.hour, at.minute) == (1, 12, 15),
}
ONE_MINUTE = timedelta(minutes=1)

Step = tuple[str, Any]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("pass"), st.floats(1.0, 4 * 3600.0)),
    st.tuples(st.just("clock"), st.sampled_from([-86_400, -3700, -61, -5, 5, 61, 3700, 40_000, 200_000])),
    st.tuples(st.just("start"), st.none()),
    st.tuples(st.just("crash"), st.floats(0.0, 200_000.0)),
    st.tuples(st.just("outage"), st.floats(1.0, 15_000.0) | st.just(90_000.0)),  # more than a day
    st.tuples(st.just("lose replies"), st.integers(1, 3)),
)


@given(
    patterns=st.lists(st.sampled_from(list(PATTERNS)), min_size=1, max_size=3),
    second=st.integers(0, 7200),
    steps=st.lists(STEPS, max_size=8),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_tick_becomes_exactly_one_job(run: Run, patterns: list[str], second: int, steps: list[Step]) -> None:
    items = {f"item{number}": pattern for number, pattern in enumerate(patterns)}
    crontab = "\n".join(f"{pattern} {name} ?fill=52w" for name, pattern in items.items())

    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:00") as harness:
            await harness.clock.advance(second)
            await harness.start(crontab)
            running = 1
            for what, how in steps:
                running = await _do(harness, crontab, running, what, how)
            if not running:
                await harness.start(crontab)
            await harness.clock.advance(130)
            await _check(harness, items)

    run(scenario(), 120)


async def _do(harness: Harness, crontab: str, running: int, what: str, how: Any) -> int:
    """One thing that happens; gives how many schedulers run afterwards."""
    match what:
        case "pass":
            await harness.clock.advance(how)
        case "clock":
            harness.store.ahead += timedelta(seconds=how)
        case "start" if running < 3:
            await harness.start(crontab)
            return running + 1
        case "crash":
            await harness.stop()
            await harness.clock.advance(how)
            return 0
        case "outage":
            harness.store.down = True
            await harness.clock.advance(how)
            harness.store.down = False
            await harness.clock.advance(6)
        case "lose replies":
            harness.store.mute = how
    return running


async def _check(harness: Harness, items: dict[str, str]) -> None:
    instance: Counter[tuple[str, str]] = await harness.count()
    assert set(instance.values()) <= {1}, "twice"
    now = await harness.at()
    for known in await harness.store.timetable.known_items():
        matches = PATTERNS[items[known.identifier]]
        at = known.known_since.replace(second=0, microsecond=0)
        at += ONE_MINUTE * (at < known.known_since)
        while at <= now:
            stamp = f"{at:%Y-%m-%dT%H:%M:00.000Z}"
            assert ((known.identifier, stamp) in instance) == matches(at), (known, at)
            at += ONE_MINUTE
