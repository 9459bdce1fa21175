"""What a look for the next due record costs decides how often it is taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stowhand.errors import StoreError
from stowhand.stores.table.claims import EXPENSIVE_SECONDS, PAUSE_PER_SECOND, PLAIN_POLL_SECONDS, Due
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import claimed, opened


class Table:
    """Its looks take time on a clock of its own."""

    def __init__(self, found: float | None) -> None:
        self.now, self.looks, self.touches, self.takes, self.found = 100.0, 0, 0, 0.0, found
        self._due = Due(lambda: self.now)

    async def look(self) -> float | None:
        self.looks += 1
        self.now += self.takes
        return self.found

    async def touch(self) -> None:
        self.touches += 1

    def ask(self, run: Run, *costs: float) -> Sequence[float | None]:
        answers = []
        for self.takes in costs:
            answers.append(run(self._due.ask(self.look, self.touch)))
        return answers


def test_a_cheap_look_is_taken_at_every_poll_and_one_slow_moment_changes_nothing(run: Run) -> None:
    table = Table(found=None)
    assert table.ask(run, 0.001, 10 * EXPENSIVE_SECONDS, 0.001, 0.001) == [None] * 4
    assert table.looks == 4


def test_a_dear_look_is_not_taken_again_until_its_share_of_the_time_has_passed(run: Run) -> None:
    table = Table(found=None)
    assert table.ask(run, 0.1, 0.1, 0.1, 0.1) == [None, None, 0.0, 0.0]
    table.now += PAUSE_PER_SECOND * 0.1 - 0.001
    assert table.ask(run, 0.1) == [0.0]
    table.now += 0.002
    assert table.ask(run, 0.1) == [None]
    assert (table.looks, table.touches) == (3, 3)  # whether the store answers is known all the same


def test_what_was_known_to_fall_due_is_still_met_to_the_moment_and_nothing_waits_longer_than_a_plain_poll(
    run: Run,
) -> None:
    table = Table(found=PLAIN_POLL_SECONDS + 1)
    table.ask(run, 0.1, 0.1)
    assert table.ask(run, 0.1) == [0.0]
    table.now += 2
    (left,) = table.ask(run, 0.1)
    assert left is not None
    assert abs(left - (PLAIN_POLL_SECONDS - 1)) < 0.001
    table.now += 1
    assert table.ask(run, 0.1) == [0.0]


def test_who_asks_whether_the_store_answers_is_told_the_truth_between_two_looks(
    on_postgres: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.stores.table.claims.EXPENSIVE_SECONDS", 0.0)
    monkeypatch.setattr("stowhand.stores.table.claims.PAUSE_PER_SECOND", 1e9)

    async def scenario() -> None:
        async with opened(on_postgres) as store:
            assert [await store.next_due(None) for _ in range(3)] == [None, None, 0.0]
            on_postgres.sql("DROP TABLE uploads CASCADE")
            with pytest.raises(StoreError):
                await store.next_due(None)

    run(scenario())


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
