"""A parent of a flow and its children, on each engine, in one run: python benchmarks/children.py --help

The job is created, fans out, its children are executed, and it ends: one process, no result of a child but its number,
which is left apart. Seconds, for each number of children; the figure for each child should not grow.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import click

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from stowhand.events import Events  # noqa: E402
from stowhand.flows import Flow, FlowJob, Queue  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402
from tests.support.valkey import RedisServer, find_redis  # noqa: E402

ENGINES = ("sqlite", "postgres", "redis")


@click.command()
@click.option("--engines", default=",".join(ENGINES), show_default=True, help="Separated by commas.")
@click.option("--children", default="1000,10000,100000", show_default=True, help="Numbers, separated by commas.")
@click.option("--slots", default=50, show_default=True, help="Children at once.")
def main(engines: str, children: str, slots: int) -> None:
    """Measure how long a parent takes, from its creation to its end."""
    with ExitStack() as stack:
        for engine in engines.split(","):
            url = _place(engine, stack)
            for number in map(int, children.split(",")):
                took = asyncio.run(_through(url, number, slots))
                steps = ", ".join(f"{name} {value:.1f} s" for name, value in took.items())
                total = sum(took.values())
                click.echo(
                    f"{engine:<10}{number:>8} children{total:>8.1f} s{1000 * total / number:>8.2f} ms each ({steps})"
                )


def _place(engine: str, stack: ExitStack) -> str:
    """Provide the URL of an empty store."""
    match engine:
        case "sqlite":
            return f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/flow.db"
        case "postgres":
            server = PostgresServer(find_postgres()[0], durable=True, shared_buffers="256MB")
            return stack.enter_context(server).create_database()
        case "redis":
            return f"unix://{stack.enter_context(RedisServer(find_redis(), appendonly='everysec')).socket}"
        case _:
            raise click.UsageError(f"there is no engine {engine!r}; there are: {', '.join(ENGINES)}")


async def _through(url: str, number: int, slots: int) -> dict[str, float]:
    queues = [Queue("parent", children=[Queue("kid", ("n",))], gather=False)]
    flow = Flow("bench", url, queues, events=Events())

    async def kid(job: FlowJob) -> dict[str, int]:
        return {"twice": 2 * job["n"]}

    async with flow:
        began = perf_counter()
        params = [{"childName": "kid", "n": place} for place in range(number)]
        job_id = await flow.create_job({"children:parent:params": params})
        created = perf_counter()
        flow.create_parent_workers("parent")
        flow.create_child_workers("parent", "kid", kid, slots)
        await flow.start_all()
        await flow.result(job_id)
        ended = perf_counter()
        await flow.halt()
        last = await flow.get_children(job_id, "parent", start=number - 1)
        assert [child["twice"] for child in last] == [2 * (number - 1)]
        assert not await flow.get_children(job_id, "parent", start=number)
    return {"created": created - began, "through": ended - created}


if __name__ == "__main__":
    main()
