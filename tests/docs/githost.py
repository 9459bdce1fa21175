"""The git host of examples/githost in the hands of a test: its repositories, clones, hooks and workers."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg

from stowhand import App
from tests.docs.pages import ROOT, environment
from tests.support import subprocesses

GITHOST = ROOT / "examples" / "githost"
PATIENCE = 30.0
AUTHOR = {f"GIT_{who}_{what}": "ada@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Clone:
    """A working copy, and what git prints in it."""

    def __init__(self, folder: Path, repository: Path, environ: dict[str, str]) -> None:
        self.folder, self._environ = folder, environ
        folder.mkdir()
        self("init", "--quiet", "--initial-branch=main")
        self("remote", "add", "origin", str(repository))

    def __call__(self, *words: str) -> str:
        return self._run(words, {}).stdout.strip()

    def commit(self, *subjects: str) -> str:
        """The last one's id."""
        for subject in subjects:
            self("commit", "--quiet", "--allow-empty", "--message", subject)
        return self("rev-parse", "HEAD")

    def push(self, *words: str, **environ: str) -> str:
        """What the hook said. The push itself has succeeded."""
        done = self._run(("push", "--quiet", "origin", *words), environ)
        return " ".join(re.findall(r"^remote: (.*?)\s*$", done.stderr, re.MULTILINE))

    def _run(self, words: tuple[str, ...], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        done = subprocesses.run(
            ["git", *words], cwd=self.folder, env=self._environ | environ, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done


class Host:
    """The example's own code, on a database and a folder of the test's."""

    def __init__(self, url: str, folder: Path, connection: psycopg.Connection[Any]) -> None:
        self.url, self.folder, self.connection = url, folder, connection
        self.environ = environment() | AUTHOR
        self.environ |= {"DATABASE_URL": url, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        self.app: App = runpy.run_path(str(GITHOST / "jobs.py"))["app"]
        self._workers: list[subprocess.Popen[bytes]] = []

    def repository(self, name: str) -> Path:
        module = runpy.run_path(str(GITHOST / "repositories.py"))
        path: Path = module["add"](self.connection, self.folder, name)
        return path

    def clone(self, repository: Path, name: str) -> Clone:
        return Clone(self.folder / name, repository, self.environ)

    def add(self, task: str, payload: str = "{}") -> None:
        self.connection.execute("SELECT stowhand.add_job(%s, %s::json, max_attempts := 5)", [task, payload])

    def work(self, *options: str) -> subprocess.Popen[bytes]:
        command = [
            subprocesses.PYTHON,
            "-m",
            "stowhand",
            "worker",
            "--app",
            "jobs:app",
            "--preset",
            "service",
            *options,
        ]
        with (self.folder / "worker.log").open("ab") as log:
            worker = subprocesses.Popen(command, cwd=GITHOST, env=self.environ, stdout=log, stderr=log)
        self._workers.append(worker)
        return worker

    def work_off(self) -> None:
        """Everything that is due, by a worker in this process."""

        async def go() -> None:
            async with self.app:
                await self.app.worker(once=True).run()

        asyncio.run(asyncio.wait_for(go(), PATIENCE))

    def said(self) -> str:
        """By the workers."""
        return (self.folder / "worker.log").read_text()

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(question.encode()).fetchall()

    def events(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT repository, ref, old, new FROM githost.push_events ORDER BY id")

    def commits(self, repository: int) -> set[str]:
        return {row[0] for row in self.rows(f"SELECT id FROM githost.commits WHERE repository = {repository}")}

    def wait_until(self, question: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.rows(f"SELECT {question}") != [(True,)]:
            assert time.monotonic() < deadline, f"waited in vain for: {question}\n{self.said()}"
            time.sleep(0.02)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


def install(url: str) -> None:
    """The queue, and the host's own tables."""
    app = App(url)
    app.sync.install()
    app.sync.close()
    with psycopg.connect(url) as connection:
        connection.execute((GITHOST / "schema.sql").read_bytes())
