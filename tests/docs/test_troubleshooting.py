"""Each text that docs/how-to/troubleshooting.md quotes is printed by the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "how-to" / "troubleshooting.md").read_text()
QUOTES = re.findall(r"^### `(.+?)`$", PAGE, re.MULTILINE)
VALUE = "\N{OBJECT REPLACEMENT CHARACTER}"


def texts_of_source() -> Iterator[str]:
    """Every text of the source; ``VALUE`` for each value in it."""
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.JoinedStr(values=values):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in values)
                case ast.Constant(value=str(text)):
                    yield text


SOURCE = "\n\n".join(texts_of_source())


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_text_is_in_the_source(quote: str) -> None:
    pieces = [re.escape(piece.strip(" '")) for piece in quote.split("…")]
    assert re.search("[ ']?[^\n]*?[ ']?".join(pieces), SOURCE), quote


def test_a_changed_text_is_noticed() -> None:
    assert not re.search("nothing is installed at", SOURCE)


def test_every_text_has_a_cause_a_fix_and_a_link() -> None:
    entries = re.split(r"^### ", re.sub(r"^## .*$", "", PAGE, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert len(entries) == len(QUOTES) >= 15
    for entry in entries:
        text = entry.partition("\n")[2]
        assert 2 <= len(re.findall(r"[.]\s", text)) <= 5, entry
        assert "More: [" in text.replace("\n", " "), entry
