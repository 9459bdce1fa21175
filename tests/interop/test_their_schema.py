"""A schema of the original implementation is reported and never changed."""

from __future__ import annotations

import psycopg
import pytest

from stowhand.errors import SchemaError
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.conftest import Run

pytestmark = pytest.mark.xdist_group("interop")
MOVES_THEM = r"has tables of another program: .*stowhand migrate --from-graphile graphile_worker.*come-from-graphile"
COUNT = "select count(*) from pg_class where relnamespace = 'graphile_worker'::regnamespace"


def test_it_is_refused_and_unchanged(both: str, run: Run) -> None:
    with psycopg.connect(both, autocommit=True) as connection:
        before = connection.execute(COUNT).fetchone()
        store = PostgresStore(both, StoreOptions(schema="graphile_worker"))

        async def story() -> None:
            for verb in (store.open, store.schema.install):
                with pytest.raises(SchemaError, match=MOVES_THEM):
                    await verb()
            await store.close()

        run(story())
        assert connection.execute(COUNT).fetchone() == before
