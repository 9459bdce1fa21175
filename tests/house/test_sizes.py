"""Functions are small, and the docstring of a package lists files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.sources import Source, package_sources

MAX_FUNCTION_LINES = 45

pytestmark = pytest.mark.xdist_group("sources")


def test_functions_are_small() -> None:
    long = [
        f"{source.name}:{function.lineno} {function.name} has {lines} lines"
        for source in package_sources()
        for function, lines in _functions(source)
        if lines > MAX_FUNCTION_LINES
    ]
    assert not long, f"more than {MAX_FUNCTION_LINES} lines without the docstring:\n" + "\n".join(long)


def test_the_docstring_of_a_package_lists_existing_files() -> None:
    unknown = [
        f"{source.name}: {name}"
        for source in package_sources()
        if source.path.name == "__init__.py"
        for name in _listed(ast.get_docstring(source.tree) or "")
        if name not in {path.stem for path in source.path.parent.rglob("*")}
    ]
    assert not unknown, unknown


def _listed(docstring: str) -> Iterator[str]:
    """Yield names such as ``claim.py``, and names before two spaces at the start of a line: ``rows, roles   text``."""
    yield from re.findall(r"\b([a-z_]+)\.(?:py|sql|lua)\b", docstring)
    for line in docstring.splitlines()[1:]:
        if first := re.match(r"([a-z_]+(?:, [a-z_]+)*)  +", line):
            yield from first.group(1).split(", ")


def _functions(source: Source) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Yield every function with its number of lines, without the docstring."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            has_docstring = ast.get_docstring(node, clean=False) is not None
            docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0
            yield node, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
