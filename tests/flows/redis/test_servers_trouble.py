"""Errors of Redis: the translated error contains advice and no secret, and shows whether to retry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable
from stowhand.flows.redis.address import read_address
from stowhand.flows.redis.dialer import Dialer
from stowhand.flows.redis.error_translation import NoReply, repeated, translated
from tests.conftest import Run
from tests.support.valkey import RedisServer, find_redis
from tests.support.valkey_groups import RedisCluster, RedisPair
from tests.support.valkey_stub import Stub

SECRET = "s3cret/@"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """With a password."""
    with RedisServer(find_redis(), port=0, requirepass=SECRET) as server:
        yield server


async def raised(url: str, *command: str | bytes | int, opening: bool = False) -> Exception:
    """What one command ends with."""
    address = read_address(url)
    dialer = Dialer(address)
    try:
        with (
            pytest.raises(Exception, match=address.shown.replace("+", r"\+").replace("?", r"\?")) as caught,
            translated(address, opening=opening),
        ):
            await dialer.shared_client().execute_command(*command)
    finally:
        await dialer.close()
    error = caught.value
    for secret in (SECRET, "s3cret"):
        assert secret not in f"{error} {error!r} {error.__cause__!r}"
    return error


def at(server: RedisServer, login: str = ":s3cret%2F%40", rest: str = "0", scheme: str = "redis") -> str:
    return f"{scheme}://{login}@127.0.0.1:{server.port}/{rest}"


LOGINS = {
    "no password": ("", "check user and password"),
    "wrong password": (":wrong-s3cret", "check user and password"),
    "wrong user": ("me:s3cret", "check user and password"),
}


@pytest.mark.parametrize("case", LOGINS)
@pytest.mark.parametrize("opening", [True, False], ids=["opening", "later"])
def test_a_refused_login_is_a_configuration_error_while_opening_and_an_outage_later(
    run: Run, server: RedisServer, case: str, opening: bool
) -> None:
    login, words = LOGINS[case]
    error = run(raised(at(server, login), "PING", opening=opening))
    assert words in str(error)
    assert isinstance(error, ConfigurationError if opening else StoreError)


def test_a_password_for_a_server_without_one(run: Run, redis_server: RedisServer) -> None:
    if not isinstance(redis_server, RedisServer):
        pytest.skip("REDIS_URL names the server")
    error = run(raised(f"unix://me:s3cret@{redis_server.socket}", "PING", opening=True))
    assert isinstance(error, ConfigurationError)
    assert "check user and password" in str(error)


def test_a_login_without_the_permission(run: Run, server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "+@read")
    error = run(raised(at(server, "reader:s3cret"), "SET", "a", "b", opening=True))
    assert isinstance(error, ConfigurationError)
    assert "ACL SETUSER" in str(error)
    assert "set" in str(error).lower()


def test_a_missing_database(run: Run, server: RedisServer) -> None:
    error = run(raised(at(server, rest="99"), "PING", opening=True))
    assert isinstance(error, ConfigurationError)
    assert "redis://host:port/number" in str(error)


UNREACHABLE = {
    "port": "redis://:s3cret@127.0.0.1:1/0",
    "socket": "unix:///nowhere/s.sock?password=s3cret",
    "cluster": "redis+cluster://:s3cret@127.0.0.1:1,127.0.0.1:2",
    "name": "redis://:s3cret@nobody.invalid/0",
}


@pytest.mark.parametrize("case", UNREACHABLE)
def test_an_unreachable_server(run: Run, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: Any, *more: Any, **options: Any) -> Any:
        """As where a name server answers, and at once."""
        if host == "nobody.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *more, **options)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    error = run(raised(UNREACHABLE[case], "GET", "a", opening=True))
    assert type(error) is StoreUnreachable
    assert "is it running" in str(error)


@pytest.mark.parametrize("what", ["nobody", "no sentinel", "another service"])
def test_sentinels_that_name_no_primary(run: Run, server: RedisServer, what: str) -> None:
    url = "redis+sentinel://:s3cret@127.0.0.1:1/svc?sentinel_username=you&sentinel_password=s3cret"
    if what == "no sentinel":
        url = at(server, rest="svc", scheme="redis+sentinel")
    if what == "another service":
        with Stub({"SENTINEL": b"*0\r\n"}) as stub:
            url = f"redis+sentinel://:s3cret@{stub.url.removeprefix('redis://').removesuffix('/0')}/svc"
            error = run(raised(url, "PING"))
    else:
        error = run(raised(url, "PING"))
    assert type(error) is StoreUnreachable
    assert "no sentinel names it" in str(error)
    assert len(str(error)) < 250


def test_memory_that_is_full(run: Run, server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "1")
    try:
        error = run(raised(at(server), "SET", "a", "b"))
        in_a_script = run(raised(at(server), "EVAL", "return redis.call('SET', KEYS[1], 'b')", 1, "a"))
    finally:
        with server.client() as client:
            client.config_set("maxmemory", "0")
    for each in (error, in_a_script):
        assert type(each) is StoreError
        assert "maxmemory" in str(each)


def test_a_replica_and_a_primary_without_its_replica(run: Run) -> None:
    with RedisPair(find_redis()) as pair:
        read_only = run(raised(pair.replica.url, "SET", "a", "b"))
        in_a_script = run(raised(pair.replica.url, "EVAL", "return redis.call('SET', KEYS[1], 'b')", 1, "a"))
        with pair.primary.client() as client:
            client.config_set("min-replicas-to-write", "2")
        alone = run(raised(pair.primary.url, "SET", "a", "b"))
    for each in (read_only, in_a_script):
        assert type(each) is StoreUnreachable
        assert "this is a replica" in str(each)
    assert type(alone) is StoreUnreachable
    assert "enough good replicas" in str(alone).lower()


def test_an_endless_script_of_another_program(run: Run, server: RedisServer) -> None:
    def run_for_ever() -> None:
        with server.client() as client, pytest.raises(redis.ResponseError, match="killed"):
            client.eval("while true do end", 0)

    with server.client() as client:
        client.config_set("lua-time-limit", "1")
        thread = threading.Thread(target=run_for_ever)
        thread.start()
        try:
            while True:
                try:
                    client.ping()
                except redis.ResponseError:
                    break
            busy = run(raised(f"unix://:s3cret%2F%40@{server.socket}", "GET", "a"))
        finally:
            client.script_kill()
            thread.join(10)
    assert type(busy) is StoreUnreachable
    assert "SCRIPT KILL" in str(busy).upper()


def test_keys_of_several_slots(run: Run, redis_cluster: RedisCluster) -> None:
    script = "return redis.call('SET', KEYS[1], redis.call('GET', 'b'))"
    for command in (("EVAL", "return 1", 2, "a", "b"), ("EVAL", script, 1, "a"), ("RENAME", "a", "b")):
        error = run(raised(redis_cluster.url, *command, opening=True))
        assert isinstance(error, ConfigurationError)
        assert "hash_tag" in str(error)


def test_a_node_addressed_as_a_server(run: Run, redis_cluster: RedisCluster) -> None:
    node = redis_cluster.servers[0].url
    for url, command in ((node, ("GET", "a")), (node.replace("/0", "/1"), ("PING",))):
        error = run(raised(url, *command, opening=True))
        assert isinstance(error, ConfigurationError)


# What is hard to have from a real server at the moment of a test: its words, as its sources have them.
WORDS = {
    "loading": ("-LOADING Redis is loading the dataset in memory", StoreUnreachable, "loading the dataset"),
    "cluster down": ("-CLUSTERDOWN Hash slot not served", StoreUnreachable, "Hash slot not served"),
    "slots on the move": (
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        StoreUnreachable,
        "during rehashing",
    ),
    "stale replica": ("-MASTERDOWN Link with MASTER is down", StoreUnreachable, "Link with MASTER is down"),
    "full house": ("-ERR max number of clients reached", StoreUnreachable, "max number of clients"),
    "disk": ("-MISCONF Errors writing to the AOF file: No space left on device", StoreError, "No space left on device"),
    "memory, in a script of 6.2": (
        "-ERR Error running script (call to f_0f): @user_script:1: @user_script: 1: -OOM command not allowed",
        StoreError,
        "OOM command not allowed",
    ),
    "replica, in a script of 6.2": (
        "-ERR Error running script (call to f_0f): @user_script:1: -READONLY You can't write against it.",
        StoreUnreachable,
        "this is a replica",
    ),
    "anything": ("-ERR value of s3cret is not an integer", StoreError, "is not an integer"),
}


@pytest.mark.parametrize("case", WORDS)
def test_errors_of_a_server(run: Run, case: str) -> None:
    words, kind, advice = WORDS[case]
    with Stub({"GET": f"{words}\r\n".encode()}) as stub:
        error = run(raised(stub.url.replace("//", "//:s3cret@"), "GET", "a"))
    assert type(error) is kind
    assert advice in str(error)


def test_a_connection_that_breaks_before_the_reply_leaves_it_open(run: Run) -> None:
    with Stub({"GET": b""}) as stub:
        assert type(run(raised(stub.url, "GET", "a"))) is NoReply


def test_a_wrong_setup_is_reported_at_once_while_opening(run: Run) -> None:
    async def check(stub: Stub) -> None:
        address = read_address(stub.url)
        dialer = Dialer(address)
        try:
            with pytest.raises(ConfigurationError, match="check user and password"):
                await repeated(
                    lambda: dialer.shared_client().ping(), address, SystemClock(), unanswered=True, opening=True
                )
        finally:
            await dialer.close()

    with Stub({"PING": b"-NOAUTH Authentication required.\r\n"}) as stub:
        run(check(stub))
        assert stub.asked.count("PING") == 1


def test_errors_that_are_not_of_redis_are_raised_unchanged() -> None:
    with pytest.raises(KeyError), translated(read_address("redis://h")):
        raise KeyError("mine")


def test_a_long_error_is_cut_to_one_line(run: Run) -> None:
    with Stub({"GET": b"-ERR " + b"x" * 5000 + b"\r\n"}) as stub:
        error = str(run(raised(stub.url, "GET", "a")))
    assert len(error) < 500
    assert "\n" not in error
