"""House rule: no page of the dashboard has an inline script or style."""

from __future__ import annotations

from tests.support.sources import PACKAGE


def test_pages_have_no_inline_script_or_style() -> None:
    """The policy of every page forbids them: they would do nothing."""
    for page in (PACKAGE / "web" / "templates").glob("*.html"):
        text = page.read_text().lower()
        assert not [word for word in (" style=", "<style", " onclick=", "javascript:", "|safe") if word in text], page
        assert text.count("<script") == text.count('<script type="module" src='), page
