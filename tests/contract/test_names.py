"""Names that no job can have are refused at every entrance, and are never taken for an outage of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stowhand.errors import ConfigurationError, StoreError
from stowhand.protocols.options import WorkerOptions
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import StoreHarness

BAD = {"NUL": "a\x00", "a surrogate": "a\ud800", "empty": "", "endless": "x" * 600, "a line break": "a\nb"}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_tasks_of_a_worker_are_checked_when_its_options_are_made(name: str) -> None:
    with pytest.raises(ConfigurationError, match="tasks"):
        WorkerOptions(tasks=(name,))


@pytest.mark.parametrize("name", ["a\x00", "a\ud800"], ids=["NUL", "a surrogate"])
@needs("admin")
@excepted(http="asked of the lent store")
async def test_a_value_that_cannot_be_sent_is_no_outage(harness: StoreHarness, name: str) -> None:
    """Where a store is asked although its caller should have checked."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: harness.store.next_due((name,)),
        lambda: harness.claim(tasks=(name,)),
        lambda: harness.store.admin.remove_key(name),
    ]
    for call in calls:
        try:
            await call()
        except StoreError as error:
            raise AssertionError("it is taken for trouble with the store, and would be repeated") from error
        except ValueError:
            pass
