"""Clients of every form of address, on real servers; and what a cancelled wait, a cut or a failover does to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.flows.redis.address import Address, read_address
from stowhand.flows.redis.dialer import Client, Dialer
from stowhand.flows.redis.error_translation import NoReply, repeated, translated
from tests.conftest import Run
from tests.support.valkey import RedisServer, find_redis
from tests.support.valkey_groups import RedisCluster, RedisPair, RedisSentinel
from tests.support.valkey_stub import Stub, TlsEnd

KEY = "{one}:list"
BLOCKED = "return tonumber(string.match(redis.call('INFO', 'clients'), 'blocked_clients:(%d+)'))"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """With a password, on a port and a socket."""
    with RedisServer(find_redis(), port=0, requirepass="s3cret/@") as server:
        yield server


@asynccontextmanager
async def dialed(url: str) -> AsyncIterator[Dialer]:
    dialer = Dialer(read_address(url))
    try:
        yield dialer
    finally:
        await dialer.close()


async def use_every_client(url: str) -> None:
    """A write, a wait that another client ends, and a look from a loop in another thread."""

    async def look() -> list[bytes | str]:
        async with dialed(url) as another:
            return list(await another.shared_client().lrange(KEY, 0, -1))

    async with dialed(url) as dialer:
        calls, waiting = dialer.shared_client(), dialer.blocking_client(20)
        assert calls is dialer.shared_client()
        await calls.delete(KEY)
        wait = waits(waiting, 20)
        await asyncio.sleep(0)
        await calls.rpush(KEY, "ä")
        assert await wait == "ä"
        assert await asyncio.to_thread(lambda: asyncio.run(look())) == ["ä"]


def waits(client: Client, seconds: float, into: str = KEY) -> asyncio.Task[str | None]:
    """Until there is one."""

    async def wait() -> str | None:
        head: str | None = await client.execute_command("BLMOVE", KEY, into, "LEFT", "LEFT", seconds)
        return head

    return asyncio.create_task(wait())


async def ping_in_a_pipeline(client: Client) -> None:
    async with client.pipeline(transaction=False) as pipe:
        pipe.ping()
        await pipe.execute()


def test_a_port_with_a_password(run: Run, server: RedisServer) -> None:
    run(use_every_client(f"redis://:s3cret%2F%40@127.0.0.1:{server.port}/7"))


def test_a_socket(run: Run, server: RedisServer) -> None:
    run(use_every_client(f"unix://{server.socket}?db=7&password=s3cret%2F%40"))


def test_a_cluster(run: Run, redis_cluster: RedisCluster) -> None:
    run(use_every_client(redis_cluster.url))


def test_a_cluster_is_found_by_any_node_that_lives(run: Run, redis_cluster: RedisCluster) -> None:
    run(use_every_client(f"redis+cluster://127.0.0.1:1,127.0.0.1:{redis_cluster.servers[2].port}"))


def test_tls_trusts_the_named_authority_only(run: Run, redis_server: RedisServer, tmp_path: Path) -> None:
    if not isinstance(redis_server, RedisServer):
        pytest.skip("REDIS_URL names the server")

    async def check() -> None:
        async with TlsEnd(redis_server.socket, tmp_path) as end:
            await use_every_client(f"{end.url}?ssl_ca_certs={end.authority}")
            await use_every_client(f"{end.url}?ssl_cert_reqs=none")
            async with dialed(end.url) as dialer:
                with (
                    pytest.raises(StoreUnreachable, match="ssl_ca_certs"),
                    translated(read_address(end.url), opening=True),
                ):
                    await dialer.shared_client().ping()

    run(check())


def test_sentinels_lead_to_the_primary_and_after_a_failover_to_the_new_one(run: Run) -> None:
    async def check(pair: RedisPair, sentinel: RedisSentinel) -> None:
        async with dialed(sentinel.url) as dialer:
            calls = dialer.shared_client()
            await calls.set("kept", "yes")
            pair.wait_for_replica()
            pair.primary.stop("kill")
            sentinel.hurry()
            while True:
                try:
                    with translated(read_address(sentinel.url)):
                        assert await calls.set("after", "yes")
                        assert await calls.get("kept") == "yes"
                    break
                except StoreUnreachable:
                    await asyncio.sleep(0.05)
            with pair.replica.client() as client:
                assert client.get("after") == "yes"

    with RedisPair(find_redis()) as pair, RedisSentinel(find_redis(), pair) as sentinel:
        run(use_every_client(sentinel.url))
        run(check(pair, sentinel), timeout=60)


@pytest.mark.parametrize("clustered", [False, True], ids=["server", "cluster"])
def test_a_cancelled_wait_also_ends_on_the_server(
    run: Run, redis_url: str, redis_cluster: RedisCluster, clustered: bool
) -> None:
    async def check(url: str) -> None:
        async with dialed(url) as dialer:
            calls, waiting = dialer.shared_client(), dialer.blocking_client(20)
            for step in range(40):  # on its way, however far it has come
                wait = waits(waiting, 20, f"{KEY}:taken")
                for _ in range(step):
                    await asyncio.sleep(0)
                wait.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await wait
            async with asyncio.timeout(10):  # sooner than by the end of their time
                while await calls.execute_command("EVAL", BLOCKED, 1, KEY):
                    pass
            # Nobody who waited before takes it now, and the same client waits on.
            await calls.rpush(KEY, "one")
            assert await calls.llen(f"{KEY}:taken") == 0
            assert await waits(waiting, 20) == "one"

    run(check(redis_cluster.url if clustered else redis_url))


def test_a_wait_may_be_longer_than_the_deadline_of_a_call(
    run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lasts_longer(deadline: float) -> bool:
        monkeypatch.setattr("stowhand.flows.redis.dialer.CALL_TIMEOUT_SECONDS", deadline)
        async with dialed(redis_url) as dialer:
            try:
                with translated(read_address(redis_url)):
                    return await waits(dialer.blocking_client(3 * deadline), 3 * deadline) is None
            except NoReply:
                return False

    async def check() -> None:
        # Where the machine itself takes longer than the deadline, a longer one shows the same.
        assert await lasts_longer(0.1) or await lasts_longer(0.5) or await lasts_longer(3.0)

    run(check())


def test_a_call_to_a_silent_server_ends_in_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.flows.redis.dialer.CALL_TIMEOUT_SECONDS", 0.1)

    async def check(server: RedisServer) -> None:
        address = read_address(server.url)
        async with dialed(server.url) as dialer:
            await answers(dialer, address)
            server.freeze()
            with pytest.raises(NoReply, match="no answer in time"), translated(address):
                await dialer.shared_client().ping()
            with pytest.raises(NoReply, match="no answer in time"), translated(address):
                await ping_in_a_pipeline(dialer.shared_client())
            server.thaw()
            await answers(dialer, address)

    async def answers(dialer: Dialer, address: Address) -> None:
        """A tenth of a second is not always enough for that."""
        answered = False
        while not answered:
            with contextlib.suppress(NoReply), translated(address):
                answered = await dialer.shared_client().ping()

    with RedisServer(find_redis()) as server:
        run(check(server))


def test_clients_continue_after_a_restart_of_the_server(run: Run) -> None:
    async def check(server: RedisServer) -> None:
        async with dialed(server.url) as dialer:
            assert await dialer.shared_client().ping()
            await asyncio.to_thread(server.restart, "kill")
            assert await dialer.shared_client().ping()

    with RedisServer(find_redis()) as server:
        run(check(server))


def test_bytes_that_are_no_text_are_read_and_written_back_as_they_were(run: Run, redis_url: str) -> None:
    async def check() -> None:
        async with dialed(redis_url) as dialer:
            await dialer.shared_client().set("odd", b"\xff\x00a")
            odd = await dialer.shared_client().get("odd")
            assert odd == "\udcff\x00a"
            await dialer.shared_client().set("copy", odd)
            assert await dialer.shared_client().strlen("copy") == 3

    run(check())


def test_the_driver_repeats_nothing(run: Run) -> None:
    async def check(stub: Stub) -> None:
        async with dialed(stub.url) as dialer:
            for call in (dialer.shared_client().incr, dialer.blocking_client(1).incr):
                with pytest.raises(NoReply), translated(read_address(stub.url)):
                    await call("n")

    with Stub({"INCRBY": b""}) as stub:
        run(check(stub))
        assert stub.asked.count("INCRBY") == 2


REPEATS = {
    "refused for now": (b"-LOADING reading\r\n", False, 4),
    "perhaps done": (b"", False, 1),
    "perhaps done, and may be done again": (b"", True, 4),
    "refused for good": (b"-ERR wrong\r\n", True, 1),
}


@pytest.mark.parametrize("case", REPEATS)
def test_temporary_errors_are_repeated_if_the_caller_allows_it(
    run: Run, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.flows.redis.error_translation.RETRY_PAUSE_SECONDS", 0.001)
    answer, unanswered, times = REPEATS[case]

    async def check(stub: Stub) -> None:
        address = read_address(stub.url)
        async with dialed(stub.url) as dialer:
            with pytest.raises(Exception, match=address.shown):
                await repeated(lambda: dialer.shared_client().incr("n"), address, SystemClock(), unanswered=unanswered)
            assert stub.asked.count("INCRBY") == times

    with Stub({"INCRBY": answer}) as stub:
        run(check(stub))


def test_a_retried_action_succeeds_only_once(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowhand.flows.redis.error_translation.RETRY_PAUSE_SECONDS", 0.001)
    address = read_address(redis_url)
    troubles = [StoreUnreachable("once"), StoreUnreachable("twice")]

    async def check() -> None:
        async with dialed(redis_url) as dialer:

            async def action() -> int:
                if troubles:
                    raise troubles.pop()
                return int(await dialer.shared_client().incr("n"))

            assert await repeated(action, address, SystemClock()) == 1

    run(check())
