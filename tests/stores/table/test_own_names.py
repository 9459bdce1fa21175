"""Tables as people have them: other names, other keys, columns of their own; served the same on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.protocols.attempt import control_of
from stowhand.protocols.queue_store import ActionResult
from stowhand.table import TableOptions, TableStore, Where, sql
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import attempt, claimed

NASTY = '"per%cent; DROP ""table"" {x} %s"'
RENAMED = {"state": '"Order"', "id": "key", "worker_hostname": "group", "failure_message": "select"}


@pytest.mark.parametrize("key", ["text", "uuid"])
def test_a_key_may_be_text(place: Place, run: Run, key: str) -> None:
    value = {"text": "a/b 'c'", "uuid": "7d2f0a52-6a6f-4a3e-9a0e-0a3f6a1c2b3d"}[key]
    place.make(key if place.kind == "postgres" else "text")
    place.add("a.py", id=value)
    options: TableOptions[Any] = TableOptions(name="uploads", table_name="uploads")

    async def main() -> None:
        async with TableStore(place.url, options) as store:
            made, its = await attempt(store)
            assert made.lease.job_id == value
            assert store.record_id(made.record) in (value, made.record["id"])
            assert (await its.requeue(made.record, 5)).job_id == value
            assert control_of(made).decided is not None
            assert (await store.requeue(made.record)).result is ActionResult.DONE
            with pytest.raises(InvalidJob, match="id: got an int; the key is "):
                await store.requeue(7)

    run(main())
    assert place.states() == ["queued"]


def test_names_that_are_sql_to_the_eye_are_only_names(place: Place, run: Run) -> None:
    place.add("a.py", "b.py", size=3)
    for documented, own in RENAMED.items():
        place.sql(f'ALTER TABLE uploads RENAME COLUMN {documented} TO "{own.strip(chr(34))}"')
    place.sql(f"ALTER TABLE uploads RENAME TO {NASTY}")
    options: TableOptions[Any] = TableOptions(
        name="uploads",
        table_name=f'{NASTY} AS "the %s {{}} alias"',
        alternate_column_names=RENAMED,
        order_by_expression='"the %s {} alias".size',
    )

    async def main() -> None:
        async with TableStore(place.url, options) as store:
            few, odd = Where('"the %s {} alias".size', "<", 5), sql("size % 2 = 1")
            (claim, _) = await claimed(store, conditions=(few, odd))
            assert (claim.record["Order"], claim.record["key"]) == ("processing", claim.lease.job_id)
            assert store.record_id(claim.record) == claim.lease.job_id
            heartbeats = store.heartbeats()
            assert list(await heartbeats.release([claim.lease])) == []
            await heartbeats.close()
            assert await store.queued_count() == 1
            assert await store.logs(claim.record) == []

    run(main())
    place.sql(f"DROP TABLE {NASTY}")
