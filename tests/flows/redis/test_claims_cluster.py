"""The store on a cluster: with a hash tag a flow lies in one slot, and a node learns a script when it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from stowhand.errors import ConfigurationError
from stowhand.flows.redis import RedisEngine
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import Harness, ended, park, shape_of
from tests.support.valkey_groups import RedisCluster


@pytest.fixture
def cluster_harness(redis_cluster: RedisCluster) -> Iterator[Harness]:
    port = redis_cluster.servers[0].port
    client = redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    harness = Harness(redis_cluster.url, client, "tagged")
    yield harness
    harness.close()
    client.close()


def test_a_job_passes_a_cluster_without_loaded_scripts(cluster_harness: Harness) -> None:
    harness = cluster_harness
    job_id = harness.add(userId=1)
    claimed = harness.take()
    assert harness.heartbeats().beat([claimed], 30).lost == frozenset()
    assert harness.settle(claimed, ended("second", x=1)) is Verdict.SETTLED
    assert harness.settle(claimed, ended("second", x=1), repeat=True) is Verdict.ALREADY_SETTLED
    assert harness.ids("second") == [job_id]
    parent = harness.start("parent")
    for queue, _ in park(harness, parent, ["kid", "other"]):
        assert harness.settle(harness.take(queue), ended(), queue) is Verdict.SETTLED
    assert harness.ids("parent") == [parent.job_id]
    assert harness.die(harness.take("second"), "second")[0].job_id == job_id


def test_an_idle_worker_is_woken_in_a_cluster(cluster_harness: Harness) -> None:
    async def scene() -> None:
        store = cluster_harness.new_store("first")
        assert await store.wait(0.05) is False
        cluster_harness.add()
        assert await store.wait(15.0) is True

    cluster_harness.run(scene())


def test_a_cluster_without_a_hash_tag_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hash_tag"):
        RedisEngine("redis+cluster://localhost:1", shape_of("priority"))
