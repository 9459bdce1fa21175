"""What docs/how-to/scale.md says of autoscaling and sizing holds: the query, the object of KEDA, and the figures."""

from __future__ import annotations

import json
import re
import subprocess
from statistics import median

import psycopg
import pytest
import yaml

from stowhand import App, Context
from stowhand.cli.doctor import PARENT_CONNECTIONS
from stowhand.protocols.store import RESERVED_CONNECTIONS
from tests.conftest import Run
from tests.docs.pages import DOCS, ROOT, environment

PAGE = (DOCS / "how-to" / "scale.md").read_text()
(QUERY,) = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(OBJECT,) = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
DEPLOYED = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))
RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text())


def test_the_query_is_the_metric_of_the_same_number(postgres_url: str, run: Run) -> None:
    app = App(postgres_url)

    @app.task(max_attempts=3, backoff=lambda attempt: 0 if attempt == 1 else 3600)
    async def fail(times: int) -> None:
        raise ValueError(times)

    @app.task
    async def watch(ctx: Context) -> tuple[int, float]:
        return counted(), await metric()

    def counted() -> int:
        with psycopg.connect(postgres_url) as connection:
            ((number,),) = connection.execute(QUERY.encode()).fetchall()
        return int(number)

    async def metric() -> float:
        store = await app.open()
        (queue,) = [one for one in (await store.inspect.figures()).queues if one.name == "default"]
        return float(queue.due.number + queue.processing.number)

    async def scenario() -> list[tuple[int, float]]:
        await fail.options(serial="a").enqueue(1)
        await app.worker(once=True, concurrency=1).run()  # errored, and due in an hour
        await fail.options(delay="1h").enqueue(1)
        await fail.options(queue="bulk").enqueue(1)
        await fail.options(max_attempts=1).enqueue(1)
        await app.worker(once=True, concurrency=1, queues=["default"]).run()  # failed
        await fail.enqueue_many([{"times": number} for number in range(7)])
        await fail.options(serial="b").enqueue(1)
        waiting = (counted(), await metric())
        running = await watch.options(priority=-1).enqueue()
        await app.worker(once=True, concurrency=1, tasks=["watch"]).run()
        during = await running.result(timeout=30)
        await app.pause_queue("default")
        return [waiting, during, (counted(), 0)]

    async def opened() -> list[tuple[int, float]]:
        await app.open(install=True)
        try:
            return await scenario()
        finally:
            await app.close()

    assert run(opened()) == [(8, 8), (9, 9), (0, 0)]


@pytest.mark.parametrize(
    ("command", "code"), [("jobs list", 0), ("jobs explain 1", 0), ("stats", 0), ("enqueue hello {}", 3)]
)
def test_reads_work_where_nothing_can_be_written_as_on_a_standby(postgres_url: str, command: str, code: int) -> None:
    app = App(postgres_url)
    app.sync.install()
    app.sync.add_job("hello", {})
    app.sync.close()
    mark = "&" if "?" in postgres_url else "?"
    read_only = f"{postgres_url}{mark}options=-c%20default_transaction_read_only%3Don"
    words = ["stowhand", *command.split(), "-c", read_only]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert ("It is a standby, or read-only" in done.stderr) is (code != 0)


def test_the_scaled_object_runs_the_query_for_the_deployment() -> None:
    (trigger,) = OBJECT["spec"]["triggers"]
    assert trigger["metadata"]["query"].split() == QUERY.split()
    (worker,) = [one for one in DEPLOYED if one["kind"] == "Deployment"]
    assert OBJECT["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert trigger["metadata"]["connectionFromEnv"] in environment
    assert trigger["metadata"]["targetQueryValue"] == environment["STOWHAND_CONCURRENCY"]


def test_the_formula_of_connections_is_that_of_the_doctor() -> None:
    formula = f"processes × (jobs + {RESERVED_CONNECTIONS}) + {PARENT_CONNECTIONS}"
    assert formula in PAGE
    example = re.search(r"= (\d+)\. `stowhand doctor`", PAGE)
    assert example is not None
    assert int(example[1]) == 3 * (4 * (8 + RESERVED_CONNECTIONS) + PARENT_CONNECTIONS)


@pytest.mark.parametrize(
    ("run_name", "figure", "contender", "shown"),
    [
        ("queues", "drain, 1 process, jobs/s", "stowhand", "48,000 jobs a second"),
        ("queues", "drain, 1 process, jobs/s", "stowhand, history kept", "40,000 with history"),
        ("queues", "drain, 1 process, processor time of the workers, us a job", "stowhand", "14 µs and"),
        ("queues", "drain, 1 process, processor time of the server, us a job", "stowhand", "16 µs"),
        ("serial", "serial: jobs/s", "1 queue, 1 process, 4 at once", "740 jobs a second"),
        ("enqueue", "enqueue: jobs/s", "callers 1", "2,100 a second"),
        ("enqueue", "enqueue: jobs/s", "callers 50", "28,000 for fifty"),
        ("costs", "whole life: WAL, bytes a job", "stowhand", "1,200 bytes"),
        ("costs", "whole life: WAL, bytes a job", "stowhand, history kept", "1,500 with history"),
        ("idle", "memory of an idle worker, MB", "stowhand", "47 MB"),
        ("idle", "transactions of an idle worker, per minute", "stowhand", "8 transactions"),
    ],
)
def test_a_figure_is_near_the_measured_one(run_name: str, figure: str, contender: str, shown: str) -> None:
    assert shown in PAGE
    written = float(re.sub(r"[^\d]", "", shown.partition(" ")[0]))
    measured = median(RESULTS[run_name]["figures"][figure][contender])
    assert 0.6 < written / measured < 1.6
