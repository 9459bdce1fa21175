"""A login that is limited by the line in the reference runs flows from creation to retry, and is refused nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from stowhand.errors import StoreError
from stowhand.events import Events
from stowhand.flows import DelayError, Flow, FlowJob
from stowhand.flows.job import FlowJobFailed
from stowhand.flows.redis.server import SCRIPTS
from stowhand.protocols.flow_shape import Layout, Limiter, Queue
from tests.conftest import Run
from tests.docs.pages import DOCS
from tests.support.flow_keys import FlowKeys
from tests.support.valkey import RedisServer, find_redis
from tests.support.valkey_groups import RedisCluster

PAGE = (DOCS / "reference" / "flows.md").read_text()
QUEUES = [
    Queue("first", next_queue="parent", delayable=True, max_retries=1, limiter=Limiter(reservoir=50, interval=0.2)),
    Queue("parent", next_queue="last", children=[Queue("kid")]),
    Queue("last"),
]


def line() -> str:
    """Return the ACL rules of the page."""
    result = re.search("^ACL SETUSER (.*)$", PAGE, re.MULTILINE)
    assert result is not None
    return result[1]


def tagged(rules: str) -> str:
    """Return the ACL rules of the page for a flow with a hash tag in a cluster."""
    assert "`~{shop}:*` takes the place" in PAGE
    assert "`+cluster|slots`" in PAGE
    others = [rule for rule in rules.split() if not rule.startswith("~")]
    return " ".join([*others, "~{shop}:*", "+cluster|slots"])


class Place:
    """A server, or a cluster, on which an administrator has set up the user ``flows``."""

    def __init__(self, servers: list[RedisServer], url: str) -> None:
        self.servers, self.url = servers, url

    def give(self, rules: str) -> None:
        for server in self.servers:
            with server.client() as client:
                client.execute_command("ACL", "DELUSER", "flows")
                client.execute_command("ACL", "SETUSER", *rules.split())
                client.execute_command("ACL", "LOG", "RESET")

    def refused(self) -> list[str]:
        """What the user was refused: keys and commands."""
        rows: list[str] = []
        for server in self.servers:
            with server.client() as client:
                entries: Any = client.execute_command("ACL", "LOG")
                rows += [f"{one['reason']}: {one['object']}" for one in entries]
        return rows


@pytest.fixture
def server() -> Iterator[Place]:
    with RedisServer(find_redis(), port=0) as one:
        yield Place([one], f"redis://flows:secret@127.0.0.1:{one.port}/0")


def first(job: FlowJob) -> dict[str, Any]:
    if job["n"] == 2 and "again" not in seen:
        seen.add("again")
        raise DelayError("later", 0.05)
    if job["n"] == 3 and len(failures) < 2:
        failures.append(job.id)
        raise ValueError("not yet")
    return {"children:parent:params": [{"childName": "kid", "m": m} for m in range(2)]}


seen: set[str] = set()
failures: list[str] = []


async def through(flow: Flow) -> None:
    """Create, wait, fan out, be limited, postponed, retried, canceled, found, deleted."""
    seen.clear()
    failures.clear()
    flow.create_workers("first", first, count=2, wait_timeout=0.2)
    flow.create_parent_workers("parent", wait_timeout=0.2)
    flow.create_child_workers("parent", "kid", lambda job: {"square": job["m"] ** 2}, wait_timeout=0.2)
    flow.create_workers("last", lambda job: {"end": True}, wait_timeout=0.2)
    async with flow:
        ids = await flow.create_jobs([{"n": n, "user": "ann"} for n in range(4)])
        ids.append(await flow.create_job({"n": 5, "user": "bob"}, delay=0.1))
        await flow.start_all()
        for job_id in (*ids[:3], ids[4]):
            assert (await flow.result(job_id, 20))["end"] is True
        with pytest.raises(FlowJobFailed):
            await flow.result(ids[3], 20)
        assert [answer.result for answer in await flow.retry_jobs([ids[3]])] == ["done"]
        assert (await flow.result(ids[3], 20))["end"] is True
        waiting = await flow.create_job({"n": 6}, delay=60)
        assert (await flow.cancel_job(waiting)).result == "done"
        assert len(await flow.get_jobs_by_key("user", "ann", resolve_children=True)) == 4
        assert len(await flow.get_children(ids[0], "parent")) == 2
        assert await flow.monitor.counts()
        await flow.monitor.positions("first", 10)
        await flow.monitor.sweep()
        assert await flow.delete_job(ids[0])


def declared(url: str, **options: Any) -> Flow:
    return Flow("demo", url, QUEUES, ["user"], events=Events(), **options)


@pytest.mark.parametrize("layout", list(Layout))
def test_the_permissions_of_the_reference_suffice(run: Run, server: Place, layout: Layout) -> None:
    server.give(line())
    run(through(declared(server.url, layout=layout)))
    assert server.refused() == []


def test_in_a_cluster_the_tag_and_one_command_more_are_all_that_it_needs(run: Run, redis_cluster: RedisCluster) -> None:
    cluster = Place(list(redis_cluster.servers), redis_cluster.url.replace("://", "://flows:secret@"))
    cluster.give(tagged(line()))
    run(through(declared(cluster.url, layout=Layout.PRIORITY, hash_tag="shop")))
    assert cluster.refused() == []


@pytest.mark.parametrize("layout", list(Layout))
def test_the_patterns_are_those_of_the_keys_and_no_more(layout: Layout) -> None:
    keys = FlowKeys(declared("redis://localhost", layout=layout).shape)
    names = [
        keys.job("1"),
        keys.lookup("user", "ann"),
        keys.waiting("first"),
        keys.flow("first"),
        keys.lock("first", "1"),
    ]
    names += [keys.lease("t"), keys.calls("first"), keys.enqueued("first"), keys.tickets("first"), keys.dead("t")]
    names += [keys.settled("d"), *re.findall(r"prefix \.\. '(open:)'", SCRIPTS["create"].text)]
    patterns = [rule[1:] for rule in line().split() if rule.startswith("~")]
    begins = {pattern: [name for name in names if name.startswith(pattern.removesuffix("*"))] for pattern in patterns}
    assert all(begins.values()), begins
    assert {name for found in begins.values() for name in found} == set(names)


def test_scripts_call_only_permitted_commands(server: Place) -> None:
    with server.servers[0].client() as client:
        listed = {name: set(client.execute_command("ACL", "CAT", name)) for name in ("read", "write", "dangerous")}
    allowed = (listed["read"] | listed["write"]) - listed["dangerous"] | {"time"}
    assert {"+@read", "+@write", "-@dangerous", "+time"} <= set(line().split())
    for script in SCRIPTS.values():
        called = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", script.text)}
        assert called
        assert called <= allowed, script.name


def test_without_a_required_permission_the_flow_is_refused(run: Run, server: Place) -> None:
    server.give(line().replace("~job:* ", ""))
    with pytest.raises(StoreError, match="ACL SETUSER"):
        run(declared(server.url).create_job({"n": 1, "user": "ann"}))
    assert server.refused()
