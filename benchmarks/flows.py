"""Flows on Redis and their peers, side by side, in one run: python benchmarks/flows.py --help

One server for all, with an append-only file. Every measurement goes round the contenders (A B C, A B C, …), so that
what else the machine does falls on all of them; before that each is tried with several concurrencies, and goes on with
its best.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click
import redis

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.contenders import NPM_PACKAGES, STATE, Contender, install  # noqa: E402
from benchmarks.course import Course, Finding, go_round  # noqa: E402
from benchmarks.grounds import RedisGround  # noqa: E402
from benchmarks.report import BULLMQ, FLOWS, GUILD, OURS, Report, save  # noqa: E402
from tests.support.valkey import RedisServer, find_redis  # noqa: E402

MEASURES = ("one", "many", "drain", "latency", "idle")
TRIED_CONCURRENCIES = {OURS: (10, 50, 100, 200), BULLMQ: (1, 10, 50, 100), GUILD: (1, 10, 50, 100)}
"""Concurrencies: slots; jobs at once; workers, of which each has two connections."""
SCRIPT_BY_NAME = {OURS: "flow_.py", BULLMQ: "bullmq.js", GUILD: "guild.js"}
FAMILY_BY_NAME = {OURS: "stowhand", BULLMQ: "bullmq", GUILD: "guild"}
JOB_SHARE_BY_NAME = {OURS: 1.0, BULLMQ: 1.0, GUILD: 0.3}
TRIAL_SHARE = 0.25
"""Of the jobs, for a trial of a concurrency."""

Round = tuple[str, Callable[[Course], Iterator[Finding]]]


@click.command()
@click.option("--only", default=",".join(MEASURES), show_default=True, help="Measurements, separated by commas.")
@click.option("--peers", default=f"{BULLMQ},{GUILD}", show_default=True, help="Beside which ones.")
@click.option("--appendfsync", type=click.Choice(["everysec", "always"]), default="everysec", show_default=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--jobs", default=20_000, show_default=True, help="The backlog that is drained.")
@click.option("--many", default=20_000, show_default=True, help="Jobs created in bulk.")
@click.option("--one", default=2_000, show_default=True, help="Jobs created one by one.")
@click.option("--samples", default=200, show_default=True, help="Jobs sent to an idle worker.")
@click.option("--window", default=30.0, show_default=True, help="Seconds of idleness that are watched.")
@click.option("--concurrency", type=int, help="For all, instead of the best of each.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(
    only: str,
    peers: str,
    appendfsync: Literal["everysec", "always"],
    runs: int,
    concurrency: int | None,
    file: Path | None,
    **sizes: float,
) -> None:
    """Measure Stowhand's flows and their peers on Redis, and hold the ratios against the targets."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    names = [OURS, *_chosen(peers, (BULLMQ, GUILD))]
    wanted = _chosen(only, MEASURES)
    there = install({FAMILY_BY_NAME[name] for name in names})
    names = [name for name in names if FAMILY_BY_NAME[name] in there]
    STATE.mkdir(parents=True, exist_ok=True)
    report = Report(FLOWS)
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(find_redis(), appendonly=appendfsync))
        field = Field(server, stack)
        click.echo(_heading(server, appendfsync), err=True)
        best = {name: concurrency or field.best(name, int(sizes["jobs"] * TRIAL_SHARE)) for name in names}
        courses = [field.course(_contender(name, best[name], queues)) for queues in (1, 3) for name in names]
        for name, measure in _rounds(wanted, sizes):
            go_round(name, measure, [one for one in courses if name in one.contender.measures], runs, report)
    click.echo("\n".join(report.lines()))
    save(report.runs, file)


class Field:
    """Redis server with a database for each contender."""

    def __init__(self, server: RedisServer, stack: ExitStack) -> None:
        self._server, self._stack = server, stack
        self._given = 0

    def course(self, contender: Contender) -> Course:
        """Provide a course on the next database. It is removed with the exit stack."""
        probes = Path(tempfile.mkdtemp(prefix="stowhand-bench-"))
        self._stack.callback(shutil.rmtree, probes, ignore_errors=True)
        self._given += 1
        return Course(contender, RedisGround(self._server.socket, self._given), probes)

    def best(self, name: str, jobs: int) -> int:
        """Return the concurrency with the fastest drain. Its database is empty afterwards."""
        rates: dict[int, float] = {}
        for concurrency in TRIED_CONCURRENCIES[name]:
            course = self.course(_contender(name, concurrency, 1))
            rates[concurrency] = dict(course.drain(1, jobs))["drain, 1 process, jobs/s"]
            self._given -= 1
            click.echo(
                f"{'tried: drain, 1 process, jobs/s':<60} {name}, {concurrency:<12}{rates[concurrency]:>12,.6g}",
                err=True,
            )
        with redis.Redis(unix_socket_path=str(self._server.socket), db=self._given + 1) as client:
            client.flushdb()
        return max(rates, key=lambda concurrency: rates[concurrency])


def _contender(name: str, concurrency: int, queues: int) -> Contender:
    environment = {"FLOW_CONCURRENCY": str(concurrency), "FLOW_QUEUES": str(queues)}
    if FAMILY_BY_NAME[name] in NPM_PACKAGES:
        environment["PEERS_NODE"] = str(NPM_PACKAGES[FAMILY_BY_NAME[name]][0])
    one = Contender(
        name,
        SCRIPT_BY_NAME[name],
        MEASURES,
        FAMILY_BY_NAME[name],
        _live(name, queues),
        environment,
        JOB_SHARE_BY_NAME[name],
        queues,
    )
    return one if queues == 1 else replace(one, name=f"{name}, {queues} queues", measures=("drain",))


def _live(name: str, queues: int) -> str:
    """Return the lists of its queues."""
    begin, ends = (
        ("bull", ("wait", "active", "prioritized")) if name == BULLMQ else ("queue", ("waiting", "processing"))
    )
    return " ".join(f"{begin}:q{number}:{end}" for number in range(1, queues + 1) for end in ends)


def _rounds(wanted: list[str], sizes: dict[str, float]) -> Iterator[Round]:
    made: dict[str, list[Callable[[Course], Iterator[Finding]]]] = {
        "one": [lambda course: course.one(int(sizes["one"]))],
        "many": [lambda course: course.many(int(sizes["many"]))],
        "drain": [
            lambda course: course.drain(1, int(sizes["jobs"])),
            lambda course: course.drain(2, int(sizes["jobs"])),
        ],
        "latency": [lambda course: course.latency(int(sizes["samples"]))],
        "idle": [lambda course: course.idle(sizes["window"])],
    }
    for name in wanted:
        yield from ((name, measure) for measure in made[name])


def _heading(server: RedisServer, appendfsync: str) -> str:
    with server.client() as client:
        info = client.info("server")
    version = info.get("valkey_version", info["redis_version"])
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"Redis or Valkey {version}, append-only file, appendfsync {appendfsync}; load of the machine {busy}\n"


def _chosen(text: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if strange := [name for name in names if name not in known]:
        raise click.UsageError(f"there is no {', '.join(strange)}; there are: {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
