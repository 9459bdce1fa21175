"""Celery, Dramatiq and RQ on Valkey, in one run: python benchmarks/brokers.py --help

One server for all, with an append-only file; each library has a database of its own. The libraries take turns.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide a module

from benchmarks.contenders import STATE, Contender, install  # noqa: E402
from benchmarks.course import Course, go_round  # noqa: E402
from benchmarks.grounds import RedisGround  # noqa: E402
from benchmarks.report import Report, save  # noqa: E402
from tests.support.valkey import RedisServer, find_redis  # noqa: E402

LIVE = {
    "celery": "celery unacked",
    "dramatiq": "dramatiq:default dramatiq:default.msgs",
    "rq": "rq:queue:default rq:wip:default",
}
"""Keys that exist while a job is left."""


@click.command()
@click.option("--runs", default=3, show_default=True)
@click.option("--jobs", default=5_000, show_default=True, help="The backlog that is drained.")
@click.option("--samples", default=100, show_default=True, help="Jobs sent to an idle worker.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the figures of all runs are written.")
def main(runs: int, jobs: int, samples: int, file: Path | None) -> None:
    """Measure how fast one worker process drains a queue, and how soon a job starts."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    STATE.mkdir(parents=True, exist_ok=True)
    report = Report(())
    names = install(set(LIVE))
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(find_redis(), appendonly="everysec"))
        courses = []
        for number, name in enumerate(sorted(names), 1):
            probes = Path(tempfile.mkdtemp(prefix="stowhand-bench-"))
            stack.callback(shutil.rmtree, probes, ignore_errors=True)
            environment = {"BROKER_LIBRARY": name}
            contender = Contender(name, "broker_.py", ("drain", "latency"), name, LIVE[name], environment)
            courses.append(Course(contender, RedisGround(server.socket, number), probes))
        go_round("drain", lambda course: course.drain(1, jobs), courses, runs, report)
        go_round("latency", lambda course: course.latency(samples), courses, runs, report)
    click.echo("\n".join(report.lines()))
    save(report.runs, file)


if __name__ == "__main__":
    main()
