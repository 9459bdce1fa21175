"""SQL that was written for graphile-worker's README runs unchanged when the schema bears its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.verbs import claim
from tests.support.databases import Databases

OPTIONS = StoreOptions(schema="graphile_worker")

ONE_TRIGGER = """
CREATE FUNCTION my_table_created() RETURNS trigger AS $$
BEGIN
  PERFORM graphile_worker.add_job('task_identifier_here', json_build_object('id', NEW.id));
  RETURN NEW;
END;
$$ LANGUAGE plpgsql VOLATILE;

CREATE TRIGGER trigger_name AFTER INSERT ON my_table FOR EACH ROW EXECUTE PROCEDURE my_table_created();
"""

ONE_FUNCTION_FOR_ALL = """
CREATE FUNCTION trigger_job() RETURNS trigger AS $$
BEGIN
  PERFORM graphile_worker.add_job(TG_ARGV[0], json_build_object(
    'schema', TG_TABLE_SCHEMA,
    'table', TG_TABLE_NAME,
    'op', TG_OP,
    'id', (CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END)
  ));
  RETURN NEW;
END;
$$ LANGUAGE plpgsql VOLATILE;

CREATE TRIGGER send_verification_email
  AFTER INSERT ON user_emails
  FOR EACH ROW
  WHEN (NEW.verified is false)
  EXECUTE PROCEDURE trigger_job('send_verification_email');
CREATE TRIGGER user_changed
  AFTER INSERT OR UPDATE OR DELETE ON users
  FOR EACH ROW
  EXECUTE PROCEDURE trigger_job('user_changed');
CREATE TRIGGER generate_pdf
  AFTER INSERT ON pdfs
  FOR EACH ROW
  EXECUTE PROCEDURE trigger_job('generate_pdf');
CREATE TRIGGER generate_pdf_update
  AFTER UPDATE ON pdfs
  FOR EACH ROW
  WHEN (NEW.title IS DISTINCT FROM OLD.title)
  EXECUTE PROCEDURE trigger_job('generate_pdf');
"""


async def install(url: str) -> None:
    store = PostgresStore(url, OPTIONS)
    await store.schema.install()
    await store.close()


@pytest.fixture(scope="module")
def installed(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.create_database()
    asyncio.run(install(url))
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def connection(installed: str) -> Iterator[psycopg.Connection[Any]]:
    """What a test makes is rolled back."""
    with psycopg.connect(installed) as connection:
        yield connection
        connection.rollback()


def jobs(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT task_identifier, payload FROM graphile_worker.jobs ORDER BY id").fetchall()


def test_a_trigger_adds_a_job(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE my_table (id int PRIMARY KEY)")
    connection.execute(ONE_TRIGGER.encode())
    connection.execute("INSERT INTO my_table VALUES (5), (6)")
    assert jobs(connection) == [("task_identifier_here", {"id": 5}), ("task_identifier_here", {"id": 6})]


def test_one_trigger_function_serves_all_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        b"CREATE TABLE user_emails (id int PRIMARY KEY, verified boolean);"
        b"CREATE TABLE users (id int PRIMARY KEY, name text);"
        b"CREATE TABLE pdfs (id uuid PRIMARY KEY, title text, pages int);"
    )
    connection.execute(ONE_FUNCTION_FOR_ALL.encode())
    pdf = "00000000-0000-0000-0000-000000000001"
    connection.execute(
        f"""
        INSERT INTO user_emails VALUES (1, false), (2, true);
        INSERT INTO users VALUES (3, 'a');
        UPDATE users SET name = 'b';
        DELETE FROM users;
        INSERT INTO pdfs VALUES ('{pdf}', 'one', 1);
        UPDATE pdfs SET pages = 2;
        UPDATE pdfs SET title = 'two';
        """.encode()
    )
    rows = [
        (task, payload["schema"], payload["table"], payload["op"], payload["id"]) for task, payload in jobs(connection)
    ]
    assert rows == [
        ("send_verification_email", "public", "user_emails", "INSERT", 1),
        ("user_changed", "public", "users", "INSERT", 3),
        ("user_changed", "public", "users", "UPDATE", 3),
        ("user_changed", "public", "users", "DELETE", 3),
        ("generate_pdf", "public", "pdfs", "INSERT", pdf),
        ("generate_pdf", "public", "pdfs", "UPDATE", pdf),
    ]


@pytest.mark.parametrize(
    "call",
    [
        "SELECT graphile_worker.add_job('hello', json_build_object('name', 'Bobby Tables'));",
        """
        SELECT graphile_worker.add_job(
          'send_email',
          json_build_object(
            'to', 'someone@example.com',
            'subject', 'graphile-worker test'
          )
        );
        """,
        "SELECT graphile_worker.add_job('reminder', run_at := NOW() + INTERVAL '2 days');",
        """
        SELECT graphile_worker.add_job('send_email', '{"count": 1}', job_key := 'abc');
        SELECT graphile_worker.add_job('send_email', '{"count": 2}', job_key := 'abc');
        """,
    ],
)
def test_each_call_in_the_readme_adds_one_job(connection: psycopg.Connection[Any], call: str) -> None:
    connection.execute(call.encode())
    assert len(jobs(connection)) == 1


def test_the_call_with_parameters_takes_them_in_order(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute(
        """
        SELECT task_identifier, payload, queue_name, max_attempts, run_at = NOW() + interval '90 seconds'
        FROM graphile_worker.add_job(
          %s,
          payload := %s,
          queue_name := %s,
          max_attempts := %s,
          run_at := NOW() + (%s * INTERVAL '1 second')
        );
        """,
        ("t", '{"a": 1}', "q", 3, 90),
    ).fetchone()
    assert row == ("t", {"a": 1}, "q", 3, True)


def test_a_pending_job_is_removed_by_its_key(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT graphile_worker.add_job('send_email', job_key := 'abc')")
    connection.execute("SELECT graphile_worker.remove_job('abc');")
    assert jobs(connection) == []


def test_a_role_without_grants_adds_jobs_through_a_definers_function(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        b"""
        CREATE ROLE modest NOLOGIN;
        CREATE FUNCTION public.remind(whom text) RETURNS void LANGUAGE sql SECURITY DEFINER
          SET search_path = pg_catalog, pg_temp
          AS $$ SELECT graphile_worker.add_job('remind', json_build_object('whom', whom)) $$;
        SET LOCAL ROLE modest;
        """
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
        connection.execute("SELECT graphile_worker.add_job('direct')")
    connection.execute("SELECT public.remind('Ada')")
    connection.execute("RESET ROLE")
    assert jobs(connection) == [("remind", {"whom": "Ada"})]


def test_a_worker_of_the_schema_claims_a_job_of_a_trigger(installed: str, run: Any) -> None:
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute("SELECT graphile_worker.add_job('hello', json_build_object('name', 'Bobby Tables'))")

    async def story() -> None:
        store = PostgresStore(installed, OPTIONS)
        await store.open()
        (claimed,) = await claim(store)
        assert (claimed.task, claimed.record.payload_text) == ("hello", '{"name" : "Bobby Tables"}')
        await store.close()

    run(story())
