"""The navigation is what the index pages list: a page is added to it where a reader of the repository finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from scripts.site.pages import Page

Pages = dict[PurePosixPath, Page]
FIRST = PurePosixPath("index.md")
_LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Section:
    """A heading of the navigation. The first page may be the one that the heading itself leads to."""

    title: str
    entries: tuple[Section | Page, ...]


class Unreachable(Exception):
    """No index page lists these pages; the message has a line for each."""


def navigation(pages: Iterable[Page]) -> tuple[Section | Page, ...]:
    """Section after section, in the order of the first page; what is no folder of pages comes last, as one section."""
    by_place = {page.place: page for page in pages}
    first = by_place[FIRST]
    listed = list(_listed(first, first.text, by_place))
    indexes = [page for page in listed if page.place.name == "index.md"]
    folders = {page.place.parent for page in indexes}
    sections = [_section(page, by_place) for page in indexes if page.source.suffix == ".md"]
    of_files = [_folder(page, by_place) for page in indexes if page.source.suffix != ".md"]
    others = [page for page in listed if page.place.parent not in folders]
    entries: tuple[Section | Page, ...] = (first, *sections, Section("Project", (*others, *of_files)))
    missing = by_place.keys() - {page.place for page in pages_of(entries)}
    if missing:
        raise Unreachable("\n".join(sorted(str(by_place[place].source) for place in missing)))
    return entries


def pages_of(entries: Iterable[Section | Page]) -> Iterator[Page]:
    """All pages, in the order in which the navigation shows them."""
    for entry in entries:
        if isinstance(entry, Page):
            yield entry
        else:
            yield from pages_of(entry.entries)


def as_toml(entries: Iterable[Section | Page]) -> str:
    """One line, for ``nav = ``."""
    return f"[{', '.join(_as_toml(entry) for entry in entries)}]"


def _as_toml(entry: Section | Page) -> str:
    if isinstance(entry, Section):
        return f"{{ {json.dumps(entry.title, ensure_ascii=False)} = {as_toml(entry.entries)} }}"
    if entry.place.name == "index.md" and entry.place != FIRST:
        return json.dumps(str(entry.place))  # the page of its section's heading
    title = "Home" if entry.place == FIRST else entry.title
    return f"{{ {json.dumps(title, ensure_ascii=False)} = {json.dumps(str(entry.place))} }}"


def _section(index: Page, by_place: Pages) -> Section:
    """A folder of pages: those that its index lists, in groups by the headings that stand over several."""
    entries: list[Section | Page] = [index]
    seen = {index.place}
    for part in re.split(r"^## ", index.text, flags=re.MULTILINE):
        listed = [page for page in _listed(index, part, by_place) if page.place.parent == index.place.parent]
        fresh = [page for page in listed if page.place not in seen]
        seen |= {page.place for page in fresh}
        if len(fresh) > 1 and part is not index.text and not part.startswith("# "):
            entries.append(Section(part.partition("\n")[0], tuple(fresh)))
        else:
            entries += fresh
    short_title, _, _ = index.title.partition(":")
    return Section(short_title, tuple(entries))


def _folder(index: Page, by_place: Pages) -> Section:
    """A folder of files: all of it, and the index first."""
    inside = [page for place, page in sorted(by_place.items()) if place.is_relative_to(index.place.parent)]
    return Section(index.title, (index, *(page for page in inside if page is not index)))


def _listed(page: Page, text: str, by_place: Pages) -> Iterator[Page]:
    """The pages that a text links to, each once."""
    seen = {page.place}
    for link in _LINK.findall(text):
        place = _resolved(page.place.parent / link)
        if place in by_place and place not in seen:
            seen.add(place)
            yield by_place[place]


def _resolved(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
