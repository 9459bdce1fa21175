"""Which files are pages of the site, where each goes, and what its links become there.

A page of ``docs/`` keeps its place. Whatever else a page links to in the repository (the changelog, an example, a
folder of them) becomes a page too, so that no link leaves the site. A reader of the repository follows the same links
as they are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scripts.site import api

ROOT = Path(__file__).parents[2]
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```(\w*)\n", re.MULTILINE)
_INDENTED = re.compile(r"^(?=  )", re.MULTILINE)
_ITEM_AFTER = re.compile(r"((?:\A|(?<=\n\n))(?![*-] |\d+\. )(?:(?!\n\n).)*?\n)(?=(?:[*-]|\d+\.) )", re.DOTALL)
"""A block that begins with a paragraph and goes on with an item: what is before the item."""
_LINK = re.compile(r"\]\(([^)\s]+)\)")
PICTURES = PurePosixPath("docs/pictures")
"""A folder of files that are copied as they are."""
CONTRIBUTING = PurePosixPath("docs/contributing")
"""Pages for contributors (coverage, measurements). They are read in the repository, not on the site."""
_LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".sh": "sh", ".json": "json", ".service": "ini"}


class BrokenLinks(Exception):
    """Pages link to what is not there; the message has a line for each."""


@dataclass(frozen=True)
class Page:
    """A page of the site."""

    source: PurePosixPath
    """The file or folder in the repository."""
    place: PurePosixPath
    """The page's own file, relative to the site's first page."""
    text: str
    """Markdown whose links are those of the site."""

    @property
    def for_zensical(self) -> str:
        """Its Markdown wants more than CommonMark, and ours: four spaces where a block goes on with an item of a list,
        and an empty line between a paragraph and the item that follows it. The name of a file is its block's title."""
        pieces = _FENCED.split(_FILE.sub(lambda file: f'```{file[2] or "text"} title="{file[1]}"\n', self.text))
        pieces[::2] = [_ITEM_AFTER.sub(r"\1\n", _INDENTED.sub("  ", piece)) for piece in pieces[::2]]
        return "".join(pieces)

    @property
    def title(self) -> str:
        """The first heading."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        assert found is not None, f"{self.source} has no heading"
        return found[1].replace("`", "")

    @property
    def summary(self) -> str:
        """The first sentence below the heading, on one line; empty if the page begins with something else."""
        _, _, body = self.text.partition(f"\n# {self.title}\n")
        body = body or self.text.partition("\n")[2]
        first = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL).strip().partition("\n\n")[0]
        if first.startswith(("#", "```", "|", "*", "-", "!")):
            return ""
        line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
        return re.split(r"(?<=[.:?]) (?=[A-Z`*])", line)[0].rstrip(":")


def collect(root: Path = ROOT) -> dict[PurePosixPath, Page]:
    """Every page, by the file that it is made of."""
    files = [PurePosixPath(file.relative_to(root).as_posix()) for file in sorted((root / "docs").rglob("*.md"))]
    todo = [file for file in files if not file.is_relative_to(CONTRIBUTING)]
    pages: dict[PurePosixPath, Page] = {}
    broken: list[str] = []
    while todo:
        source = todo.pop(0)
        if source in pages:
            continue
        module = api.sources().get(source)
        text = _text(root, source) if module is None else api.text_of(module)
        targets = dict(_targets(root, source, text))
        broken += [f"{source}: {link}" for link, target in targets.items() if target is None]
        found = {link: target for link, target in targets.items() if target is not None}
        pages[source] = Page(source, place_of(root, source), _relinked(root, source, text, found))
        todo += [target for target in found.values() if target.parent != PICTURES]
    if broken:
        raise BrokenLinks("\n".join(broken))
    return pages


def place_of(root: Path, source: PurePosixPath) -> PurePosixPath:
    """``docs/a.md`` is ``a.md``, ``examples`` is ``examples/index.md``, ``examples/a.py`` is ``examples/a.py.md``."""
    if (module := api.sources().get(source)) is not None:
        return api.place_of(module)
    place = source.relative_to("docs") if source.is_relative_to("docs") else source
    if source.parent == PICTURES:
        return place
    if (root / source).is_dir():
        return place / "index.md"
    if place.name == "README.md":
        return place.with_name("index.md")
    return place if place.suffix == ".md" else place.with_name(f"{place.name}.md")


def files_of(folder: Path) -> list[Path]:
    """What a folder holds that is worth a page, in the order of their names."""
    inside = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return [file for file in inside if "__pycache__" not in file.parts and not file.name.endswith((".pyc", ".db"))]


def _text(root: Path, source: PurePosixPath) -> str:
    path = root / source
    if path.is_dir():
        lines = [f"* [{name}]({name})" for name in (file.relative_to(path).as_posix() for file in files_of(path))]
        return "\n".join([f"# {source}", "", *lines, ""])
    text = path.read_text()
    if path.suffix == ".md":
        return text
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text)), 3)
    shown = f"{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
    name = source.name if source.is_relative_to("docs") else source
    return f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{shown}"


def _targets(root: Path, source: PurePosixPath, text: str) -> Iterator[tuple[str, PurePosixPath | None]]:
    """Each link into the repository, and the file that it means; None if there is no such file."""
    base = source if (root / source).is_dir() else source.parent
    for link in _links(text):
        name = link.partition("#")[0]
        target = PurePosixPath(os.path.normpath(base / name))
        if (root / target / "README.md").is_file():
            target /= "README.md"
        yield link, target if (root / target).exists() else None


def _links(text: str) -> Iterator[str]:
    for piece in _CODE.split(text)[::2]:
        for link in _LINK.findall(piece):
            if "://" not in link and not link.startswith(("#", "mailto:")):
                yield link


def _relinked(root: Path, source: PurePosixPath, text: str, targets: dict[str, PurePosixPath]) -> str:
    here = place_of(root, source).parent

    def link(match: re.Match[str]) -> str:
        target = targets.get(match[1])
        if target is None:
            return match[0]
        _, mark, heading = match[1].partition("#")
        return f"]({os.path.relpath(place_of(root, target), here)}{mark}{heading})"

    pieces = _CODE.split(text)
    pieces[::2] = [_LINK.sub(link, piece) for piece in pieces[::2]]
    return "".join(pieces)
