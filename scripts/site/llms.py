"""``llms.txt``: the site as a list for programs that read it, and ``llms-full.txt``: all of its text in one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scripts.site.navigation import Section, pages_of
from scripts.site.pages import Page


def listing(name: str, description: str, entries: Iterable[Section | Page]) -> str:
    """Each page with its first sentence; the links lead to the Markdown that lies beside each page."""
    lines = [f"# {name}", "", f"> {description}", ""]
    for entry in entries:
        if isinstance(entry, Section):
            lines += [f"## {entry.title}", "", *_lines(pages_of([entry])), ""]
        else:
            lines += [*_lines([entry]), ""]
    return "\n".join(lines)


def full(entries: Iterable[Section | Page]) -> str:
    """Every page of text, one after another; files of code are left to their own pages."""
    return "\n".join(page.text.rstrip() + "\n" for page in pages_of(entries) if page.source.suffix == ".md")


def _lines(pages: Iterable[Page]) -> Iterator[str]:
    for page in pages:
        summary = f": {page.summary}" if page.summary else ""
        yield f"- [{page.title}]({page.place}){summary}"
