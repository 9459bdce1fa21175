"""The table of README.md and the one of docs/explanation/compared-with-others.md agree."""

from __future__ import annotations

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "explanation" / "compared-with-others.md").read_text()
PEERS = ("Celery", "Dramatiq", "RQ", "procrastinate", "pgqueuer", "Oban-py", "DBOS")


def test_the_readme_and_the_page_agree() -> None:
    readme, page = (table(text) for text in ((ROOT / "README.md").read_text(), PAGE))
    assert readme["keeps jobs in"] == page["keeps jobs in"]
    for one, other in (("cron", "cron"), ("enqueue in your transaction", "in your transaction")):
        assert [cell.partition(",")[0] == "no" for cell in readme[one]] == [cell == "no" for cell in page[other]]


def table(text: str) -> dict[str, list[str]]:
    """Rows of the table about all libraries, by their first cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    start = next(at for at, cells in enumerate(lines) if cells[-8:] == ["Stowhand", *PEERS])
    width = len(lines[start])
    return {cells[0]: cells[1:] for cells in lines[start:] if len(cells) == width}
