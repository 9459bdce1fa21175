"""The tour: uploads are added, canceled, indexed; a worker is killed on the way, and nothing is lost.

python examples/uploads/run.py [FOLDER …]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from server import database
from symbols import python_files, read_symbols
from worker import BUDGET

HERE = Path(__file__).parent
STANDARD_LIBRARY = Path(os.__file__).parent
FOLDERS = [STANDARD_LIBRARY / name for name in ("asyncio", "email", "http", "importlib", "json", "logging", "xml")]
PATIENCE = 60.0


def main(folders: list[Path]) -> None:
    with database() as url, tempfile.TemporaryDirectory() as spare, psycopg.connect(url, autocommit=True) as connection:
        broken = Path(spare) / "broken"
        broken.mkdir()
        (broken / "fine.py").write_text("def fine(): ...\n")
        (broken / "oops.py").write_text("def oops(:\n")
        connection.execute((HERE / "schema.sql").read_bytes())
        for folder in (*folders, broken, STANDARD_LIBRARY / "ctypes"):
            add(connection, folder)
        tour(connection, url, folders)


def add(connection: psycopg.Connection, folder: Path) -> None:
    """Enqueueing is an INSERT of the application's."""
    size = sum(file.stat().st_size for file in python_files(str(folder)))
    if size > BUDGET:
        sys.exit(f"{folder}: {size} bytes of Python, and the budget is {BUDGET}")
    connection.execute("INSERT INTO uploads_example.uploads (folder, size) VALUES (%s, %s)", [str(folder), size])


def tour(connection: psycopg.Connection, url: str, folders: list[Path]) -> None:
    say("cancel one that waits: UPDATE … SET cancel = true")
    connection.execute("UPDATE uploads_example.uploads SET cancel = true WHERE folder LIKE '%/ctypes'")

    say("a worker begins, and dies by kill -9")
    with worker(url, pause=0.3) as victim:
        wait_until(connection, victim, "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'INSERT%symbols%'")
        victim.kill()
    held = one(connection, "SELECT count(*) FROM uploads_example.uploads WHERE state = 'processing'")
    seen = one(connection, "SELECT count(*) FROM uploads_example.symbols")
    print(f"{held} uploads are still in processing, and {seen} symbols are there")

    say("another worker begins; its resetter takes back what the dead one held")
    with worker(url) as second:
        live = "SELECT count(*) FROM uploads_example.uploads WHERE state IN ('queued', 'processing', 'errored')"
        wait_until(connection, second, f"SELECT ({live}) = 0")
        second.terminate()
        print(second.communicate()[0].splitlines()[-1])
    print(one(connection, "SELECT count(*) FROM uploads_example.uploads WHERE num_resets > 0"), "were taken back")

    say("what became of them")
    report(connection, folders)

    say("stowhand table logs ID: of the one that failed")
    show_logs(url, one(connection, "SELECT id FROM uploads_example.uploads WHERE state = 'failed'"))


def say(what: str) -> None:
    print(f"== {what}", flush=True)


def report(connection: psycopg.Connection, folders: list[Path]) -> None:
    """What became of each, and whether it is what a direct walk finds."""
    rows = connection.execute(
        "SELECT folder, state, count(symbols), split_part(coalesce(failure_message, ''), E'\\n', 1)"
        " FROM uploads_example.uploads LEFT JOIN uploads_example.symbols ON upload_id = id GROUP BY id ORDER BY id"
    ).fetchall()
    expected = {
        str(folder): sum(len(read_symbols(file, str(folder))) for file in python_files(str(folder)))
        for folder in folders
    }
    for folder, state, symbols, message in rows:
        right = symbols == expected.get(folder, 0)
        print(
            f"{Path(folder).name:<10} {state:<10} {symbols:>5} symbols{'' if right else ', WRONG'}  {message}".rstrip()
        )


def show_logs(url: str, upload: int) -> None:
    subprocess.run(
        [sys.executable, "-m", "stowhand", "table", "logs", str(upload), "worker:store"],
        cwd=HERE,
        env=os.environ | {"DATABASE_URL": url},
        check=True,
    )


@contextmanager
def worker(url: str, pause: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A worker process, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, HERE / "worker.py"],
        env=os.environ | {"DATABASE_URL": url, "PAUSE": str(pause)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(connection: psycopg.Connection, process: subprocess.Popen[str], question: str) -> None:
    """Until the database says yes, unless the worker has ended."""
    deadline = time.monotonic() + PATIENCE
    while not one(connection, question):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit(f"{process.communicate()[0]}\nwaited in vain for: {question}")
        time.sleep(0.02)


def one(connection: psycopg.Connection, question: str) -> Any:
    """The one value of the one row."""
    row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


if __name__ == "__main__":
    main([Path(word).resolve() for word in sys.argv[1:]] or FOLDERS)
