"""Retries without a wait: in the original, an errored record whose wait is nought is never looked at again."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

from stowhand.clock import wall_clock
from stowhand.protocols.attempt import Attempt
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import opened, worked_off


def test_without_a_wait_an_errored_record_is_tried_again_at_once(run: Run, place: Place) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        raise ValueError(f"attempt {ctx.claim.attempts}")

    async def story() -> None:
        place.add("unlucky")
        async with opened(place, max_num_retries=2, retry_after=0) as store:
            await worked_off(store, handle)
        ((state, failures, message),) = place.sql("SELECT state, num_failures, failure_message FROM uploads")
        assert (state, failures, message.splitlines()[0]) == ("failed", 3, "ValueError: attempt 3")

    run(story())


def test_without_a_wait_an_errored_record_counts_as_waiting_from_its_end(run: Run, place: Place) -> None:
    async def story() -> None:
        ago = wall_clock().astimezone(UTC) - timedelta(minutes=30)
        place.add("unlucky", state="errored", finished_at=ago.isoformat(sep=" "))
        async with opened(place, max_num_retries=1) as store:
            assert timedelta(minutes=29) < await store.max_duration_in_queue() < timedelta(minutes=32)

    run(story())
