"""A worker process of ours collects garbage less often; what its tasks have chosen stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stowhand.service.process import GC_THRESHOLD, reduce_garbage_collection


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*before)  # what was frozen stays so: it is what the run has loaded (tests/conftest.py)


def test_a_loaded_change_is_not_reported_again() -> None:
    gc.set_threshold(700, 10, 10)
    loaded = [[number] for number in range(10_000)]
    before = gc.get_freeze_count()
    reduce_garbage_collection()
    assert gc.get_threshold()[0] == GC_THRESHOLD
    assert gc.get_freeze_count() - before >= len(loaded)


@pytest.mark.parametrize("first", [0, 50_000])
def test_a_selection_of_tasks_survives_a_reload(first: int) -> None:
    gc.set_threshold(first)
    reduce_garbage_collection()
    assert gc.get_threshold()[0] == first
