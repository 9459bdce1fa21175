"""Blocks of every language can be read by it, and what the blocks of Python call is there, with these arguments.

That the names of a block are known and imported from public modules is in `test_python_blocks.py`; `test_pages.py` runs
the blocks that are marked.
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT
from tests.support.checkers import mypy

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]
BLOCKS = [(page, *found) for page in PAGES for found in _BLOCK.findall(page.read_text())]
SHOWN = {"python", "sql", "console", "text", "nginx"}
"""Python is checked below; the others are run by the pages' own tests, or are not input of a program that is here."""
DJANGO = {
    DOCS / place
    for place in (
        "how-to/use-it-from-django.md",
        "how-to/use-it-from-django-5.md",
        "how-to/come-from-django-tasks.md",
        "tutorial/django.md",
    )
}
"""Their blocks are files of a project, settings among them; tests/django/test_pages.py runs them, beside a Django."""

LENIENT = """\
# mypy: disallow-any-generics=False, disallow-subclassing-any=False, disallow-untyped-calls=False
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: warn-unused-ignores=False, warn-return-any=False, implicit-reexport=True, strict-equality=False
# mypy: extra-checks=False, warn-unreachable=False, allow-redefinition-new=True, check-untyped-defs=True
# mypy: disable-error-code="no-redef,union-attr,index,import-not-found,import-untyped,redundant-expr,truthy-bool"
# mypy: disable-error-code="method-assign"
"""
"""A page names no types, has None where a row is certain, one name for two things, and modules of its reader's."""


def read_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr


READERS: dict[str, Callable[[str], object]] = {
    "ini": configparser.ConfigParser().read_string,
    "json": json.loads,
    "sh": read_shell,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


def test_every_language_of_the_pages_is_known() -> None:
    assert {language for _, language, _ in BLOCKS} == SHOWN | READERS.keys()


@pytest.mark.parametrize("language", READERS)
def test_blocks_can_be_parsed(language: str) -> None:
    for page, written, text in BLOCKS:
        if written == language:
            try:
                READERS[language](text)
            except (ValueError, yaml.YAMLError, AssertionError) as error:
                raise AssertionError(f"{page.relative_to(ROOT)}: {error}\n{text}") from error


def test_python_blocks_pass_valid_arguments(tmp_path: Path) -> None:
    """The blocks of a page are one function, since they await. Modules of the reader's (``shop``) may hold anything."""
    for page in sorted({*PAGES} - DJANGO):
        blocks = [text for where, language, text in BLOCKS if (where, language) == (page, "python")]
        name = re.sub(r"\W+", "_", page.relative_to(ROOT).as_posix().removesuffix(".md"))
        if blocks:
            body = textwrap.indent("\n".join(blocks), "    ")
            (tmp_path / f"page_{name}.py").write_text(f"async def page() -> None:\n{body}")
    assert complaints(tmp_path) == ""


def test_an_invalid_call_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page_wrong.py").write_text("from stowhand import App\nApp(shema='x')\nApp().tsk\n")
    result = complaints(tmp_path)
    assert 'Unexpected keyword argument "shema"' in result
    assert '"App" has no attribute "tsk"' in result


def complaints(folder: Path) -> str:
    """What mypy says, less what a page leaves to its reader."""
    for file in folder.glob("*.py"):
        file.write_text(LENIENT + file.read_text())
    return mypy(list(folder.glob("*.py")))
