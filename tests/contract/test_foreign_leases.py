"""What a store sees of leases that the asking worker does not renew: is one over, and when will the first be?"""

from __future__ import annotations

import pytest

from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import Foreign
from tests.contract.bench import LEASE, Bench

SLACK = slack(LEASE)


def ends_in(bench: Bench, *ours: object, slack: float = SLACK) -> float | None:
    seen = bench.heart.foreign(ours, slack)  # type: ignore[arg-type]
    assert seen is not None
    assert not seen.late
    return None if seen.ends_in is None else round(seen.ends_in, 3)


async def test_the_end_of_the_first_foreign_lease_is_told_in_seconds_and_with_the_slack(bench: Bench) -> None:
    assert bench.heart.foreign((), SLACK) == Foreign()
    first = await bench.start()
    await bench.pass_time(10)
    second = await bench.start("u")
    assert ends_in(bench) == 20 + SLACK
    assert ends_in(bench, first) == 30 + SLACK, "what is ours is not spoken of"
    assert ends_in(bench, first, second) is None
    bench.heart.beat([first], LEASE)
    await bench.pass_time(5)
    assert ends_in(bench) == 25 + SLACK


async def test_a_lease_that_is_over_is_late_and_names_nothing(bench: Bench) -> None:
    lease = await bench.start()
    await bench.pass_time(30.5)
    assert ends_in(bench) == 0.5, "the slack is not over"
    await bench.pass_time(1)
    assert bench.heart.foreign((), SLACK) == Foreign(late=True)
    assert bench.heart.foreign((lease,), SLACK) == Foreign()
    other = await bench.start("u")
    seen = bench.heart.foreign((), SLACK)
    assert seen is not None
    assert seen.late
    assert seen.ends_in == pytest.approx(31)
    bench.heart.reset_stalled(SLACK)
    assert ends_in(bench) == 31
    bench.heart.release([other])
    assert bench.heart.foreign((), SLACK) == Foreign()


async def test_a_claim_that_finds_nothing_tells_of_foreign_leases_if_it_was_asked(bench: Bench) -> None:
    lease = await bench.start()
    assert bench.store.foreign() is None
    for ours, told in (((), Foreign(ends_in=31.0)), ((lease,), Foreign()), (None, None)):
        assert await bench.claim(ours=ours) == []
        await bench.store.next_due(None)
        assert bench.store.foreign() == told
        assert bench.store.foreign() is None, "told once"
    await bench.pass_time(32)
    await bench.claim(ours=())
    await bench.store.next_due(None)
    assert bench.store.foreign() == Foreign(), "a past end names nothing"
