"""An address with several hosts: the first that answers, and is what target_session_attrs asks for, has the store."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from stowhand.app.own_store import same_store
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.stores.database.address import Address
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.url import store_url
from tests.stores.postgres.verbs import take
from tests.support.binaries import find_postgres
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://a:1,b:2/db?target_session_attrs=read-write", "postgresql://a:1,b:2/db"),
        ("postgres://me:p%40@[::1]:5,[::2]/db", "postgresql://me@::1:5,::2/db"),
        ("host=a,b port=1,2 dbname=db", "postgresql://a:1,b:2/db"),
        ("host=a,b port=7 dbname=db", "postgresql://a:7,b:7/db"),
    ],
)
def test_several_hosts_are_read_as_libpq_reads_them(given: str, shown: str) -> None:
    assert str(Address(store_url(given))) == shown
    assert Address(store_url(given)).connect_timeout_seconds == 22.0, "each host has its time"


@pytest.mark.parametrize("given", ["postgresql://a:x,b:2/db", "postgresql://a@b@c/db", "postgresql://a:1:2/db"])
def test_an_invalid_address_is_still_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        store_url(given)


def test_other_spellings_of_ssl_work_with_several_hosts() -> None:
    assert store_url("postgres://u:p@a:1,b:2/db?ssl=true&x=y") == "postgresql://u:p@a:1,b:2/db?x=y&sslmode=require"


def test_two_addresses_of_the_same_hosts_are_one_store() -> None:
    assert same_store("postgresql://a:1,b:2/db", "postgresql:///db?host=a,b&port=1,2", {})
    assert not same_store("postgresql://a:1,b:2/db", "postgresql://a:1,c:2/db", {})


def address(*urls: str) -> str:
    """Their sockets' folders, in this order, and one that may be written to."""
    folders = [parse_qs(urlsplit(url).query)["host"][0] for url in urls]
    name = urlsplit(urls[-1]).path
    hosts, ports = quote(",".join(folders), safe=""), ",".join("5432" for _ in folders)
    return f"postgresql://postgres@{name}?host={hosts}&port={ports}&target_session_attrs=read-write"


def test_after_a_failover_the_store_continues_at_the_other_host(own_url: str, run: Any) -> None:
    """The first host falls silent for good; claims, settlements, beats and enqueues find the second."""

    async def story(first: ExitStack, store: PostgresStore) -> None:
        await store.open()
        heartbeats = store.heartbeats()
        job = await store.jobs.enqueue(NewJob(task="t"))
        lease = await take(store)
        assert not (await heartbeats.beat([lease], 30.0)).lost
        first.close()
        pulse = None
        for _ in range(3):  # a connection that was cut says so once; a worker asks again
            try:
                pulse = await heartbeats.beat([lease], 30.0)
                break
            except Exception:  # noqa: BLE001
                continue
        assert pulse is not None
        assert not pulse.lost
        await store.settle([(lease, COMPLETED)], repeat=True)
        done = await store.jobs.get(job.id)
        assert done is not None
        assert done.state == "completed"
        assert (await store.jobs.enqueue(NewJob(task="t"))).id == job.id + 1
        assert (await take(store)).job_id == job.id + 1
        await heartbeats.close()
        await store.close()

    with ExitStack() as first, Proxy(own_url) as second:
        way = first.enter_context(Proxy(own_url))
        run(story(first, PostgresStore(store_url(address(way.url, second.url)))))


def test_a_read_only_host_is_skipped(own_url: str, run: Any) -> None:
    async def story(url: str) -> None:
        store = PostgresStore(store_url(url))
        await store.open()
        await store.jobs.enqueue(NewJob(task="t"))
        assert (await take(store)).job_id == 1
        await store.close()

    with PostgresServer(find_postgres()[0], default_transaction_read_only="on") as reader:
        url = reader.url(urlsplit(own_url).path.removeprefix("/"))
        run(story(address(url, own_url)))
