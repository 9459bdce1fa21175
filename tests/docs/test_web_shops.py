"""The shops of examples/ with FastAPI, Starlette and Flask, by real HTTP on the servers that people run them with."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from werkzeug.serving import make_server

from stowhand import App
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
    message = (folder / "server.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in words)],
        cwd=folder,
        env=environment() | {"DATABASE_URL": url, "HOME": str(folder)} | environ,
        stdout=message,
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            until(lambda: answers(client) or process.poll() is not None)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        message.seek(0)
        output = message.read()
        message.close()
        sys.stdout.write(output)
    assert "Traceback" not in output


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (result := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.rare), "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


def loaded(module: str, shop: str, url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a shop, in this process."""
    folder = ROOT / "examples" / shop
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("SHOP_TOKEN", "hush")
    monkeypatch.syspath_prepend(folder)
    return import_module(module)


@contextmanager
def with_uvicorn(application: Any) -> Iterator[httpx.Client]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning"))
    with (
        in_a_thread(server.run, lambda: setattr(server, "should_exit", True)),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        until(lambda: answers(client))
        yield client


@contextmanager
def in_a_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    thread = Thread(target=run, name="server")
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(PATIENCE)


def test_the_fastapi_shop_works_with_health_and_dashboard(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with with_uvicorn(loaded("web", "fastapi_shop", url, monkeypatch).web) as client:
        assert client.post("/orders", params={"item": "sold out"}).status_code == 409
        instance = client.post("/orders", params={"item": "a lamp"}).json()
        confirmed = {"item": "a lamp", "state": "confirmed"}
        until(lambda: client.get(f"/orders/{instance['order']}").json() == confirmed)
        assert client.get("/healthz").json() == {"works": True}
        assert client.get("/jobs-admin/").status_code == 403
        sign_in(client)
        completed = {"state": "completed"}  # recorded after what the task has committed itself
        until(lambda: "confirm" in client.get("/jobs-admin/jobs", params=completed).text)


def sign_in(client: httpx.Client) -> None:
    """As a browser does: by the form that the application shows."""
    assert 'name="token"' in client.get("/login").text
    assert client.post("/login", data={"token": "guessed"}).status_code == 403
    assert client.get("/jobs-admin/").status_code == 403
    signed_in = client.post("/login", data={"token": "hush"})
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/jobs-admin/")


def test_the_starlette_shop_works_with_health_and_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with with_uvicorn(loaded("shop", "starlette_shop", url, monkeypatch).web) as client:
        assert client.post("/orders").status_code == 422
        assert client.post("/orders", params={"item": "sold out"}).status_code == 409
        instance = client.post("/orders", params={"item": "a lamp"}).json()
        assert instance["order"] == 1, "the order that was refused has left nothing"
        confirmed = {"item": "a lamp", "state": "confirmed"}
        until(lambda: client.get("/orders/1").json() == confirmed)
        assert client.get("/jobs-admin/").status_code == 403
        shown = client.get("/jobs-admin/", headers={"authorization": "Bearer hush"})
        assert (shown.status_code, "Overview" in shown.text) == (200, True)


def test_the_flask_shop_takes_orders_and_a_worker_confirms_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = loaded("shop", "flask_shop", f"sqlite:///{tmp_path}/shop.db", monkeypatch)
    server = make_server("127.0.0.1", 0, shop.web, threaded=True)
    with (
        in_a_thread(server.serve_forever, server.shutdown),
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client,
    ):
        assert client.post("/orders", data={"item": "sold out"}).status_code == 409
        first, second, gone = (place(client, item)["job"] for item in ("a lamp", "a book", "a vase"))
        shop.app.sync.remove_jobs([gone])
        assert client.get("/jobs-admin/").status_code == 403
        sign_in(client)
        overview = client.get("/jobs-admin/")
        assert (overview.status_code, overview.headers["refresh"]) == (200, "5")
        assert "data-region" not in overview.text, "its script would ask for a stream"
        assert client.get("/jobs-admin/", headers={"accept": "text/event-stream"}).status_code == 204
        (style,) = re.findall(r'href="(/jobs-admin/[^"]*board\.css[^"]*)"', overview.text)
        assert client.get(style).headers["content-type"] == "text/css; charset=utf-8"
        page = client.get("/jobs-admin/job", params={"id": second})
        assert "refresh" not in page.headers, "what is typed there would be gone"
        (token,) = set(re.findall(r'name="token" value="([0-9a-f]+)"', page.text))
        form = {"action": "cancel", "id": second, "token": token}
        assert client.post("/jobs-admin/act", data=form | {"token": "0" * 64}).status_code == 403
        assert client.post("/jobs-admin/act", data=form).status_code == 303
        assert client.post("/jobs-admin/act", content=b"x" * (5 << 20)).status_code == 413
        asyncio.run(work(shop.app))
        states = [client.get(f"/jobs/{job}").json()["state"] for job in (first, second)]
        assert states == ["completed", "canceled"]
        assert "confirmed a lamp" in client.get("/jobs-admin/job", params={"id": first}).text
        assert [client.get(f"/jobs/{job}").status_code for job in (gone, 77)] == [404, 404]
    server.server_close()
    shop.app.sync.close()
    shop.engine.dispose()


async def work(app: App) -> None:
    """What is due, by a worker in this process."""
    async with app:
        await app.worker(once=True).run()


def test_gunicorn_workers_do_not_share_the_parents_connections(postgres_url: str, tmp_path: Path) -> None:
    folder = str(ROOT / "examples" / "flask_shop")
    words = ["gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:PORT", "--pythonpath", folder, "shop:web"]
    with serving(words, tmp_path, postgres_url) as client, psycopg.connect(postgres_url) as observer:
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
            result = client.get(f"/jobs/{job}").json()
            assert result["state"] == "queued"
            assert result["process"] in processes
        observer.rollback()
        assert observer.execute(FIRST).fetchall() == [first], "a child has ended a session of its parent"


def place(client: httpx.Client, item: str) -> dict[str, int]:
    answer = client.post("/orders", data={"item": item})
    assert answer.status_code == 200, answer.text
    placed: dict[str, int] = answer.json()
    return placed
