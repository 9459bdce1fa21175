"""House rule: a part of a worker gets all that it needs by its constructor; nothing is assigned onto it afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.sources import Source, package_sources

pytestmark = pytest.mark.xdist_group("sources")

RECORDS = {"job", "slot", "ended", "control"}
"""Written down as it happens: a job that the worker holds, a slot, an ended attempt, the worker's side of one."""
WRITTEN = {"self._state.executing"}
"""By the slots; the watchdog reads it."""


def test_no_attribute_is_assigned_onto_a_part_of_a_worker() -> None:
    rows = [
        f"{source.name}:{target.lineno} {ast.unparse(target)}"
        for source in package_sources()
        if source.name.startswith("worker/")
        for target in _assigned(source)
        if not _is_own(target) and ast.unparse(target) not in WRITTEN
    ]
    assert not rows, "\n".join(rows)


def _is_own(target: ast.Attribute) -> bool:
    match target.value:
        case ast.Name(id=name):
            return name == "self" or name in RECORDS
        case ast.Call(func=ast.Name(id="control_of")):
            return True
    return False


def _assigned(source: Source) -> Iterator[ast.Attribute]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node
