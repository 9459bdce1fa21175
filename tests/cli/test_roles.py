"""``stowhand migrate --roles``, and the commands as logins of those roles."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stowhand.stores.postgres.queue.context import role_names
from tests.cli.conftest import Stowhand
from tests.support.databases import Databases
from tests.support.logins import Logins, exec_all, with_roles

pytestmark = pytest.mark.xdist_group("roles")


@pytest.fixture(scope="module")
def logins(postgres_server: Databases) -> Iterator[Logins]:
    with with_roles(postgres_server) as logins:
        yield logins


def test_an_enqueuer_adds_and_a_worker_runs_from_the_command_line(
    logins: Logins, folder: Path, call: Stowhand, stowhand: Stowhand
) -> None:
    (folder / "tasks" / "hello.py").write_text(
        "async def hello(payload, helpers):\n"
        "    if payload.get('again'):\n"
        "        await helpers.add_job('hello', {}, queue_name='q')\n"
    )
    for arguments in (["hello", '{"again": true}'], ["hello", "{}", "--serial", "q"], ["hello", "--key", "k"]):
        added = call("enqueue", *arguments, "-c", logins.url("enqueuer"))
        assert added.code == 0, added.err
    worked = stowhand("worker", "--once", "-c", logins.url("worker"))
    assert worked.code == 0, worked.err
    assert "permission denied" not in worked.out + worked.err
    listed = call("jobs", "list", "--state", "completed", "--json", "-c", logins.url("reader"))
    assert listed.code == 0, listed.err
    assert len(listed.rows()) == 4


def test_only_an_administrator_administers_from_the_command_line(logins: Logins, call: Stowhand) -> None:
    job_id = call("enqueue", "administered", "--run-at", "+1h", "-c", logins.url("enqueuer")).out.strip()
    commands = (["reschedule", job_id, "--priority", 1], ["fail", job_id], ["complete", job_id])
    for verb, *rest in (*commands, ["unlock", "nobody"]):
        refused = call("jobs", verb, *rest, "-c", logins.url("reader"))
        assert (refused.code, refused.out) == (1, "")
        assert "permission denied" in refused.err
    for verb, *rest in commands:
        done = call("jobs", verb, *rest, "-c", logins.url("admin"))
        assert (done.code, done.err) == (0, "")
    assert call("jobs", "unlock", "nobody", "-c", logins.url("admin")).err.startswith("These workers have no jobs")


def test_a_login_without_a_role_gets_the_command_that_grants_it(logins: Logins, call: Stowhand) -> None:
    message = call("enqueue", "t", "-c", logins.url("stranger"))
    assert message.code == 1
    assert "stowhand migrate --roles" in message.err


def test_the_printed_plan_creates_the_roles(logins: Logins, postgres_server: Databases, call: Stowhand) -> None:
    """In a schema with a name of its own, by an owner who may not make roles; and what an administrator upgrades stays
    the owner's."""
    owner = f"owner_{uuid.uuid4().hex[:8]}"
    schema = f"It's {owner}"
    url = postgres_server.create_database()
    exec_all(url, f"create role {owner} login password 'secret'", f'create schema "{schema}" authorization {owner}')
    own = make_conninfo(url, user=owner, password="secret")
    names = role_names(schema)
    try:
        refused = call("migrate", "--roles", "--schema", schema, "-c", own)
        assert refused.code == 1
        assert "permission denied to create role" in refused.err
        assert call("migrate", "--schema", schema, "-c", own).code == 0
        printed = call("migrate", "--roles", "--plan", "--schema", schema, "-c", url)
        assert printed.code == 0, printed.err
        exec_all(url, printed.out, f'grant "{names["enqueuer"]}" to {logins.name("stranger")}')
        done = call("migrate", "--roles", "--schema", schema, "-c", url)
        assert done.code == 0, done.err
        assert names["worker"] in done.out
        with psycopg.connect(url) as connection:
            owners = connection.execute(
                "select distinct pg_get_userbyid(p.proowner) from pg_proc p join pg_namespace n on n.oid = pronamespace"
                " where n.nspname = %s", (schema,)
            ).fetchall()  # fmt: skip
        assert owners == [(owner,)]
        login = make_conninfo(url, user=logins.name("stranger"), password="secret")
        added = call("enqueue", "t", "--schema", schema, "-c", login)
        assert added.code == 0, added.err
    finally:
        postgres_server.drop_database(url)
        quoted = [f'drop role if exists "{name}"' for name in (*names.values(), owner)]
        exec_all(postgres_server.admin_url, *quoted)


def test_roles_are_refused_on_stores_without_them(call: Stowhand) -> None:
    message = call("migrate", "--roles", "-c", "sqlite:///jobs.db")
    assert message.code != 0
    assert "SQLite has no roles" in message.err
