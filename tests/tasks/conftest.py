"""Databases with the schema in them."""

from __future__ import annotations

import pytest

from tests.support.databases import Setup
from tests.support.schema import install


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install
