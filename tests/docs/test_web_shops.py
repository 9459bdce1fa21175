"""The shops of examples/fastapi_shop and examples/flask_shop, by real HTTP on the servers that people run them with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.docs.pages import ROOT, environment
from tests.support.valkey import free_port

PATIENCE = 60.0
FIRST = """
    SELECT pid, application_name FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY backend_start LIMIT 1
"""
"""The session that was there before the fork."""


@contextmanager
def serving(words: list[str], folder: Path, url: str, **environ: str) -> Iterator[httpx.Client]:
    """``PORT`` in the words is a free one. The server answers, and ends without complaint."""
    port = free_port()
    told = (folder / "server.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in words)],
        cwd=folder,
        env=environment() | {"DATABASE_URL": url, "HOME": str(folder)} | environ,
        stdout=told,
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            until(lambda: answers(client) or process.poll() is not None)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        told.seek(0)
        said = told.read()
        told.close()
        sys.stdout.write(said)
    assert "Traceback" not in said


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.rare), "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


def test_the_fastapi_shop_works_answers_for_its_health_and_shows_its_jobs(url: str, tmp_path: Path) -> None:
    words = ["uvicorn", "--app-dir", str(ROOT / "examples" / "fastapi_shop"), "--port", "PORT", "web:web"]
    with serving(words, tmp_path, url, SHOP_TOKEN="hush") as client:
        assert client.post("/orders", params={"item": "sold out"}).status_code == 409
        made = client.post("/orders", params={"item": "a lamp"}).json()
        confirmed = {"item": "a lamp", "state": "confirmed"}
        until(lambda: client.get(f"/orders/{made['order']}").json() == confirmed)
        assert client.get("/healthz").json() == {"works": True}
        assert client.get("/jobs-admin/").status_code == 403
        known = {"authorization": "Bearer hush"}
        completed = {"state": "completed"}  # recorded after what the task has committed itself
        until(lambda: "confirm" in client.get("/jobs-admin/jobs", params=completed, headers=known).text)


def test_workers_of_gunicorn_share_no_connection_with_the_process_that_has_loaded_the_shop(
    postgres_url: str, tmp_path: Path
) -> None:
    words = ["gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:PORT", "shop:web"]
    folder = str(ROOT / "examples" / "flask_shop")
    with serving(words, tmp_path, postgres_url, PYTHONPATH=folder) as client, psycopg.connect(postgres_url) as observer:
        (first,) = observer.execute(FIRST).fetchall()
        assert client.post("/orders", data={"item": "sold out"}).status_code == 409
        processes: dict[int, list[int]] = {}

        def both_have_placed_orders() -> bool:
            for answer in at_once.map(lambda item: place(client, item), ["a lamp", "a book", "a chair", "a vase"]):
                processes.setdefault(answer["process"], []).append(answer["job"])
            return len(processes) == 2 and min(map(len, processes.values())) > 2

        with ThreadPoolExecutor(4) as at_once:
            until(both_have_placed_orders)
        ids = [job for jobs in processes.values() for job in jobs]
        assert len(set(ids)) == len(ids)
        for job in ids:
            found = client.get(f"/jobs/{job}").json()
            assert found["state"] == "queued"
            assert found["process"] in processes
        observer.rollback()
        assert observer.execute(FIRST).fetchall() == [first], "a child has ended a session of its parent"


def place(client: httpx.Client, item: str) -> dict[str, int]:
    answer = client.post("/orders", data={"item": item})
    assert answer.status_code == 200, answer.text
    placed: dict[str, int] = answer.json()
    return placed
