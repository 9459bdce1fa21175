"""A server without tokens serves only programs of this machine, and refuses web pages and proxies."""

from __future__ import annotations

import json

import pytest

from tests.remote.server.conftest import Lend
from tests.remote.server.lending import claiming


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"x-forwarded-for": "10.0.0.1"},
        {"forwarded": "for=10.0.0.1"},
        {"via": "1.1 proxy"},
    ],
)
def test_requests_to_another_host_than_localhost_are_refused(lend: Lend, headers: dict[str, str]) -> None:
    client = lend().client()
    client.request("POST", "/v1/claim", json.dumps(claiming()).encode(), **headers).refused(403, "out of scope")


def test_a_body_that_a_web_page_could_send_is_refused(lend: Lend) -> None:
    body = json.dumps({"jobs": [{"task": "t"}]}).encode()
    client = lend().client()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        client.request("POST", "/v1/enqueue", body, content_type=kind).refused(400, "malformed")
    client.request("OPTIONS", "/v1/enqueue").refused(405, "method")
    assert client.claim() == []
