"""House rule: small functions, and every module says what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT, Source, package_sources, sources_of_tests

FUNCTION_LINES = 45
DOCSTRING = re.compile(r'(?:#.*\n|\s)*[rR]?"""')
"""How a module begins that has one; to parse the tests, too, would take seconds."""

pytestmark = pytest.mark.xdist_group("sources")


def test_functions_are_small() -> None:
    long = [
        f"{source.name}:{function.lineno} {function.name} has {lines} lines"
        for source in package_sources()
        for function, lines in _functions(source)
        if lines > FUNCTION_LINES
    ]
    assert not long, f"more than {FUNCTION_LINES} lines without the docstring:\n" + "\n".join(long)


def test_every_module_has_a_docstring() -> None:
    silent = [
        source.path.relative_to(ROOT).as_posix()
        for source in (*package_sources(), *sources_of_tests())
        if source.text.strip() and not DOCSTRING.match(source.text)
    ]
    assert not silent, f"say at the top what the module is: {silent}"


def test_a_room_lists_files_that_it_has() -> None:
    unknown = [
        f"{source.name}: {name}"
        for source in package_sources()
        if source.path.name == "__init__.py"
        for name in _listed(ast.get_docstring(source.tree) or "")
        if name not in {path.stem for path in source.path.parent.rglob("*")}
    ]
    assert not unknown, unknown


def _listed(docstring: str) -> Iterator[str]:
    """``claim.py``, and the words before two spaces at the beginning of a line: ``rows, roles   what they are``."""
    yield from re.findall(r"\b([a-z_]+)\.(?:py|sql|lua)\b", docstring)
    for line in docstring.splitlines()[1:]:
        if first := re.match(r"([a-z_]+(?:, [a-z_]+)*)  +", line):
            yield from first.group(1).split(", ")


def _functions(source: Source) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Every function with its length, signature included, docstring not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            told = ast.get_docstring(node, clean=False) is not None
            docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if told else 0
            yield node, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
