"""What a job is copied as enqueues one like it: each text is run where it belongs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from stowhand import App, Job, NewJob, State
from stowhand.jobs import job_copies
from stowhand.jobs.task_limits import TaskDeclarations
from stowhand.protocols.operator import WorkerDescription, WorkerList
from tests.support import subprocesses

PAYLOADS = {
    "quotes": """{"a": "it's \\"quoted\\" \\\\ and $HOME `id` %s {x} \\n"}""",
    "unicode": '{"ä€𝒳": "\u202egnp.exe", "e": "é\\u00e9"}',
    "nested": '{"big": 18446744073709551617, "f": 1.50, "list": [[], {}, null, true, [1, {"a": "--"}]]}',
    "a dash": "-1",
}


def job(payload: str, **more: Any) -> Job:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {"task": 'o\'b/r.i "en"', "serial": "-q'", "priority": -3, "max_attempts": 7} | more
    return Job(
        id=1, payload_text=payload, state=State.FAILED, run_at=at, attempts=0, created_at=at,
        **options,
    )  # fmt: skip


JOBS = [job(payload, key=f"k'$1\\ {name}") for name, payload in PAYLOADS.items()] + [
    job("{}", task="--plain", serial=None, priority=0),
    job("{}", task="--plain", queue="-q'", serial=None),
]
DECLARED = TaskDeclarations({one.task: "declared" for one in JOBS})
"""The queue of each task, as a worker has declared it: a copy of a job of another queue stays in that."""
WORKER = WorkerDescription("w1", "host", 1, "1", tuple(DECLARED.queues), 4)
FLAGS = ("red's", "-b")


def told(found: Job) -> tuple[object, ...]:
    text, numbers = (found.task, found.payload_text, found.queue), (found.priority, found.max_attempts)
    return (*text, *numbers, found.serial, found.key, found.flags)


def wanted(one: Job) -> tuple[object, ...]:
    return (*told(one)[:-1], FLAGS)


def newest(app: App) -> Job:
    result = app.sync.search().jobs[0]
    whole = app.sync.get(result.id)
    assert whole is not None
    return whole


def installed(url: str) -> App:
    app = App(url)
    app.sync.install()

    async def declare() -> None:
        async with App(url) as another:
            heartbeats = (await another.open()).heartbeats()
            assert isinstance(heartbeats, WorkerList)
            await heartbeats.worker_seen(WORKER, DECLARED)
            await heartbeats.close()

    asyncio.run(declare())
    return app


def test_the_copied_command_enqueues_the_job(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    environ = {**os.environ, "PATH": f"{subprocesses.programs()}:{os.environ['PATH']}", "STOWHAND_CONNECTION": url}
    app = installed(url)
    try:
        script = "\n".join(job_copies.command(one, one.payload_text, FLAGS) for one in JOBS)
        done = subprocesses.run(
            ["sh", "-ec", script], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        rows = [app.sync.get(int(line)) for line in done.stdout.split()]
        assert [one and told(one) for one in rows] == [wanted(one) for one in JOBS]
    finally:
        app.sync.close()


def test_the_copied_sql_enqueues_the_job(postgres_url: str) -> None:
    app = installed(postgres_url)
    try:
        for one in JOBS:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(job_copies.sql(one, one.payload_text, FLAGS).encode())
            assert told(newest(app)) == wanted(one)
            app.sync.remove(newest(app).id)
    finally:
        app.sync.close()


def test_a_copy_does_not_replace_the_job_with_the_key(tmp_path: Path) -> None:
    """By its key it would change that job: at once due, with `***` for what is hidden."""
    app = installed(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def scenario() -> None:
        async with app:
            store = await app.open()
            waits = await app.enqueue(NewJob(task="t", payload='{"password":"hush"}', key="k", delay=3600.0))
            fails = await app.enqueue(NewJob(task="t", payload='{"password":"hush"}', key="f"))
            await store.admin.permanently_fail_jobs([fails.id])
            for one in (waits, fails):
                before = await store.jobs.get(one.id)
                assert before is not None
                text = job_copies.copies(before, '{"password":"***"}', (), None)["python"]
                code = compile(text, "copied", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                await types.FunctionType(code, {"app": app})()
                assert await store.jobs.get(one.id) == before
            await store.admin.complete_jobs([waits.id])
            over = await store.jobs.get(waits.id)
            assert over is not None
            assert "--key=k " in job_copies.copies(over, "{}", (), None)["command"]

    asyncio.run(scenario())


def test_the_schema_is_quoted_in_sql() -> None:
    for schema, quoted in {'My"schema': '"My""schema"', "user": '"user"', "stowhand": "stowhand"}.items():
        assert job_copies.sql(JOBS[-1], "{}", (), schema).startswith(f"select id from {quoted}.add_job('--plain'")


def test_the_copied_python_enqueues_the_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
            for one in JOBS:
                names: dict[str, Any] = {"app": app}
                code = compile(
                    job_copies.python(one, one.payload_text, FLAGS), "copied", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                )
                running = types.FunctionType(code, names)()
                if inspect.isawaitable(running):
                    await running
                store = await app.open()
                (found,) = (await store.inspect.search()).jobs[:1]
                whole = await store.jobs.get(found.id)
                assert whole is not None
                assert told(whole) == wanted(one)
                await store.admin.remove(found.id)

    installed(f"sqlite:///{tmp_path / 'jobs.db'}").sync.close()
    asyncio.run(scenario())


def test_the_copied_test_runs_the_job_and_fails_with_its_error(tmp_path: Path) -> None:
    one = job(PAYLOADS["nested"])
    (tmp_path / "shop.py").write_text(
        "import stowhand\napp = stowhand.App()\n"
        f"@app.task(name={one.task!r})\nasync def taken(big, f, list): assert big == 18446744073709551617, 'another'\n"
        "@app.task\nasync def raises(): raise ValueError('from the task')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nstowhand_app = shop:app\npythonpath = .\n")
    for number, copied in enumerate((one, job("{}", task="raises"), job("{}", task="elsewhere"))):
        (tmp_path / f"test_{number}.py").write_text(job_copies.pytest_file(copied, copied.payload_text, FLAGS))
    done = subprocesses.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "2 failed" in done.stdout
    assert "ValueError: from the task" in done.stdout
    assert "the App has no such task" in done.stdout
