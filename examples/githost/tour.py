"""The tour: two repositories, real pushes, a worker; and a push while the database is away.

DATABASE_URL=postgresql:///githost python examples/githost/tour.py
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
from repositories import add
from server import database

HERE = Path(__file__).parent
STOWHAND = [sys.executable, "-m", "stowhand"]
NOWHERE = "postgresql://localhost:1/nowhere"
PATIENCE = 30.0
AUTHOR = {f"GIT_{who}_{what}": "ada@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
NOBODYS_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""What this machine's user has told git is not of interest here."""
OURS = """
CREATE TEMP TABLE earlier AS SELECT id FROM stowhand.jobs;
CREATE TEMP VIEW our_jobs AS SELECT * FROM stowhand.jobs
  WHERE task_identifier ~ '^(push|repo):' AND id NOT IN (SELECT id FROM earlier);
"""
"""Nor are jobs of other programs on that server, or of a tour that was broken off."""


def main() -> None:
    with database() as url, tempfile.TemporaryDirectory(prefix="githost-") as folder:
        os.environ |= {"DATABASE_URL": url, **AUTHOR, **NOBODYS_SETTINGS}
        subprocess.run([*STOWHAND, "migrate"], check=True, stdout=subprocess.DEVNULL)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute((HERE / "schema.sql").read_bytes())
            connection.execute(OURS)
            tour(connection, Path(folder))


def tour(connection: psycopg.Connection[Any], folder: Path) -> None:
    say("two bare repositories with a post-receive hook, and a clone of each")
    attic, cellar = (clone(add(connection, folder, name), folder / name) for name in ("attic", "cellar"))
    print(*sorted(path.name for path in folder.iterdir()))

    say("pushes while no worker runs: each ref is an event and a job")
    commit(attic, "lamp", "chair")
    push(attic, "main", "main:refs/tags/first")
    commit(cellar, "wine")
    push(cellar, "main", "main:shelf")
    show(connection, "SELECT count(*), 'pushes', count(processed_at), 'processed' FROM githost.push_events")
    show(connection, "SELECT task_identifier, count(*) FROM our_jobs GROUP BY 1 ORDER BY 1")

    say("a worker: stowhand worker jobs:app --preset service")
    with worker():
        settled(connection, "wine")
        report(connection)

        say("a forced push and a removed branch, while it sleeps: the hook wakes it")
        git(attic, "reset", "--quiet", "--hard", "HEAD~1")
        commit(attic, "table")
        push(attic, "--force", "main")
        push(cellar, "--delete", "shelf")
        settled(connection, "table")
        report(connection)

        say("a push while the database is away: git says so, and nobody waits")
        commit(cellar, "beer")
        push(cellar, "main", DATABASE_URL=NOWHERE)

        say("stowhand enqueue push:sweep (by itself it comes every five minutes)")
        subprocess.run([*STOWHAND, "enqueue", "push:sweep"], check=True, stdout=subprocess.DEVNULL)
        settled(connection, "beer")
        report(connection)


def say(what: str) -> None:
    print(f"== {what}", flush=True)


def git(clone: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(clone), *words], check=True)


def clone(repository: Path, to: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(to)], check=True)
    git(to, "remote", "add", "origin", str(repository))
    return to


def commit(clone: Path, *subjects: str) -> None:
    for subject in subjects:
        (clone / subject).write_text(f"{subject}\n" * 1000)
        git(clone, "add", subject)
        git(clone, "commit", "--quiet", "-m", subject)


def push(clone: Path, *words: str, **environ: str) -> None:
    """git tells of the refs on stderr; what the hook says comes with it, as "remote: …"."""
    done = subprocess.run(
        ["git", "-C", str(clone), "push", "origin", *words],
        env=os.environ | environ,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    print(*(line.rstrip() for line in done.stderr.splitlines() if not line.startswith("To ")), sep="\n", flush=True)


@contextmanager
def worker() -> Iterator[None]:
    """A worker for as long as the block lasts; at the end it is asked to stop."""
    process = subprocess.Popen([*STOWHAND, "worker", "--app", "jobs:app", "--preset", "service"], cwd=HERE)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def settled(connection: psycopg.Connection[Any], subject: str) -> None:
    """Until such a commit is known, all pushes are processed, and nothing is left to do."""
    question = (
        "SELECT EXISTS (SELECT FROM githost.commits WHERE subject = %s)"
        " AND NOT EXISTS (SELECT FROM githost.push_events WHERE processed_at IS NULL)"
        " AND NOT EXISTS (SELECT FROM our_jobs)"
    )
    deadline = time.monotonic() + PATIENCE
    while connection.execute(question, [subject]).fetchone() != (True,):
        if time.monotonic() > deadline:
            sys.exit("waited in vain for the worker")
        time.sleep(0.02)


def report(connection: psycopg.Connection[Any]) -> None:
    show(
        connection,
        "SELECT name, string_agg(subject, ', ' ORDER BY subject), size_kib, 'KiB'"
        " FROM githost.repositories LEFT JOIN githost.commits ON repository = repositories.id"
        " GROUP BY repositories.id ORDER BY name",
    )


def show(connection: psycopg.Connection[Any], question: str) -> None:
    for row in connection.execute(question.encode()).fetchall():
        print(*row, flush=True)


if __name__ == "__main__":
    main()
