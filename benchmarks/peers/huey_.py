"""huey on SQLite, two threads. HUEY_DURABLE=yes: synchronous FULL; else OFF, which is less than our NORMAL."""

from __future__ import annotations

import logging
import os
import sys

import probe
from huey import SqliteHuey

huey = SqliteHuey(
    "bench", filename=os.environ["BENCH_FILE"], results=False, fsync=os.environ.get("HUEY_DURABLE") == "yes"
)


@huey.task(name="noop")
def noop(number: int = 0, sent: float = 0.0) -> None:  # noqa: ARG001  a payload of the usual size
    """The job that does nothing."""
    probe.hit(sent)


def main(verb: str, count: int) -> None:
    """Do it, and say how long it took."""
    logging.disable(logging.INFO)
    match verb:
        case "setup":
            huey.flush()
        case "worker":
            huey.create_consumer(workers=2, worker_type="thread", periodic=False).run()
        case "one" | "many":  # there is no call for many
            with probe.timed(count):
                for number in range(count):
                    noop(number=number)
        case "slowly":
            probe.send_slowly_blocking(count, lambda number, sent: noop(number=number, sent=sent))


main(sys.argv[1], int(sys.argv[2]))
