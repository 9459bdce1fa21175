"""Every block of Python in a page compiles, says where its names come from, and imports public names only."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.support.public_names import PUBLIC, public_names

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_DJANGO = {
    "stowhand.django": {"StowhandBackend", "Task", "around_thread", "database_url", "task"},
    "stowhand.django.testing": {"drain", "ImmediateBackend"},
}
"""They cannot be imported here: tests/django/test_pages.py runs what the pages show of them."""
MODULES = {*PUBLIC, "stowhand.events"}
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [page for page in (*sorted(DOCS.rglob("*.md")), ROOT / "README.md") if _BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_block_of_python_has_the_names_that_it_uses(page: Path) -> None:
    """Names that a reader has from elsewhere are imported from the reader's own modules."""
    known = set(dir(builtins)) | {"__file__", "__name__"}
    known.add("DATABASES")  # of Django's settings, to which a block is added
    for block in _BLOCK.findall(page.read_text()):
        tree = compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        used: set[str] = set()
        for node in ast.walk(tree):
            known |= bound(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
        assert used <= known, f"not known: {', '.join(sorted(used - known))}\n{block}"


GUIDES = [page for page in PAGES if page.is_relative_to(DOCS) and "reference" not in page.parts]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_the_modules_of_the_shop_that_it_imports(page: Path) -> None:
    text = page.read_text()
    files = set(re.findall(r"^(?:<!-- file: |# )([\w/]+)\.py\b", text, re.MULTILINE))
    for module in re.findall(r"^(?:from|import) (shop[\w.]*)", "".join(_BLOCK.findall(text)), re.MULTILINE):
        assert module.replace(".", "/") in files, module


def bound(node: ast.AST) -> set[str]:
    """Names that this node gives a meaning. (Scopes are not told apart: a page is not a program.)"""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(one.asname or one.name).partition(".")[0] for one in names}
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_block_imports_only_public_names(page: Path) -> None:
    for block in _BLOCK.findall(page.read_text()):
        assert_public(compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program.relative_to(ROOT).as_posix())
def test_an_example_imports_only_public_names(program: Path) -> None:
    assert_public(ast.parse(program.read_text()))


def assert_public(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stowhand":
            if node.module in OF_DJANGO:
                assert {one.name for one in node.names} <= OF_DJANGO[node.module]
                continue
            known = public_names(str(node.module))
            if node.module == "stowhand":
                known |= {name.removeprefix("stowhand.") for name in MODULES}
            assert {one.name for one in node.names} <= known, node.module
        elif isinstance(node, ast.Import):
            ours = {one.name for one in node.names if one.name.partition(".")[0] == "stowhand"}
            assert ours <= MODULES
