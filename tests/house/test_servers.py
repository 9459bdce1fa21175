"""The test servers themselves: real, private, unprivileged, and gone afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support import places
from tests.support.accounts import existing_account
from tests.support.binaries import PREFERRED_MAJOR, find_postgres, older_than
from tests.support.databases import Databases
from tests.support.servers import PostgresServer
from tests.support.sources import ROOT


def test_the_main_server_answers(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_the_main_server_is_version_18(postgres_server: Databases) -> None:
    if "DATABASE_URL" in os.environ:
        pytest.skip("DATABASE_URL names the main server")
    assert postgres_server.version == PREFERRED_MAJOR


def test_the_older_server_answers_and_is_older(postgres_server: Databases, older_postgres_url: str) -> None:
    with psycopg.connect(older_postgres_url) as connection:
        assert connection.info.server_version // 10_000 < postgres_server.version


def test_a_server_does_not_run_as_root(postgres_server: Databases) -> None:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("DATABASE_URL names the main server")
    assert not _is_root(postgres_server.pid)


def test_a_database_starts_as_its_template(postgres_server: Databases) -> None:
    calls = []

    def setup(url: str) -> None:
        calls.append(url)
        with psycopg.connect(url) as connection:
            connection.execute("create table prepared (id int)")

    for _ in range(2):
        url = postgres_server.create_database(template=postgres_server.template(setup))
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from prepared").fetchone() == (0,)
        postgres_server.drop_database(url)
    assert len(calls) == 1


def test_a_database_is_lent_again_as_it_was_made(postgres_server: Databases) -> None:
    def setup(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("create table known (id int primary key); insert into known values (1)")
            connection.execute("create table child (id serial primary key, parent int references known)")

    changes = {
        "insert into child (parent) values (1)": True,
        "create schema more create table one (id int)": True,
        "delete from known": False,
        "update known set id = 2": False,
        "insert into known values (3)": False,
        "create function f() returns int language sql as 'select 1'": False,
        "alter table child add column more int": False,
        "drop table child": False,
        "comment on table child is 'x'": False,
        "insert into child (parent) select null from generate_series(1, 5000); analyze child": False,
        "create text search configuration simpler (copy = simple)": False,
        "create foreign data wrapper elsewhere": False,
        "create operator family alike using btree": False,
        "create operator class same for type text using hash as operator 1 =": False,
    }
    own = {
        "comment on database {} is 'x'": False,
        "alter database {} connection limit 7": False,
        "revoke connect on database {} from public": False,
    }
    for change, again in (changes | own).items():
        with postgres_server.lend(setup) as first:
            with psycopg.connect(first) as connection:
                connection.execute(change.format(connection.info.dbname).encode())
            left_open = psycopg.connect(first)
            left_open.execute("select * from known")
        left_open.close()
        with postgres_server.lend(setup) as second, psycopg.connect(second) as connection:
            assert (first == second) is again, change
            result = connection.execute("select id, (select count(*) from child) from known").fetchall()
            assert result == [(1, 0)]
            assert connection.execute("insert into child default values returning id").fetchone() == (1,)


def test_a_database_is_dropped_when_its_user_fails(postgres_server: Databases) -> None:
    with pytest.raises(LookupError), postgres_server.lend(None) as url:
        raise LookupError
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_database_that_cannot_be_emptied_is_dropped(postgres_server: Databases) -> None:
    admin, name = postgres_server.admin_url, f"plain_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"create role {name} login createdb password 'secret'".encode())
        try:
            plain = Databases(re.sub(r"//(.*@)?", f"//{name}:secret@", admin, count=1))
            with plain.lend(None) as first:
                pass
            with plain.lend(None) as second:
                assert second != first
        finally:
            connection.execute(f"drop role {name}".encode())


def test_data_and_url_survive_a_crash_and_a_restart() -> None:
    with PostgresServer(find_postgres()[0], durable=True) as server:
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("create table kept (id int)")
            assert connection.execute("show fsync").fetchone() == ("on",)
        server.restart("kill")
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_a_closed_server_leaves_nothing() -> None:
    with PostgresServer(find_postgres()[-1]) as server:
        pid = server.pid
        folders = [server._place.home, server._place.sockets]
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)
    assert not _alive(pid)


def test_the_server_of_a_killed_test_run_is_swept_away() -> None:
    program = (
        "import sys; from tests.support.servers import main_server; s = main_server();"
        "print(s.pid, s._place.home, s._place.sockets, flush=True); sys.stdin.read()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pid, home, sockets = run.stdout.readline().split()
        with places._locked(places.HOMES / "lock"):  # so that no other run sweeps it away before it was looked at
            run.kill()
            run.wait()
            assert _alive(int(pid))
    with PostgresServer(find_postgres()[0]):
        _wait_for_the_end_of(int(pid))
        assert not Path(home).exists()
        assert not Path(sockets).exists()


def test_where_namespaces_are_forbidden_root_uses_an_existing_account() -> None:
    account = existing_account()
    if os.geteuid() != 0 or account is None:
        pytest.skip("only root can start a server as another account")
    for binaries in {find_postgres()[0], older_than(PREFERRED_MAJOR) or find_postgres()[0]}:
        with PostgresServer(binaries, account=account) as server:
            assert not _is_root(server.pid)
            server.drop_database(server.create_database())


def _wait_for_the_end_of(pid: int) -> None:
    end = time.monotonic() + 20
    while _alive(pid):
        assert time.monotonic() < end, f"process {pid} still runs"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Running, not merely waiting to be collected by its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_root(pid: int) -> bool:
    """Root of this machine: inside a user namespace the number may be 0 seen from here, without any power."""
    own, its = Path("/proc/self/ns/user"), Path(f"/proc/{pid}/ns/user")
    if own.exists() and own.readlink() != its.readlink():
        return False
    return psutil.Process(pid).uids().effective == 0
