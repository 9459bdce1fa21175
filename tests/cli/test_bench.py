"""``stowhand bench`` on each store measures everything and leaves nothing behind. Its figures are not tested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import psycopg
import pytest

from stowhand.cli.bench import Measurement
from tests.support import subprocesses

COMMAND = [sys.executable, "-m", "stowhand.cli", "bench"]
MEASURES = [
    "start and stop of a worker with nothing to do",
    "enqueue, one by one",
    "enqueue, 300 in one call",
    "run 600, with the start of 2 worker(s)",
    "enqueue to start on an idle queue, p50",
    "enqueue to start on an idle queue, p99",
]


def test_the_bench_measures_postgres_and_leaves_nothing(postgres_url: str, tmp_path: Path) -> None:
    rows = _bench(postgres_url, tmp_path)
    assert [row.measure for row in rows] == MEASURES
    assert all(row.value for row in rows)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select to_regnamespace('stowhand_bench')").fetchone() == (None,)


def test_the_bench_measures_sqlite_and_leaves_nothing(tmp_path: Path) -> None:
    rows = _bench(f"sqlite:///{tmp_path}/mine.db", tmp_path)
    assert [row.measure for row in rows] == MEASURES
    assert all(row.value for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_the_existing_file_is_not_touched(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    mine.write_bytes(b"not even a database")
    _bench(f"sqlite:///{mine}", tmp_path)
    assert mine.read_bytes() == b"not even a database"


def test_without_json_there_is_a_table(tmp_path: Path) -> None:
    done = _run(f"sqlite:///{tmp_path}/mine.db", tmp_path, "--jobs", "10")
    assert "enqueue, one by one" in done.stdout
    assert "jobs/s" in done.stdout


def heed() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.timeout(300)
def test_an_interrupted_bench_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    options = ["--json", "--jobs", "50000"]  # enough to be interrupted in
    command = [*COMMAND, "-c", f"sqlite:///{tmp_path}/mine.db", *options]
    # A suite that a shell has put into the background ignores SIGINT, and so would what it starts.
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as bench:
        assert bench.stdout is not None
        while "in one call" not in bench.stdout.readline():
            pass
        workers = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(signal.SIGINT)
        assert bench.wait(100) == 130
    assert not [worker for worker in workers if worker.is_running()]
    assert list(tmp_path.iterdir()) == []


def _bench(url: str, folder: Path, *options: str) -> list[Measurement]:
    done = _run(url, folder, "--json", "--jobs", "300", "--processes", "2", *options)
    return [msgspec.json.decode(line, type=Measurement) for line in done.stdout.splitlines()]


def _run(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["python", *COMMAND[1:], "-c", url, *options],
        cwd=folder,
        env=os.environ | {"PATH": f"{subprocesses.programs()}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
