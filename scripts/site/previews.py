"""Previews of pages where others link to them (Open Graph). They need the public address of the site."""

from __future__ import annotations

from html import escape
from pathlib import Path

from scripts.site.pages import PICTURES, Page

PICTURE = PICTURES.name + "/overview-light.webp"


def add(file: Path, page: Page, description: str, address: str) -> None:
    """Add the tags of a preview to a built page. ``address``: of the site, with a slash at its end."""
    properties = {
        "og:type": "website",
        "og:title": page.title,
        "og:description": page.summary or description,
        "og:url": address + page.place.with_suffix(".html").as_posix(),
        "og:image": address + PICTURE,
    }
    tags = "".join(f'<meta property="{name}" content="{escape(text)}">' for name, text in properties.items())
    file.write_text(file.read_text().replace("</head>", f"{tags}</head>", 1))
