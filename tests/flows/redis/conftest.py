"""Fixtures of the tests on Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.redis.step_harness import VARIANTS, Harness
from tests.support.valkey import LiveRedis, find_redis
from tests.support.valkey_groups import RedisCluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster]:
    """Cluster of three nodes, shared by the tests of one process."""
    with RedisCluster(find_redis()) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(shared_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """Empty cluster."""
    shared_cluster.flush()
    yield shared_cluster
    shared_cluster.flush()


@pytest.fixture(params=VARIANTS)
def harness(request: pytest.FixtureRequest, redis_server: LiveRedis, redis_url: str) -> Iterator[Harness]:
    """Harness of an empty flow, in each layout."""
    yield from _harness(redis_server, redis_url, request.param)


@pytest.fixture
def plain_harness(redis_server: LiveRedis, redis_url: str) -> Iterator[Harness]:
    """Harness of an empty flow in the classic layout, for tests that do not depend on the layout."""
    yield from _harness(redis_server, redis_url, "classic")


def _harness(server: LiveRedis, url: str, variant: str) -> Iterator[Harness]:
    with server.client() as client:
        harness = Harness(url, client, variant)
        yield harness
        harness.close()
