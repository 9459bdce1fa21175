"""House rule: what a newcomer has to hold in the head. Each ceiling is today's figure: it may fall, and does not rise.

A count serves a reader: two ideas joined in one file to reach it are worse than two files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from stowhand.testing import FakeClock, MemoryStore
from tests.conftest import Run
from tests.support.sources import PACKAGE, ROOT, Source, package_sources
from tests.support.walk import Entered, walk

pytestmark = pytest.mark.xdist_group("sources")

FOLDERS = 18
FILES = {"clock", "errors", "events", "retry", "wsgi"}
"""Of the package itself; `__init__` and `__main__` are no rooms."""
ARROWS = 85
"""Ordered pairs of folders of which one imports the other: at the top, inside a function, or for the types only."""
TOKENS = 461_839
"""Tokens of the package, less comments, docstrings, newlines and indentation."""
THIN = 0
"""Modules that one other imports, below 60 lines, whose name is no word of the glossary."""
SAME_NAMES = 0
"""Names of classes that stand twice or more in one room; siblings of stores/ are rooms of their own in this."""
WALK_FILES, WALK_FUNCTIONS = 35, 152
"""What one job enters on the loop's thread, from enqueue to the end of a run with ``once``, the worker being made."""


def test_the_rooms_are_few() -> None:
    children = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    folders = {source.name.split("/")[0] for source in package_sources() if "/" in source.name}
    assert children == FILES
    assert len(folders) <= FOLDERS


def test_the_arrows_between_rooms_are_few() -> None:
    arrows = {
        (room, other)
        for source in package_sources()
        for other in _imported(source)
        if "/" in source.name and (room := source.name.split("/")[0]) != other and other not in FILES
    }
    assert len(arrows) <= ARROWS, sorted(arrows)


def test_the_package_grows_by_decision() -> None:
    assert sum(_tokens(source) for source in package_sources()) <= TOKENS


def test_a_module_has_an_idea_of_its_own() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    modules = {_dotted(source): source for source in package_sources()}
    for source in package_sources():
        for module, _ in source.imports:
            if module in modules and module != _dotted(source):
                importers[module].add(source.name)
    thin = [
        source.name
        for module, source in modules.items()
        if len(importers[module]) == 1 and source.text.count("\n") < 60 and not _is_a_word(source)
        if not source.name.endswith("__init__.py")
    ]
    assert len(thin) <= THIN, "\n".join(thin)


def test_a_class_has_its_name_alone() -> None:
    names: Counter[tuple[str, str]] = Counter()
    for source in package_sources():
        parts = source.name.split("/")
        room = "/".join(parts[: 3 if parts[0] == "stores" else 2][:-1] or ["."])
        names.update((room, node.name) for node in source.tree.body if isinstance(node, ast.ClassDef))
    twice = sorted((key for key, count in names.items() if count > 1 and not key[1].startswith("_")))
    assert len(twice) <= SAME_NAMES, twice


def test_one_job_walks_through_few_files(run: Run) -> None:
    async def scenario() -> Entered:
        clock = FakeClock()
        return await walk(MemoryStore(clock), clock, clock.settle)

    entered = run(scenario())
    files = sorted({file for file, _ in entered})
    assert len(files) <= WALK_FILES, files
    assert len(entered) <= WALK_FUNCTIONS, len(entered)


def _imported(source: Source) -> Iterator[str]:
    for module, _ in source.imports:
        if module.startswith("stowhand."):
            yield module.split(".")[1]


def _dotted(source: Source) -> str:
    return "stowhand." + source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _tokens(source: Source) -> int:
    unread = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    documented = {
        node.body[0].lineno
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in unread and not (token.type == tokenize.STRING and token.start[0] in documented)
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline)
    )


@cache
def _words() -> frozenset[str]:
    """Of the glossary, and their plurals."""
    page = (ROOT / "docs" / "glossary.md").read_text()
    cells = re.findall(r"^\| (\*\*[^|]*) \|", page, re.MULTILINE)
    words = {word for cell in cells for word in re.findall(r"[a-z]+", cell)}
    return frozenset(words | {f"{word}s" for word in words})


def _is_a_word(source: Source) -> bool:
    name = source.name.rpartition("/")[2].removesuffix(".py")
    return name in _words() or name.replace("_", " ") in _words()
