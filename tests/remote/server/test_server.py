"""A server as a whole: where it listens, TLS, how it stops, and a real database behind it."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from stowhand.errors import ConfigurationError, SchemaTooNew, StoreUnreachable, StowhandError
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.protocols.store import StoreOptions
from stowhand.remote.server.shared_store import SharedStore
from stowhand.stores.url import open_store
from stowhand.table import TableOptions, TableStore
from stowhand.testing import MemoryStore
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Client, claiming, proof, token_of
from tests.support import subprocesses


def test_another_address_without_tokens_is_refused_with_the_fix(lend: Lend) -> None:
    with pytest.raises(ConfigurationError, match="stowhand tokens make"):
        lend(host="0.0.0.0")


def test_another_address_with_tokens_is_served(lend: Lend, tokens: Path) -> None:
    token = token_of(tokens)
    lending = lend(host="0.0.0.0")
    client = Client(lending.url.replace("0.0.0.0", "127.0.0.1"), token)
    assert client.request("GET", "/v1/terms", host="jobs.example").status == 200
    client.close()


def test_a_named_tokens_file_must_contain_tokens(lend: Lend) -> None:
    with pytest.raises(ConfigurationError, match="no tokens yet"):
        lend(tokens_required=True)


def test_a_port_in_use_is_refused(lend: Lend) -> None:
    port = int(lend().url.rpartition(":")[2])
    with pytest.raises(StowhandError, match="use another port"):
        lend(port=port)


def test_an_unknown_host_is_refused(lend: Lend) -> None:
    with pytest.raises(ConfigurationError, match="--host"):
        lend(host="no such host")


def test_the_loopback_of_ipv6_is_the_loopback(lend: Lend) -> None:
    try:
        lending = lend(host="::1")
    except StowhandError:
        pytest.skip("no IPv6 here")
    assert lending.url.startswith("http://[::1]:")
    assert lending.client().claim() == []


def test_a_certificate_serves_https(lend: Lend, tokens: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    instance = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    instance.cert_chain_pems[0].write_to_path(cert)
    instance.private_key_pem.write_to_path(key)
    token = token_of(tokens)
    lending = lend(tls_cert=cert, tls_key=key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    assert lending.url.startswith("https://")
    lending.add()
    client = lending.client(token, context)
    assert client.settle(*client.claim()) == ["settled"]


@pytest.mark.parametrize(("cert", "key"), [(None, "key.pem"), ("nothing.pem", None), ("key.pem", None)])
def test_an_unusable_certificate_is_refused(lend: Lend, tmp_path: Path, cert: str | None, key: str | None) -> None:
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(ConfigurationError, match="--tls-"):
        lend(tls_cert=cert and tmp_path / cert, tls_key=key and tmp_path / key)


@pytest.mark.parametrize(
    ("hard", "fits", "asked_for"), [(2000, 1000, 1512), (800, 288, 800), (100, 1, 100)], ids=["enough", "few", "none"]
)
def test_connections_are_limited_by_open_files(hard: int, fits: int, asked_for: int) -> None:
    code = (
        "import resource as r; from stowhand.http_server import connection_limit;"
        f" r.setrlimit(r.RLIMIT_NOFILE, (min({hard}, 300), {hard}));"
        " print(connection_limit(1000), r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    message = subprocesses.run([subprocesses.PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message.split() == [str(fits), str(asked_for)]


@pytest.mark.usefixtures("long_store_waits")
def test_a_stop_ends_long_polls_at_once(lend: Lend) -> None:
    lending = lend()
    client, replies = lending.client(), []
    known = client.post("due").body["wake_count"]
    poll = threading.Thread(target=lambda: replies.append(client.post("due", wait=30, wake_count=known)))
    poll.start()
    lending.wait_until_polled()
    began = time.monotonic()
    lending.stop(closing=False)
    poll.join()
    assert time.monotonic() - began < 20, "it waited for the poll"
    assert [reply.status for reply in replies] == [200]


class Broken(MemoryStore):
    """A store that is away."""

    down = False

    def __init__(self) -> None:
        super().__init__()
        self.schema.status = self.status  # type: ignore[method-assign]

    async def claim(self, request: Any) -> Any:
        if self.down:
            raise StoreUnreachable("postgresql://secret-host: gone")
        return await super().claim(request)

    async def status(self) -> Any:
        if self.down:
            raise RuntimeError("a bug")
        return SchemaStatus(installed=1, expected=1)


def test_an_unreachable_store_is_reported_without_its_address(lend: Lend) -> None:
    store = Broken()
    lending = lend(store)
    client = lending.client()
    store.down = True
    reply = client.post("claim", **claiming())
    reply.refused(503, "unreachable")
    assert reply.headers["retry-after"] == "1"
    assert b"secret-host" not in reply.raw
    assert client.get("/readyz").status == 503
    assert client.get("/healthz").status == 200


def test_an_unexpected_error_is_reported_as_a_bug(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Broken()
    lending = lend(store)

    async def fail(tasks: object) -> None:
        raise RuntimeError("the secret of the trace")

    monkeypatch.setattr(store, "next_due", fail)
    reply = lending.client().post("due")
    reply.refused(500, "broken")
    assert b"secret" not in reply.raw


def test_a_table_with_transactional_handlers_is_not_lent() -> None:
    options: TableOptions[Any] = TableOptions(name="uploads", table_name="uploads", transactional=True)
    with pytest.raises(ConfigurationError, match="transactional=False"):
        SharedStore(TableStore("postgresql:///nowhere", options))


class Upgraded(MemoryStore):
    """Somebody has upgraded its schema beyond this version."""

    def heartbeats(self) -> Any:
        heartbeats = super().heartbeats()

        async def refuse(own_leases: object, slack: float) -> Any:
            raise SchemaTooNew("version 99")

        heartbeats.foreign = refuse  # type: ignore[method-assign]
        return heartbeats


def test_a_schema_that_is_too_new_ends_the_server(lend: Lend) -> None:
    lending = lend(Upgraded())
    lending.join()
    assert isinstance(lending.failed, SchemaTooNew)


@pytest.mark.usefixtures("long_store_waits")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_queue_in_a_database_is_lent(
    lend: Lend, kind: str, tmp_path: Path, request: pytest.FixtureRequest, tokens: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    store = open_store(url, StoreOptions())
    _install(url)
    token = token_of(tokens)
    lending = lend(store)
    ids = [lending.add(), lending.add(serial="q"), lending.add(serial="q")]
    client = lending.client(token)
    first, second = client.claim(10)
    assert [claim["lease"]["job_id"] for claim in (first, second)] == ids[:2]
    assert client.post("heartbeat", leases=[proof(first), proof(second)], lease=30.0).body["lost"] == []
    other = lending.client(token)
    threading.Timer(0.1, lambda: other.settle(second)).start()
    began = time.monotonic()
    (third,) = client.claim_when_due()
    assert time.monotonic() - began < 20
    assert client.settle(first, third) == ["settled", "settled"]
    assert client.settle(first, second, repeat=True) == ["already settled", "already settled"]
    assert client.get("/readyz").status == 200


def _install(url: str) -> None:
    async def install() -> None:
        store = open_store(url, StoreOptions())
        await store.schema.install()
        await store.close()

    asyncio.run(install())
