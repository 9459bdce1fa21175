"""What a built site must not have: links that lead nowhere, pages out of reach, anything loaded from another host."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

_NOT_A_PAGE = "404.html"


@dataclass
class _Found(HTMLParser):
    """What one page holds."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    navigation: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    _navs: int = 0
    _in_paragraph: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "nav":
            self._navs += 1
        elif tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
            if self._navs:
                self.navigation.append(given["href"])
        elif tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loaded.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav":
            self._navs -= 1
        elif tag == "p":
            self._in_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


def problems(site: Path) -> list[str]:
    """A line for each; none if the site is good."""
    pages = {file: _read(file) for file in sorted(site.rglob("*.html")) if file.name != _NOT_A_PAGE}
    problems: list[str] = []
    for file, page in pages.items():
        here = file.relative_to(site)
        problems += [f"{here}: leads nowhere: {link}" for link in dict.fromkeys(page.links) if not _leads(file, link)]
        for link in dict.fromkeys(page.loaded):
            if "://" in link or link.startswith("//"):
                problems.append(f"{here}: loaded from another host: {link}")
            elif not _leads(file, link):
                problems.append(f"{here}: not there: {link}")
        problems += [f"{here}: shown as text: {line[:60]}" for text in page.paragraphs for line in _unrendered(text)]
    reached = _reached(site / "index.html")
    problems += [f"{file.relative_to(site)}: no navigation leads to it" for file in pages if file not in reached]
    return problems


def _leads(page: Path, link: str) -> bool:
    if "://" in link or link.startswith(("mailto:", "data:", "javascript:")):
        return True
    target, fragment = _target(page, link)
    if not target.is_file():
        return False
    return not fragment or target.suffix != ".html" or fragment in _read(target).ids


def _target(page: Path, link: str) -> tuple[Path, str]:
    name, _, fragment = link.partition("#")
    target = Path(os.path.normpath(page.parent / unquote(name))) if name else page
    return target / "index.html" if target.is_dir() else target, unquote(fragment)


def _reached(first: Path) -> set[Path]:
    found = {first}
    todo = [first]
    while todo:
        page = todo.pop()
        for link in _read(page).navigation:
            target = _target(page, link)[0] if "://" not in link else page
            if target.suffix == ".html" and target.is_file() and target not in found:
                found.add(target)
                todo.append(target)
    return found


def _unrendered(paragraph: str) -> list[str]:
    """Lines of a list or of a table that the site shows as they are written."""
    marks = ("* ", "- ", "| ", "1. ", "```")
    return [line for line in paragraph.splitlines() if line.startswith(marks)]


@cache
def _read(file: Path) -> _Found:
    found = _Found()
    found.feed(file.read_text())
    return found
