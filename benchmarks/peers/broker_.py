"""Celery, Dramatiq and RQ on Valkey, one worker process each. BROKER_LIBRARY names the library.

Celery and Dramatiq run eight threads. RQ runs jobs in its own process (SimpleWorker), which is its fastest worker: the
usual one forks for each job. Nothing keeps results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import probe
import redis

LIBRARY, URL = os.environ["BROKER_LIBRARY"], os.environ["FLOW_URL"]
SOCKET, DATABASE = os.environ["FLOW_SOCKET"], os.environ["FLOW_DB"]
THREADS = 8


def run_noop(number: int = 0, sent: float = 0.0) -> None:  # noqa: ARG001  a payload of the usual size
    """Do nothing, and note the time."""
    probe.hit(sent)


def with_celery() -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return a function that enqueues, and a function that runs a worker."""
    from celery import Celery

    app = Celery("broker_", broker=f"redis+socket://{SOCKET}?virtual_host={DATABASE}")
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)
    task = app.task(name="noop")(run_noop)
    arguments = ["worker", "--pool=threads", f"--concurrency={THREADS}", "--loglevel=error"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return task.delay, lambda: app.worker_main([*arguments, *quiet])


def with_dramatiq() -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return a function that enqueues, and a function that runs a worker."""
    import signal
    import threading

    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=URL)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(actor_name="noop")(run_noop)

    def work() -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        worker = dramatiq.Worker(broker, worker_threads=THREADS, worker_timeout=100)
        worker.start()
        stop.wait()
        worker.stop()

    return actor.send, work


def with_rq() -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return a function that enqueues, and a function that runs a worker."""
    from rq import Queue, SimpleWorker

    queue = Queue(connection=redis.Redis.from_url(URL))

    def enqueue(number: int = 0, sent: float = 0.0) -> None:
        queue.enqueue("broker_.run_noop", number, sent, result_ttl=0)

    return enqueue, lambda: SimpleWorker([queue], connection=redis.Redis.from_url(URL)).work(logging_level="ERROR")


LIBRARIES = {"celery": with_celery, "dramatiq": with_dramatiq, "rq": with_rq}


def main(verb: str, count: int) -> None:
    """Run one verb of a benchmark."""
    enqueue, work = LIBRARIES[LIBRARY]()
    match verb:
        case "setup":
            redis.Redis.from_url(URL).flushdb()
        case "worker":
            work()
        case "one" | "many":  # they have no call for many jobs, apart from pipelines of RQ
            with probe.timed(count):
                for number in range(count):
                    enqueue(number, 0.0)
        case "slowly":
            probe.send_slowly_blocking(count, enqueue)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
