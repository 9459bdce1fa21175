"""What a worker is told of the next due record."""

from __future__ import annotations

from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened


def test_what_the_view_hides_does_not_wait(run: Run, place: Place) -> None:
    """No claim can take it: the longest wait and the next due moment are of what the view shows."""
    place.sql("DROP VIEW IF EXISTS shown")
    place.sql("CREATE VIEW shown AS SELECT * FROM uploads WHERE size > 0")
    long_ago = "2024-05-01 12:00:00"

    async def scenario() -> None:
        for state in ("queued", "errored"):
            place.add("hidden", size=0, state=state, queued_at=long_ago, finished_at=long_ago, process_after=long_ago)
        async with opened(place, view_name="shown u", max_num_retries=1, record=None) as store:
            assert (await store.max_duration_in_queue()).total_seconds() == 0
            assert await store.next_due(None) is None
            assert await claimed(store) == []
            place.add("shown", queued_at=long_ago)
            assert (await store.max_duration_in_queue()).days > 365
            assert await store.next_due(None) == 0
            assert len(await claimed(store)) == 1

    run(scenario())
