"""Whose word a server takes for the address that asked: the socket's, and that of proxies which its owner has named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import InvalidTokensSent, RequestAnswered
from stowhand.remote.server.authenticator import MAX_WRONG_TOKENS_PER_MINUTE, Proxies
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import token_of


@pytest.mark.parametrize(
    ("networks", "peer", "told", "client"),
    [
        ((), "127.0.0.1", "1.2.3.4", "127.0.0.1"),
        (("127.0.0.1",), "127.0.0.1", "1.2.3.4", "1.2.3.4"),
        (("127.0.0.1",), "::ffff:127.0.0.1", "1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "127.0.0.1", "1.2.3.4", "127.0.0.1"),
        (("10.0.0.0/8",), "10.1.1.1", "9.9.9.9, 1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "10.1.1.1", "9.9.9.9, 1.2.3.4, 10.2.2.2", "1.2.3.4"),
        (("10.0.0.0/8",), "10.1.1.1", "10.2.2.2", "10.1.1.1"),
        (("10.0.0.0/8",), "10.1.1.1", "1.2.3.4, nonsense", "10.1.1.1"),
        (("10.0.0.0/8",), "10.1.1.1", "", "10.1.1.1"),
        (("fd00::/8",), "fd00::1%eth0", "2001:db8::7", "2001:db8::7"),
        (("0.0.0.0/0",), "", "1.2.3.4", ""),
    ],
)
def test_the_address_of_the_client(networks: tuple[str, ...], peer: str, told: str, client: str) -> None:
    headers = {"x-forwarded-for": told} if told else {}
    assert Proxies(networks).client(peer, headers) == client


@pytest.mark.parametrize("network", ["", "proxy", "10.0.0.0/99", "1.2.3"])
def test_an_invalid_network_is_refused_by_name(network: str) -> None:
    with pytest.raises(ConfigurationError, match="--trust-from"):
        Proxies([network])


def test_a_local_program_cannot_forge_its_address(lend: Lend, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By addresses of its own making it would never meet the brake, and would write them into the log."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    token_of(tokens)
    lending = lend()
    client = lending.client("stow_0_x")
    replies = [
        client.request("GET", "/v1/terms", x_forwarded_for=f"10.0.0.{number}")
        for number in range(MAX_WRONG_TOKENS_PER_MINUTE + 1)
    ]
    assert [reply.status for reply in replies] == [401] * MAX_WRONG_TOKENS_PER_MINUTE + [429]
    assert {event.address for event in lending.events_of(RequestAnswered)} == {"127.0.0.1"}


def test_a_trusted_proxy_reports_the_address_of_its_client(lend: Lend, tokens: Path) -> None:
    token_of(tokens)
    lending = lend(trust_from=("127.0.0.1",))
    client = lending.client("stow_0_x")
    statuses = [
        client.request("GET", "/v1/terms", x_forwarded_for="6.6.6.6, 10.0.0.1").status
        for _ in range(MAX_WRONG_TOKENS_PER_MINUTE + 1)
    ]
    assert statuses[-1] == 429
    assert client.request("GET", "/v1/terms", x_forwarded_for="10.0.0.2").status == 401
    assert [event.address for event in lending.events_of(InvalidTokensSent)] == ["10.0.0.1"]
