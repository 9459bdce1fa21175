"""Course: the same measurements for every contender, by the same clock.

A drain is timed from the beginning of the first handler until no job is left in the table: counting only handlers would
flatter those that fetch much and record late.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psutil

from benchmarks.contenders import STATE, Contender, environment
from benchmarks.counters import processor_seconds
from benchmarks.grounds import Ground
from benchmarks.probe import look
from benchmarks.report import Report

Finding = tuple[str, float]
"""What was found, and the figure."""

WARM_UP = 5


class Course:
    """Course of one contender on its own ground."""

    def __init__(self, contender: Contender, ground: Ground, probes: Path) -> None:
        self.contender, self._ground, self._probes = contender, ground, probes
        self._environment = environment(probes) | ground.environment | contender.environment
        self._log = STATE / "logs" / f"{contender.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)

    # -- the measurements ------------------------------------------------------------------------

    def one(self, count: int) -> Iterator[Finding]:
        """Enqueue one by one in an idle database."""
        yield from self._enqueued("one", "enqueue, one by one", count)

    def many(self, count: int) -> Iterator[Finding]:
        """Enqueue in bulk."""
        yield from self._enqueued("many", "enqueue, in bulk", count)

    def drain(self, processes: int, jobs: int) -> Iterator[Finding]:
        """Drain a backlog."""
        jobs = max(int(jobs * self.contender.share), 100)
        self.fill(jobs)
        with self.workers(processes) as workers:
            wait_until(lambda: self.begun > 0, 60.0, workers)
            cpu, spent = _cpu(workers), self._ground.spent()
            wait_until(lambda: self.begun >= jobs * self.contender.steps, 300.0, workers, every=0.01)
            wait_until(lambda: not self._ground.asks(self.contender.live), 60.0, workers)
            seconds = time.monotonic() - look(self._probes).first
            cpu, spent = _cpu(workers) - cpu, self._ground.spent() - spent
            memory = max(resident(worker.pid) for worker in workers)
        what = f"drain, {processes} process{'es' * (processes > 1)}"
        yield f"{what}, jobs/s", jobs / seconds
        yield f"{what}, processor time of the workers, us a job", 1e6 * cpu / jobs
        if spent:
            yield f"{what}, processor time of the server, us a job", 1e6 * spent / jobs
        yield "memory of a worker after a drain, MB", memory

    def latency(self, samples: int) -> Iterator[Finding]:
        """Measure the time from the enqueue call to the start of the handler, on an idle queue."""
        self._fresh()
        with self.workers(1):
            self._call("slowly", samples + WARM_UP)
        delays = sorted(1000 * delay for delay in look(self._probes).delays[WARM_UP:])
        yield "enqueue to start, p50, ms", delays[len(delays) // 2]
        yield "enqueue to start, p99, ms", delays[int(len(delays) * 0.99)]

    def idle(self, window: float) -> Iterator[Finding]:
        """Measure an idle worker that has run a few jobs."""
        self._fresh()
        with self._ground.only_worker(), self.workers(1) as workers:
            self._call("slowly", WARM_UP)
            time.sleep(self._ground.lag)
            before, began = self._ground.asked(), time.monotonic()
            time.sleep(window)
            after, ended = self._ground.asked(), time.monotonic()
            memory = resident(workers[0].pid)
        yield f"{self._ground.unit} of an idle worker, per minute", 60 * (after - before) / (ended - began)
        yield "memory of an idle worker, MB", memory

    def costs(self, jobs: int) -> Iterator[Finding]:
        """Count what a job costs the server: the enqueue, and claim and settlement (a worker's whole life)."""
        jobs = max(int(jobs * self.contender.share), 100)
        with self._ground.only_worker():
            self._fresh()
            empty = self._ground.counts()
            self._call("many", jobs)
            waiting = self._ground.counts()
            with self.workers(1) as workers:
                wait_until(lambda: self.begun >= jobs, 300.0, workers, every=0.01)
                wait_until(lambda: not self._ground.asks(self.contender.live), 60.0, workers)
            done = self._ground.counts()
        parts = {
            "enqueue, in bulk": waiting - empty,
            "claim and settle": done - waiting,
            "whole life": (waiting - empty) + (done - waiting),
        }
        for what, counted in parts.items():
            for name, figure in counted.a_job(jobs):
                yield f"{what}: {name}", figure

    def start(self) -> Iterator[Finding]:
        """Measure how long a worker takes to start its first job, and to stop. A job waits already."""
        for what, figure in _imports(self.contender):
            yield f"import, {what}, ms of processor time", figure
        self.fill(1)
        began = time.monotonic()
        with self.workers(1) as workers:
            wait_until(lambda: self.begun > 0, 60.0, workers)
            yield "process start to first job, ms", 1000 * (look(self._probes).first - began)
            time.sleep(0.3)  # it has settled into its first wait
            began = time.monotonic()
            workers[0].terminate()
            _wait_for_end(workers[0].pid, 30.0)
            yield "told to end to the end, ms", 1000 * (time.monotonic() - began)

    def _enqueued(self, verb: str, what: str, count: int) -> Iterator[Finding]:
        count = max(int(count * self.contender.share), 100)
        self._fresh()
        spent = self._ground.spent()
        took = self._call(verb, count)
        spent = self._ground.spent() - spent
        yield f"{what}, jobs/s", count / took["seconds"]
        yield f"{what}, processor time of the caller, us a job", 1e6 * took["processor"] / count
        if spent:
            yield f"{what}, processor time of the server, us a job", 1e6 * spent / count

    # -- its processes ---------------------------------------------------------------------------

    def fill(self, jobs: int) -> None:
        """Empty the queue and fill it with this many jobs."""
        self._fresh()
        self._call("many", jobs)

    @property
    def begun(self) -> int:
        """Return the number of started handlers."""
        return look(self._probes).count

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run this many worker processes during the block."""
        started: list[subprocess.Popen[bytes]] = []
        with self._log.open("wb") as log:
            try:
                for _ in range(count):
                    command = [*self.contender.command, "worker", "0"]
                    started.append(
                        subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
                    )
                yield started
            except Exception as error:
                error.add_note(self._log.read_text(errors="replace")[-2000:])
                raise
            finally:
                _end(started)

    def _fresh(self) -> None:
        for file in self._probes.iterdir():
            file.unlink()
        self._call("setup", 0)

    def _call(self, verb: str, count: int) -> dict[str, float]:
        command = [*self.contender.command, verb, str(count)]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=600.0
        )
        if done.returncode:
            raise RuntimeError(f"{self.contender.name}: {verb} failed:\n{done.stderr[-3000:]}")
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return dict(json.loads(said[-1])) if said else {}


def go_round(
    name: str, measure: Callable[[Course], Iterator[Finding]], courses: list[Course], runs: int, report: Report
) -> None:
    """Run this many rounds of all contenders (idleness: one). One that fails is left out of this measurement."""
    left = list(courses)
    for _ in range(1 if name == "idle" else runs):
        for course in list(left):
            try:
                for found, figure in measure(course):
                    report.add(found, course.contender.name, figure)
                    click.echo(f"{found:<60} {course.contender.name:<28}{figure:>12,.6g}", err=True)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:  # TimeoutError is an OSError
                left.remove(course)
                notes = "\n".join([str(error), *getattr(error, "__notes__", [])])
                click.echo(f"{name}: {course.contender.name} failed: {notes}", err=True)


def wait_until(
    reached: Callable[[], bool], seconds: float, workers: list[subprocess.Popen[bytes]], *, every: float = 0.003
) -> None:
    """Wait until the condition holds. Raises TimeoutError, or RuntimeError if a worker ends meanwhile."""
    deadline = time.monotonic() + seconds
    while not reached():
        if any(worker.poll() is not None for worker in workers):
            raise RuntimeError("a worker ended by itself")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {seconds:g} s")
        time.sleep(every)


def _imports(contender: Contender) -> Iterator[Finding]:
    """Return the processor milliseconds of each program's imports without the interpreter's, and the interpreter's."""
    nothing = "" if contender.script.endswith(".js") else "pass"
    bare = _median_run(contender, nothing)
    yield "the bare interpreter", bare
    for what, code in contender.imports.items():
        yield what, _median_run(contender, code) - bare


def _median_run(contender: Contender, code: str) -> float:
    option = "-e" if contender.script.endswith(".js") else "-c"
    command = [contender.command[0], option, code]
    took = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment(STATE) | contender.environment, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))
    return statistics.median(took[1:])


def _wait_for_end(pid: int, seconds: float) -> None:
    """Return at once when it ends: ``Popen.wait`` with a timeout checks only every 50 ms."""
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], seconds)[0]:
            raise TimeoutError(f"not ended within {seconds:g} s")
    finally:
        os.close(ended)


def resident(pid: int) -> float:
    """Return the resident megabytes (10^6 bytes) of a process."""
    return float(psutil.Process(pid).memory_info().rss / 1e6)


def _cpu(workers: list[subprocess.Popen[bytes]]) -> float:
    """Return processor seconds. Unlike the rate they hardly depend on the load of the machine."""
    return processor_seconds(worker.pid for worker in workers)


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    """Terminate each session, wait, and kill its remaining processes."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
