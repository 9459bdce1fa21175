"""The Redis servers of the tests: real, private, unprivileged, and gone afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import subprocesses
from tests.support.accounts import existing_account
from tests.support.sources import ROOT
from tests.support.valkey import LiveRedis, RedisServer, find_redis, main_redis
from tests.support.valkey_groups import RedisCluster, RedisPair


def test_the_main_server_answers_and_its_database_is_empty(redis_server: LiveRedis, redis_url: str) -> None:
    assert redis_url == redis_server.url
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_a_server_does_not_run_as_root_and_answers_as_an_existing_account() -> None:
    account = existing_account()
    if os.geteuid() != 0 or account is None:
        pytest.skip("only root can start a server as another account")
    with RedisServer(find_redis(), account=account) as server:
        assert psutil.Process(server.pid).uids().effective != 0
        with server.client() as client:
            assert client.ping()


def test_with_appendfsync_always_jobs_survive_a_crash_and_a_restart() -> None:
    with RedisServer(find_redis(), appendonly="always") as server:
        with server.client() as client:
            client.set("kept", "yes")
        server.restart("kill")
        with server.client() as client:
            assert client.get("kept") == "yes"


def test_a_closed_server_has_no_connections() -> None:
    with RedisServer(find_redis()) as server:
        pid = server.pid
        folders = [server._place.home, server._place.sockets]
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)
    assert not psutil.pid_exists(pid)


def test_the_server_of_a_killed_test_run_is_swept_away() -> None:
    program = (
        "import os, signal; from tests.support.valkey import RedisServer, find_redis;"
        "s = RedisServer(find_redis()).start();"
        "print(s.pid, s._place.home, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocesses.run(
        [subprocesses.PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    pid, home = killed.stdout.split()
    # The next server sweeps: this one, or one of another process of the run.
    with RedisServer(find_redis()):
        assert not Path(home).exists()
        deadline = time.monotonic() + 30
        while _alive(int(pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_cluster_serves_all_slots(redis_cluster: RedisCluster) -> None:
    with redis_cluster.servers[0].client() as client:
        assert "cluster_slots_ok:16384" in client.execute_command("CLUSTER", "INFO")


def test_a_pair_replicates_and_its_replica_can_be_promoted() -> None:
    with RedisPair(find_redis()) as pair:
        with pair.primary.client() as client:
            client.set("kept", "yes")
        pair.wait_for_replica()
        pair.primary.stop("kill")
        pair.promote()
        with pair.replica.client() as client:
            assert client.get("kept") == "yes"
            client.set("written", "yes")


def test_each_process_gets_an_empty_database_of_a_given_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(find_redis(), port=0) as server:
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{server.port}/2")
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
        live = main_redis()
        assert live.url == f"redis://127.0.0.1:{server.port}/5"
        with live.client() as client:
            client.set("somebody's", "key")
        with pytest.raises(RuntimeError, match="database 5 at REDIS_URL is not empty"):
            main_redis()
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw20")
        with pytest.raises(redis.ResponseError, match="out of range"):
            main_redis()


def _alive(pid: int) -> bool:
    """Running, not merely waiting to be collected by its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
