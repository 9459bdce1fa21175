"""Options of a connection to a lent store: valid values, and those refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand.errors import ConfigurationError
from stowhand.protocols.store import StoreOptions
from stowhand.remote import HttpOptions, HttpStore
from stowhand.stores.url import open_store

TOKEN = "stow_0a1b_secret-of-this-worker"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://jobs.example", "https://jobs.example"),
        ("https://jobs.example:8443/queue/", "https://jobs.example:8443/queue"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("http://127.9.9.9:8470", "http://127.9.9.9:8470"),
        ("http://[::1]:8470", "http://[::1]:8470"),
        ("http://localhost:8470", "http://localhost:8470"),
    ],
)
def test_a_token_goes_over_tls_or_stays_on_this_machine(url: str, shown: str) -> None:
    assert open_store(url, StoreOptions(token=TOKEN)).description == shown


@pytest.mark.parametrize("url", ["http://jobs.example", "http://10.0.0.3:8470", "http://localhost.example:8470"])
def test_a_token_is_sent_unencrypted_to_another_machine_only_if_that_is_allowed(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure") as refused:
        HttpStore(url, HttpOptions(token=TOKEN))
    assert TOKEN not in str(refused.value)
    assert HttpStore(url, HttpOptions(token=TOKEN, insecure=True)).description == url
    assert HttpStore(url).description == url


@pytest.mark.parametrize(
    "url",
    [
        "https://user:stow_0a1b_secret-of-this-worker@host",
        "https://stow_0a1b_secret-of-this-worker@host",
        "https://host?token=stow_0a1b_secret-of-this-worker",
        "https://host#stow_0a1b_secret-of-this-worker",
        "https://",
        "https://host:port",
        "https://[::1",
        "ftp://host",
    ],
)
def test_an_invalid_url_is_refused_without_repeating_a_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        HttpStore(url)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ä", "x" * 1025])
def test_an_invalid_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError, match="token") as refused:
        HttpOptions(token=token)
    assert not token or token not in str(refused.value)


def test_invalid_timeouts_and_missing_files_are_refused(tmp_path: Path) -> None:
    for timeout in (0.0, -1.0, float("nan"), float("inf"), 301.0):
        with pytest.raises(ConfigurationError, match="timeout"):
            HttpOptions(timeout=timeout)
    with pytest.raises(ConfigurationError, match="ca_file: there is no file"):
        HttpOptions(ca_file=tmp_path / "none.pem")


def test_no_secret_is_in_what_a_debugger_shows() -> None:
    for options in (HttpOptions(token=TOKEN), StoreOptions(token=TOKEN, listen_url=f"postgresql://u:{TOKEN}@h")):
        assert TOKEN not in repr(options)
        assert "***" in repr(options)
