"""What only a store with connections of its own can offer: the others refuse it, and say which store would do."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.protocols.store import StoreOptions
from tests.contract.places import Place


@pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)
async def test_a_store_without_connections_to_lend_says_which_has(place: Place) -> None:
    store = place.store(StoreOptions())
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        async with store.connection():
            raise AssertionError("there is none")
    await store.close()


def test_nobody_is_told_of_listening_until_somebody_asks(place: Place) -> None:
    assert place.store(StoreOptions()).on_listening is None
