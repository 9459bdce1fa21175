"""What only a store with connections of its own can offer: the others refuse it, and say which store would do."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.protocols.queue_store import lent_connection
from stowhand.protocols.store import StoreOptions
from tests.contract.backends import Backend


@pytest.mark.parametrize("backend", ["memory", "sqlite"], indirect=True)
async def test_a_store_without_connections_to_lend_says_which_has(backend: Backend) -> None:
    store = backend.store(StoreOptions())
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        async with lent_connection(store):
            raise AssertionError("there is none")
    await store.close()
