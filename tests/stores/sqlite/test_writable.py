"""Whether the file takes what is written: asked without a trace."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.stores.sqlite.queue.heartbeats import SqliteHeartbeats
from tests.conftest import Run


@pytest.fixture
def heartbeats(path: Path, run: Run) -> Iterator[SqliteHeartbeats]:
    run(SqliteStore(path).schema.install())
    heartbeats = SqliteStore(path).heartbeats()
    yield heartbeats
    run(heartbeats.close())


def test_a_write_probe_wakes_no_worker_and_changes_nothing(heartbeats: SqliteHeartbeats, path: Path, run: Run) -> None:
    pragmas = ("data_version", "schema_version", "page_count")
    with closing(sqlite3.connect(path)) as other:
        run(heartbeats.check_writable())
        seen = [other.execute(f"PRAGMA {what}").fetchone() for what in pragmas]
        for _ in range(3):
            run(heartbeats.check_writable())
        assert [other.execute(f"PRAGMA {what}").fetchone() for what in pragmas] == seen
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_open_transaction_of_another_program_is_not_a_refusal(
    heartbeats: SqliteHeartbeats, path: Path, run: Run
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        run(heartbeats.check_writable())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can fill a disk for one process")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_full_disk_is_detected_in_every_journal_mode(journal: str, tmp_path: Path) -> None:
    program = f"""
import resource, sqlite3
from types import SimpleNamespace
from pathlib import Path
from stowhand.stores.database.sqlite_connection import SqliteConnection
from stowhand.stores.database.sqlite_connection import WriteProbe
from stowhand.errors import StoreUnreachable

path = Path({str(tmp_path / "own.db")!r})
sqlite3.connect(path).execute("PRAGMA journal_mode = {journal}")
def dial():
    return sqlite3.connect(path, isolation_level=None)

probe = WriteProbe(SqliteConnection(path, dial, lambda raw: SimpleNamespace(raw=raw)))
probe.look()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    probe.look()
except StoreUnreachable:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    probe.look()
    print("refused, and well again")
"""
    message = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert message.stdout == "refused, and well again\n", message.stderr
