"""Fixtures of the tests of flows."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of the flow's store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/flow.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
