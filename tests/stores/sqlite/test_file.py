"""The file: where it may lie, who may read it, what is said when it is not a queue."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stowhand.errors import ConfigurationError, SchemaMissing, SchemaTooNew, StoreError, StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database import sqlite_connection as connection
from stowhand.stores.database import sqlite_file as file
from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.stores.sqlite.queue.schema import MIGRATIONS
from tests.conftest import Run


def test_only_its_owner_may_read_the_file(tmp_path: Path, run: Run) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        await store.schema.install()
        await store.jobs.enqueue(NewJob(task="t"))
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()}  # noqa: ASYNC240
        assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}
        await store.close()

    run(scenario())


def test_opening_and_enqueueing_never_make_a_file(tmp_path: Path, run: Run) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    with pytest.raises(SchemaMissing, match="stowhand migrate"):
        run(store.open())
    with pytest.raises(SchemaMissing, match="stowhand migrate"):
        run(store.jobs.enqueue(NewJob(task="t")))
    assert run(store.schema.status()).installed is None
    assert list(tmp_path.iterdir()) == []


def test_an_applications_file_lacks_our_tables_and_keeps_its_own(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "app.db"
    app = sqlite3.connect(path)
    app.executescript("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (7); PRAGMA user_version = 42;")
    app.close()

    async def scenario() -> None:
        store = SqliteStore(path)
        with pytest.raises(SchemaMissing, match="orders"):
            await store.open()
        await store.schema.install()
        await store.jobs.enqueue(NewJob(task="t"))
        await store.schema.uninstall()
        await store.close()

    run(scenario())
    app = sqlite3.connect(path)
    names = {name for (name,) in app.execute("SELECT name FROM sqlite_schema")}
    assert names <= {"orders", "sqlite_sequence"}
    assert app.execute("SELECT id FROM orders").fetchall() == [(7,)]
    assert app.execute("PRAGMA user_version").fetchone() == (42,)
    app.close()


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    with pytest.raises(StoreError, match="not, or no longer, a valid SQLite file"):
        run(SqliteStore(path).open())


def test_a_newer_breaking_schema_is_refused(path: Path, run: Run) -> None:
    raw = sqlite3.connect(path)
    raw.execute("INSERT INTO stowhand_schema (version, breaking, applied_at, fingerprint) VALUES (999, 1, 0, '')")
    raw.commit()
    raw.close()
    with pytest.raises(SchemaTooNew, match="upgrade this program"):
        run(SqliteStore(path).open())


def test_a_newer_schema_that_breaks_nothing_is_used(path: Path, run: Run) -> None:
    raw = sqlite3.connect(path)
    raw.execute("INSERT INTO stowhand_schema (version, breaking, applied_at, fingerprint) VALUES (999, 0, 0, '')")
    raw.commit()
    raw.close()

    async def scenario() -> None:
        store = SqliteStore(path)
        await store.open()
        assert (await store.schema.status()).installed == 999
        await store.close()

    run(scenario())


def test_many_installs_at_once_make_one_schema(tmp_path: Path, run: Run) -> None:
    async def scenario() -> None:
        stores = [SqliteStore(tmp_path / "jobs.db") for _ in range(8)]
        statuses = await asyncio.gather(*(store.schema.install() for store in stores))
        assert {status.installed for status in statuses} == {MIGRATIONS.newest}
        await stores[0].jobs.enqueue(NewJob(task="t"))
        for store in stores:
            await store.close()

    run(scenario())


def test_places_where_no_queue_can_live_are_explained(tmp_path: Path, run: Run) -> None:
    (tmp_path / "link.db").symlink_to("elsewhere.db")
    for path, words in {
        tmp_path: "is a folder",
        tmp_path / "link.db": "symbolic link to elsewhere.db",
        tmp_path / "absent" / "jobs.db": "absent does not exist",
        Path(os.devnull): "not a regular file",
    }.items():
        with pytest.raises(ConfigurationError, match=words):
            run(SqliteStore(path).schema.install())


@pytest.mark.parametrize(("kind", "refused"), [("nfs4", True), ("cifs", True), ("9p", True), ("ext4", False)])
def test_network_file_systems_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    assert file.file_system(tmp_path / "folder", mounts) == kind
    monkeypatch.setattr(file, "file_system", lambda folder: kind)
    if refused:
        with pytest.raises(ConfigurationError, match=f"network file system \\({kind}\\)"):
            file.check_path(tmp_path / "jobs.db")
    else:
        file.check_path(tmp_path / "jobs.db")


def test_an_unknown_synchronous_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="FULL, NORMAL"):
        SqliteStore(path, StoreOptions(synchronous="OFF"))


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_store_opens_and_reads_beside_the_open_transaction_of_its_caller(path: Path, run: Run, journal: str) -> None:
    """Which goes on when the store is open: to wait for it would be to wait for oneself."""
    owner = sqlite3.connect(path)
    assert owner.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
    owner.execute("INSERT INTO stowhand_pauses (kind, name, since) VALUES ('task', 'another', 0)")
    assert owner.in_transaction
    store = SqliteStore(path)

    async def scenario() -> None:
        await asyncio.wait_for(store.open(), 30)
        job = store.jobs.enqueue_in(owner, NewJob(task="t"))
        assert isinstance(job, Job)
        assert await store.jobs.get(job.id) is None
        owner.commit()
        assert await store.jobs.get(job.id) == job
        await store.jobs.enqueue(NewJob(task="t"))
        await store.close()

    run(scenario())
    owner.close()
    # Its first write has changed the journal.
    owner = sqlite3.connect(path)
    assert owner.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    owner.close()


def test_a_lock_that_is_held_for_too_long_is_reported(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_DEADLINE_SECONDS", 0.2)
    program = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "connection.execute('BEGIN IMMEDIATE'); print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    store = SqliteStore(path)

    async def enqueue() -> None:
        try:
            await store.jobs.enqueue(NewJob(task="t"))
        finally:
            await store.close()

    with pytest.raises(StoreUnreachable) as raised:
        run(enqueue())
    holder.communicate()
    assert "is locked" not in str(raised.value)
    if sys.platform == "linux":
        assert f"process {holder.pid}" in str(raised.value)


def test_a_damaged_page_is_found_by_the_check(path: Path, run: Run) -> None:
    store = SqliteStore(path)

    async def fill() -> None:
        await store.jobs.enqueue_many([NewJob(task="t", payload=f'"{"x" * 900}"') for _ in range(200)])
        assert await store.schema.find_damage() == []
        await store.close()

    async def check() -> int:
        result = await store.schema.find_damage()
        await store.close()
        return len(result)

    run(fill())
    with path.open("r+b") as raw:
        raw.seek(-4096, os.SEEK_END)  # a page of jobs: a damaged page of the schema would prevent the opening
        raw.write(b"\xff" * 4096)
    assert run(check()) > 0
