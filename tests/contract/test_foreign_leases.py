"""What a store sees of leases that the asking worker does not renew: is one over, and when will the first be?"""

from __future__ import annotations

import pytest

from stowhand.jobs.lifecycle import slack
from stowhand.protocols.store import Foreign
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import LEASE, StoreHarness

pytestmark = needs("foreign")

SLACK = slack(LEASE)


async def ends_in(harness: StoreHarness, *ours: object, slack: float = SLACK) -> float | None:
    seen = await harness.heartbeats.foreign(ours, slack)  # type: ignore[arg-type]
    assert seen is not None
    assert not seen.has_expired
    return None if seen.expires_in is None else round(seen.expires_in, 3)


async def test_the_end_of_the_first_foreign_lease_includes_the_slack(harness: StoreHarness) -> None:
    assert await harness.heartbeats.foreign((), SLACK) == Foreign()
    first = await harness.start()
    await harness.pass_time(10)
    second = await harness.start("u")
    assert await ends_in(harness) == 20 + SLACK
    assert await ends_in(harness, first) == 30 + SLACK, "what is ours is not spoken of"
    assert await ends_in(harness, first, second) is None
    await harness.heartbeats.beat([first], LEASE)
    await harness.pass_time(5)
    assert await ends_in(harness) == 25 + SLACK


async def test_a_lease_that_is_over_is_late_and_names_nothing(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.pass_time(30.5)
    assert await ends_in(harness) == 0.5, "the slack is not over"
    await harness.pass_time(1)
    assert await harness.heartbeats.foreign((), SLACK) == Foreign(has_expired=True)
    assert await harness.heartbeats.foreign((lease,), SLACK) == Foreign()
    other = await harness.start("u")
    seen = await harness.heartbeats.foreign((), SLACK)
    assert seen is not None
    assert seen.has_expired
    assert seen.expires_in == pytest.approx(31)
    await harness.heartbeats.reset_stalled(SLACK)
    assert await ends_in(harness) == 31
    await harness.heartbeats.release([other])
    assert await harness.heartbeats.foreign((), SLACK) == Foreign()


@excepted(table="its heart looks")
async def test_an_empty_claim_with_own_leases_reports_foreign_leases(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert harness.store.foreign() is None
    for ours, told in (((), Foreign(expires_in=31.0)), ((lease,), Foreign()), (None, None)):
        assert await harness.claim(own_leases=ours) == []
        await harness.store.next_due(None)
        assert harness.store.foreign() == told
        assert harness.store.foreign() is None, "told once"
    await harness.pass_time(32)
    await harness.claim(own_leases=())
    await harness.store.next_due(None)
    assert harness.store.foreign() == Foreign(), "a past end names nothing"
