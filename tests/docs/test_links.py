"""What the pages point to is there: links, headings, files and functions, tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import CONTRIBUTING, DOCS, ROOT

PAGES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
SOURCE = ROOT / "src" / "stowhand"
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_DEFINED = re.compile(r"^(?:async def|def|class) (\w+)", re.MULTILINE)
_PLACE = re.compile(r"`((?:\w+/)*\w+\.py):([\w.]+)`")
_FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|sql))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_works(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if heading:
            assert heading in _headings(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    result = {ROOT / "README.md"}
    todo = list(result)
    while todo:
        page = todo.pop()
        for link in _LINK.findall(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in result:
                result.add(target)
                todo.append(target)
    for_contributors = (ROOT / "CONTRIBUTING.md").read_text()
    lost = set(DOCS.rglob("*.md")) - result
    assert not [page for page in lost if page.parent != CONTRIBUTING or f"`{page.name}`" not in for_contributors]


def test_every_test_that_a_page_names_exists() -> None:
    named = {(page, *one) for page in PAGES for one in _TEST.findall(page.read_text())}
    assert named
    missing = [
        f"{page.relative_to(ROOT)}: {file}::{name}"
        for page, file, name in sorted(named)
        if not (ROOT / file).exists() or (name and name not in _defined(ROOT / file))
    ]
    assert not missing, "\n".join(missing)


def test_every_file_and_function_in_internals_exists() -> None:
    page = (DOCS / "internals.md").read_text()
    places = _PLACE.findall(page)
    assert len(places) > 40
    missing = [f"{file}:{name}" for file, name in places if not _defines(SOURCE / file, name)]
    missing += [file for file in _FILE.findall(page) if not _is_there(file)]
    files = {file for file, _ in places} | {file.name for file in SOURCE.glob("*.py")}
    # `Claimer._claim`, where the sentence has named the file before.
    for short in re.findall(r"`([A-Z]\w+\.\w+)`", page):
        if not any(_defines(SOURCE / file, short) for file in files):
            missing.append(short)
    assert not missing, missing


def _is_there(file: str) -> bool:
    """In the package or in the project; a name without a folder, anywhere in the package."""
    return (SOURCE / file).exists() or (ROOT / file).exists() or ("/" not in file and any(SOURCE.rglob(file)))


def _headings(page: Path) -> set[str]:
    """As they are spelt in links."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def _defines(file: Path, name: str) -> bool:
    return file.exists() and name in set(_names(_tree(file).body, ""))


@cache
def _defined(file: Path) -> set[str]:
    """Functions and classes of a module itself, without parsing the whole of it."""
    return set(_DEFINED.findall(file.read_text()))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names(node.body, f"{prefix}{node.name}.")


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


USERS = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.parent != CONTRIBUTING and page.name not in ("internals.md", "test-your-tasks.md")
]


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_for_users_names_no_test_and_no_unknown_document(page: Path) -> None:
    text = page.read_text()
    assert not _TEST.findall(text)
    assert not re.findall(r"founding document|in the documents\b", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_starts_with_its_topic_and_renders_alike_everywhere(page: Path) -> None:
    text = page.read_text()
    assert "After this page" not in text
    assert not re.search(r"^: ", text, re.MULTILINE), "a definition list is shown as it stands on many sites"
