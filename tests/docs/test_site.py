"""The site is built strictly and shows what the pages say; each page can be reached, searched, and read by programs."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest
from markdown_it import MarkdownIt

from scripts.site.check import problems
from scripts.site.navigation import Section, Unreachable, navigation, pages_of
from scripts.site.pages import BrokenLinks, Page, collect
from scripts.site.versions import publish
from tests.docs.pages import ADDRESS, CONTRIBUTING, DOCS
from tests.support.public_names import PUBLIC, public_names

PAGES = {page.place: page for page in collect().values()}
WRITTEN = sorted(place for place, page in PAGES.items() if page.source.suffix == ".md")
SHOWN_ALIKE = {"blockquote", "h1", "h2", "h3", "li", "pre", "table", "tr"}
pytestmark = pytest.mark.xdist_group("site")  # built once


def test_the_site_has_all_pages(output: Path) -> None:
    built = {file.relative_to(output / "0.1").with_suffix(".md") for file in (output / "0.1").rglob("*.html")}
    assert built == {Path(place) for place in PAGES} | {Path("404.md")}
    assert {place for place in PAGES if not place.parts[0].startswith(("examples", "deploy"))} >= {
        PurePosixPath(file.relative_to(DOCS).as_posix()) for file in DOCS.rglob("*.md") if file.parent != CONTRIBUTING
    }
    assert not [place for place in PAGES if place.is_relative_to("contributing")], "these pages are for contributors"


def test_a_site_with_an_address_has_a_sitemap_and_previews(output: Path) -> None:
    listed = re.findall(r"<loc>([^<]+)</loc>", (output / "0.1" / "sitemap.xml").read_text())
    assert {f"{ADDRESS}/0.1/{place.with_suffix('.html')}" for place in WRITTEN if place.name != "index.md"} <= set(
        listed
    )
    page = (output / "0.1" / "how-to" / "cookbook.html").read_text()
    assert f'<meta property="og:url" content="{ADDRESS}/0.1/how-to/cookbook.html">' in page
    assert '<meta property="og:title" content="Cookbook' in page
    (picture,) = re.findall(r'<meta property="og:image" content="([^"]+)">', page)
    assert (output / picture.removeprefix(f"{ADDRESS}/")).is_file()


def test_every_written_page_can_be_searched(output: Path) -> None:
    result = json.loads((output / "0.1" / "search.json").read_text())["items"]
    named = {item["location"].partition("#")[0] for item in result}
    assert {place.with_suffix(".html").as_posix() for place in WRITTEN} <= named


def test_machine_readable_indexes_have_every_page_with_its_text(output: Path) -> None:
    listed = re.findall(r"^- \[.+\]\(([^)]+)\)", (output / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(f"0.1/{place}" for place in PAGES)
    for place in listed:
        assert (output / place).read_text() == PAGES[PurePosixPath(place).relative_to("0.1")].text
    everything = (output / "llms-full.txt").read_text()
    assert all(f"# {PAGES[place].title}" in everything.replace("`", "") for place in WRITTEN)


@pytest.mark.parametrize("place", WRITTEN, ids=str)
def test_the_site_and_the_repository_host_show_a_page_alike(output: Path, place: PurePosixPath) -> None:
    here = _Elements()
    here.feed((output / "0.1" / place.with_suffix(".html")).read_text())
    there = _Elements(everywhere=True)
    there.feed(MarkdownIt("commonmark").enable("table").render(PAGES[place].text))
    assert here.counted == there.counted


def test_a_block_has_the_name_of_its_file_as_its_title(output: Path) -> None:
    for place in WRITTEN:
        names = re.findall(r"^<!-- file: (\S+) -->$", PAGES[place].text, re.MULTILINE)
        page = (output / "0.1" / place.with_suffix(".html")).read_text()
        assert re.findall(r'<span class="filename">([^<]+)</span>', page) == names, place


@pytest.mark.parametrize("place", WRITTEN, ids=str)
def test_a_row_of_a_table_has_as_many_cells_as_its_head(place: PurePosixPath) -> None:
    """A bar inside a cell is escaped, in code too: a host of repositories drops the cells that are too many."""
    head = 0
    for line in re.sub(r"^```.*?^```$", "", PAGES[place].text, flags=re.MULTILINE | re.DOTALL).splitlines():
        cells = len(re.split(r"(?<!\\)\|", line.strip())) - 2 if line.startswith("|") else 0
        head = head if head and cells else cells
        assert cells == head, line


def test_the_api_pages_have_an_anchor_for_every_public_name_and_member(output: Path) -> None:
    for module in PUBLIC:
        page = (output / "0.1" / "reference" / f"api-{module}.html").read_text()
        ids = set(re.findall(r'<h[23] id="([^"]+)"', page))
        assert ids >= {name.lower() for name in public_names(module)}, module
    ids = set(re.findall(r'<h3 id="([^"]+)"', (output / "0.1/reference/api-stowhand.html").read_text()))
    assert ids >= {f"app{name}" for name in ("enqueue_in", "task", "counts")} | {"jobhandleresult", "jobhandlestate"}


def test_an_api_page_shows_signature_arguments_and_errors() -> None:
    text = PAGES[PurePosixPath("reference/api-stowhand.md")].text
    part = text.partition("\n### `JobHandle.result`\n")[2].partition("\n### ")[0]
    assert "async def JobHandle.result(timeout: Duration | None = None) -> R_co" in part
    assert "* `timeout`: Seconds, a timedelta or a phrase" in part
    assert "* `TimeoutError`: The job did not finish in time; it continues." in part


def test_continued_list_items_are_indented_for_the_site() -> None:
    text = "* one,\n  wrapped\n\n  | a |\n  |---|\n\n  More.\n* two\n\nA paragraph\n* three\n\n```\n  code\n```\n"
    page = Page(PurePosixPath("docs/a.md"), PurePosixPath("a.md"), text)
    assert page.for_zensical == (
        "* one,\n    wrapped\n\n    | a |\n    |---|\n\n    More.\n\n* two\n\n"
        "A paragraph\n\n* three\n\n```\n  code\n```\n"
    )


def test_the_first_page_describes_the_project_on_one_screen() -> None:
    text = (DOCS / "index.md").read_text()
    first, _, _ = text.partition("\n## ")
    (program,) = re.findall(r"```python\n(.*?)```", first, re.DOTALL)
    assert len(program.splitlines()) <= 10
    assert len(first.splitlines()) <= 40


def test_an_unlisted_page_is_noticed() -> None:
    lost = Page(PurePosixPath("docs/how-to/lost.md"), PurePosixPath("how-to/lost.md"), "# Lost\n")
    with pytest.raises(Unreachable, match=r"^docs/how-to/lost\.md$"):
        navigation([*PAGES.values(), lost])


def test_the_navigation_shows_each_page_once() -> None:
    entries = navigation(PAGES.values())
    shown = Counter(page.place for page in pages_of(entries))
    assert shown == Counter(PAGES.keys())
    titles = [entry.title for entry in entries if isinstance(entry, Section)]
    assert titles == ["Tutorial", "How to …", "Explanation", "Reference", "Project"]


def test_a_link_to_a_missing_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md), and `[three](three.md)` is code\n")
    with pytest.raises(BrokenLinks, match=r"^docs/index\.md: two\.md$"):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="gone.html">x</a>', "index.html: leads nowhere: gone.html"),
        ('<a href="#gone">x</a>', "index.html: leads nowhere: #gone"),
        ('<a href="other.html#gone">x</a>', "index.html: leads nowhere: other.html#gone"),
        ('<script src="https://cdn.example/x.js"></script>', "index.html: loaded from another host: https://cdn.example/x.js"),
        ('<img src="gone.png">', "index.html: not there: gone.png"),
        ("<p>Things:\n* one\n* two</p>", "index.html: shown as text: * one"),
    ],
)  # fmt: skip
def test_a_broken_site_is_noticed(tmp_path: Path, page: str, said: str) -> None:
    (tmp_path / "index.html").write_text(f'<nav><a href="other.html#here">x</a></nav>{page}')
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>')
    assert said in problems(tmp_path)
    (tmp_path / "lost.html").write_text("<p>lost</p>")
    assert problems(tmp_path)[-1] == "lost.html: no navigation leads to it"


def test_versions_are_side_by_side_and_the_newest_comes_first(tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    (built / "index.html").write_text("x")
    for version in ("0.9.0", "0.10.1", "0.10.0"):
        publish(built, tmp_path / "all", version)
    listed = json.loads((tmp_path / "all" / "versions.json").read_text())
    assert [(one["version"], one["title"], one["aliases"]) for one in listed] == [
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.0", []),
    ]
    assert 'url=0.10/index.html"' in (tmp_path / "all" / "index.html").read_text()


class _Elements(HTMLParser):
    """Counts what Markdown makes: of a whole text, or of a page's article alone."""

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self._inside = everywhere

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or tag == "article"
        if self._inside and tag in SHOWN_ALIKE:
            self.counted[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._inside = False
