"""House rule: the dashboard stays small. Its second half (bulk actions, cron, flows drawn, …) fits within the same."""

from __future__ import annotations

from tests.support.sources import PACKAGE

FILES, LINES = 20, 2_500
"""Python, templates, the stylesheet, the script and the icon; with both halves in mind."""


def test_the_dashboard_is_small() -> None:
    files = [path for path in (PACKAGE / "web").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    lines = {path.name: path.read_text().count("\n") for path in files}
    assert len(files) <= FILES, sorted(lines)
    assert sum(lines.values()) <= LINES, lines


def test_pages_have_no_inline_script_or_style() -> None:
    """The policy of every page forbids them: they would do nothing."""
    for page in (PACKAGE / "web" / "templates").glob("*.html"):
        text = page.read_text().lower()
        assert not [word for word in (" style=", "<style", " onclick=", "javascript:", "|safe") if word in text], page
        assert text.count("<script") == text.count('<script type="module" src='), page
