"""Checks of a server at the start: version, persistence, eviction, and missing permission."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.redis.address import read_address
from stowhand.flows.redis.dialer import Dialer
from stowhand.flows.redis.error_translation import translated
from stowhand.flows.redis.server import check_server
from tests.conftest import Run
from tests.support.valkey import RedisServer, find_redis
from tests.support.valkey_groups import RedisCluster
from tests.support.valkey_stub import Stub, bulk


async def look(url: str) -> list[str]:
    address = read_address(url)
    dialer = Dialer(address)
    try:
        with translated(address, opening=True):
            return await check_server(dialer.shared_client())
    finally:
        await dialer.close()


@pytest.mark.parametrize(
    ("version", "words"),
    [("6.0.16", "Redis 6.0.16 is too old.*6.2.*BLMOVE"), ("5.0.7", "Redis 5.0.7 is too old")],
)
def test_a_server_that_is_too_old_is_refused(run: Run, version: str, words: str) -> None:
    with Stub({"INFO": bulk(f"# Server\r\nredis_version:{version}\r\n")}) as stub:
        with pytest.raises(ConfigurationError, match=words):
            run(look(stub.url))
        assert "CONFIG" not in stub.asked


def test_a_new_enough_server_is_accepted(run: Run) -> None:
    for lines in (
        "redis_version:6.2.0",
        "redis_version:10.1.2",
        "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1",
    ):
        with Stub(
            {
                "INFO": bulk(lines),
            }
        ) as stub:
            assert "appendonly is no" in run(look(stub.url))[0]


def test_a_durable_server_yields_no_warning(run: Run) -> None:
    with RedisServer(find_redis(), appendonly="always", maxmemory="100mb", maxmemory_policy="noeviction") as server:
        assert run(look(server.url)) == []


FORGETFUL = {
    "nothing on disk": ({}, ["appendonly is no"]),
    "snapshots": ({"save": "60 1000"}, ["appendonly is no"]),
    "evicting": (
        {"appendonly": "yes", "appendfsync": "always", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
        ["maxmemory-policy is allkeys-lru"],
    ),
    "evicting locks": (
        {"appendonly": "yes", "appendfsync": "always", "maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"},
        ["maxmemory-policy is volatile-ttl"],
    ),
    "both": ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lfu"}, ["allkeys-lfu", "appendonly is no"]),
}


@pytest.fixture(scope="module")
def settable() -> Iterator[RedisServer]:
    """Its settings are changed by each test."""
    with RedisServer(find_redis(), port=0) as server:
        yield server


@pytest.mark.parametrize("case", FORGETFUL)
def test_settings_that_may_lose_jobs_are_found(run: Run, settable: RedisServer, case: str) -> None:
    settings, words = FORGETFUL[case]
    usual = {"save": "", "appendonly": "no", "maxmemory": "0", "maxmemory-policy": "noeviction"}
    with settable.client() as client:
        for name, value in (usual | settings).items():
            client.config_set(name, value)
    findings = run(look(settable.url))
    assert len(findings) == len(words)
    for finding, word in zip(findings, words, strict=True):
        assert word in finding


def test_a_login_without_permission_for_info_is_warned(run: Run, settable: RedisServer) -> None:
    with settable.client() as client:
        for name, value in (("appendonly", "no"), ("save", ""), ("maxmemory", "0")):
            client.config_set(name, value)
        client.execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info")
    blind = run(look(f"unix://blind:pw@{settable.socket}"))
    assert [finding[:21] for finding in blind] == ["INFO is not permitted"]


def test_an_error_of_info_is_not_a_missing_permission(run: Run) -> None:
    with Stub({"INFO": b"-ERR broken\r\n"}) as stub, pytest.raises(StoreError, match="broken"):
        run(look(stub.url))


def test_a_cluster_is_checked_node_by_node(run: Run, redis_cluster: RedisCluster) -> None:
    with redis_cluster.servers[1].client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        findings = run(look(redis_cluster.url))
    finally:
        with redis_cluster.servers[1].client() as client:
            client.config_set("maxmemory", "0")
    assert sorted(finding[:12] for finding in findings) == ["appendonly i", "maxmemory is"]


def test_a_node_of_a_cluster_is_refused_as_a_single_server(run: Run, redis_cluster: RedisCluster) -> None:
    node = redis_cluster.servers[0]
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://.*hash_tag"):
        run(look(node.url))


def test_a_single_server_is_refused_as_a_cluster(run: Run, settable: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match=r"redis://host:port/number"):
        run(look(f"redis+cluster://127.0.0.1:{settable.port}"))
