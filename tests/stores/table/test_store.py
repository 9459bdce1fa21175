"""The table's store as a worker sees it: the same on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Claim, Verdict
from stowhand.table import TableStore, Where, sql
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import TOKEN, Upload, claimed, opened, options, worked_off


def test_a_claimed_row_is_a_record_with_the_facts_of_its_attempt(place: Place, run: Run) -> None:
    place.add("a.py", size=7, num_failures=1, num_resets=1)

    async def main() -> None:
        async with opened(place, max_num_retries=2) as store:
            (claim,) = await claimed(store)
            assert claim.record == Upload(1, "a.py", 7, [])
            assert (claim.task, claim.attempts, claim.max_attempts, claim.resets) == ("uploads", 2, 3, 1)
            assert (claim.lease.job_id, claim.lease.token) == (1, TOKEN)
            assert claim.lease.epoch > datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1e6

    run(main())


def test_more_failures_than_attempts_are_the_last_attempt(place: Place, run: Run) -> None:
    place.add("a.py", num_failures=9)

    async def main() -> None:
        async with opened(place, max_num_retries=2) as store:
            (claim,) = await claimed(store)
            assert (claim.attempts, claim.max_attempts) == (3, 3)

    run(main())


def test_a_row_of_which_no_record_can_be_made_fails_alone(place: Place, run: Run) -> None:
    place.add("good.py", "bad.py", "good too.py")
    seen = []

    def scan(row: Sequence[Any]) -> Any:
        if row[1] == "bad.py":
            raise ValueError("no such language")
        return row

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        seen.append(record)

    async def main() -> None:
        async with opened(place, record=None, scan=scan, column_expressions=["id", "u.path"]) as store:
            await worked_off(store, handle)

    run(main())
    assert place.states() == ["completed", "failed", "completed"]
    assert [tuple(row) for row in seen] == [(1, "good.py"), (3, "good too.py")]
    ((message,),) = place.sql("SELECT failure_message FROM uploads WHERE id = 2")
    assert "the record could not be read: ValueError: no such language" in message


def test_without_a_type_a_record_is_a_dict_of_every_column(place: Place, run: Run) -> None:
    place.add("a.py")

    async def main() -> None:
        async with opened(place, record=None) as store:
            (claim,) = await claimed(store)
            assert (claim.record["path"], claim.record["state"]) == ("a.py", "processing")
            assert claim.record["worker_hostname"] == f"host/1/boot/{TOKEN}"

    run(main())


def test_expressions_of_sql_take_values_and_names(place: Place, run: Run) -> None:
    place.add("a.py", size=7)
    expressions = ["u.id", sql("u.size + {} AS total", 5), sql("upper(u.path) AS path")]

    async def main() -> None:
        async with opened(place, record=None, column_expressions=expressions) as store:
            (claim,) = await claimed(store)
            assert claim.record == {"id": 1, "total": 12, "path": "A.PY"}

    run(main())


def test_a_type_whose_fields_are_not_selected_is_refused_before_any_claim(place: Place, run: Run) -> None:
    place.add("a.py")

    async def main() -> None:
        with pytest.raises(TableUnsuitable, match=r"size, execution_logs, which .*Upload.* cannot do without"):
            async with opened(place, column_expressions=["id", sql("lower(path) AS path")]):
                pass

        @dataclass
        class Mistyped:
            id: int
            pathh: str

        with pytest.raises(TableUnsuitable, match=r"no such column: 'pathh' \(did you mean 'path'\?\)"):
            async with opened(place, record=Mistyped):
                pass

    run(main())
    assert place.states() == ["queued"]


def test_settlements_and_their_repeats_have_verdicts(place: Place, run: Run) -> None:
    place.add("a.py", "b.py")
    failed = Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")

    async def main() -> None:
        async with opened(place) as store:
            one, two = await claimed(store)
            batch = [(one.lease, COMPLETED), (two.lease, failed)]
            assert list(await store.settle(batch)) == [Verdict.SETTLED] * 2
            assert list(await store.settle(batch, repeat=True)) == [Verdict.ALREADY_SETTLED] * 2
            assert list(await store.settle([])) == []

    run(main())
    assert place.states() == ["completed", "failed"]


def test_another_stores_tasks_are_not_its_own(place: Place, run: Run) -> None:
    place.add("a.py")

    async def main() -> None:
        async with opened(place) as store:
            assert await claimed(store, tasks=("others",)) == []
            assert await store.next_due(("others",)) is None
            assert await store.next_due(("uploads",)) == 0
            assert len(await claimed(store, tasks=("others", "uploads"))) == 1

    run(main())


def test_a_claim_takes_conditions_and_refuses_text(place: Place, run: Run) -> None:
    place.add("big.py", size=100)
    place.add("small.py", size=1)
    either = sql("u.size > {} OR u.size < {}", 1000, 10)

    async def main() -> None:
        async with opened(place) as store:
            with pytest.raises(ConfigurationError, match=r"written sql\(\"size < 10\"\)"):
                await claimed(store, conditions=("size < 10",))
            both = (either, Where("path", "!=", "small.py"))
            assert await claimed(store, token=str(uuid4()), conditions=both) == []
            (claim,) = await claimed(store, conditions=(Where("u.size", "<=", 10),))
            assert claim.record.path == "small.py"

    run(main())


def test_the_options_lay_down_a_workers_terms(on_sqlite: Place) -> None:
    def terms(**given: Any) -> Any:
        return TableStore(on_sqlite.url, options(**given)).terms

    instance = terms(stalled_max_age=5, retry_after=timedelta(milliseconds=250))
    assert (instance.lease, instance.heartbeat_interval, instance.polls) == (5.0, None, True)
    assert [instance.backoff(attempt) for attempt in (1, 7)] == [0.25, 0.25]
    assert terms(heartbeat_interval=8).heartbeat_interval == 8
    assert terms(cancel_interval=timedelta(milliseconds=500)).cancel_interval == 0.5


def test_a_table_that_cannot_be_served_is_not_touched(place: Place, run: Run) -> None:
    place.add("a.py")
    place.sql("ALTER TABLE uploads DROP COLUMN num_failures")
    place.sql("ALTER TABLE uploads DROP COLUMN execution_logs")

    async def main() -> None:
        store = TableStore(place.url, options(record=None))
        try:
            findings = [one for one in await store.check() if one.fatal]
            assert len(findings) == 2
            with pytest.raises(TableUnsuitable) as caught:
                await worked_off(store, lambda ctx, record: None)
            for finding in findings:
                assert finding.fix
                assert all(line in str(caught.value) for line in finding.fix.splitlines())
                place.sql(finding.fix)
            assert [one for one in await store.check() if one.fatal] == []
        finally:
            await store.close()

    run(main())
    assert place.states() == ["queued"]


def test_a_store_can_be_described_and_can_furnish_before_it_is_open(place: Place) -> None:
    store = TableStore(place.url, options(name="indexing"))
    instance = Attempt(Claim(Lease(1, TOKEN, 0), None, "indexing", 1, 1), 0.0)
    assert store.name == "indexing"
    assert store.description
    assert store.around(instance) is None
    assert instance.store.requeued is None
