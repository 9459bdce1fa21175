"""What the tests of traces share."""

from __future__ import annotations

import pytest

from stowhand.app.app import App
from stowhand.testing import MemoryStore
from tests.support.spans import Spans


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(spans: Spans) -> App:
    return App(store=MemoryStore(), traces=spans.traces())
