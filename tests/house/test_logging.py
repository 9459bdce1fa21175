"""House rule: the core emits events; only observe/ turns them into log lines."""

from __future__ import annotations

import pytest

from tests.support.sources import package_sources

pytestmark = pytest.mark.xdist_group("sources")

ROOM = "observe"


def test_only_observe_imports_logging() -> None:
    rows = [
        f"{source.name}:{line}"
        for source in package_sources()
        if not (source.name.startswith(f"{ROOM}/") or source.name == f"{ROOM}.py")
        for module, line in source.imports
        if module.split(".")[0] == "logging"
    ]
    assert not rows, f"emit an event instead of logging: {sorted(set(rows))}"
