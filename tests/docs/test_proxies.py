"""What the pages tell a proxy lets through what we take. No proxy runs here; each was run by hand, as printed."""

from __future__ import annotations

import re

from stowhand.remote.wire import MAX_BODY_BYTES
from stowhand.web.request import MAX_FORM_BYTES
from tests.docs.pages import DOCS


def nginx(page: str) -> str:
    text = (DOCS / "how-to" / page).read_text()
    return text.partition("```nginx\n")[2].partition("```")[0]


def test_nginx_accepts_bodies_of_the_maximum_size_in_every_location() -> None:
    for page, most in (("open-the-dashboard.md", MAX_FORM_BYTES), ("lend-a-store.md", MAX_BODY_BYTES)):
        (megabytes,) = re.findall(r"^    client_max_body_size (\d+)m;", nginx(page), re.MULTILINE)
        assert int(megabytes) << 20 >= most, page


def test_the_authentication_request_of_nginx_has_no_body() -> None:
    """With its length, and without the body, the program that is asked waits for a minute, and nginx answers 500."""
    (asked,) = re.findall(r"location = /oauth2/auth \{(.*?)\}", nginx("open-the-dashboard.md"), re.DOTALL)
    assert 'proxy_set_header Content-Length "";' in asked
    assert "proxy_pass_request_body off;" in asked
