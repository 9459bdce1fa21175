"""Runs scenarios with a fault at each of their calls: ``scripts/kill-points --help``."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import psycopg

from stowhand.stores.url import open_store
from tests.kill_points.points import ENGINES, KINDS, MOMENTS, Engine, Fault, Kind, Moment
from tests.kill_points.program import UNREACHABLE
from tests.kill_points.scenarios import Result
from tests.kill_points.wire import Wire
from tests.kill_points.workflows import RANDOM, WRITTEN, scenario_of
from tests.kill_points.world import World, all_jobs
from tests.support import history, subprocesses
from tests.support.binaries import find_postgres
from tests.support.emptying import CUT_OFF, empty
from tests.support.memory import use_memory
from tests.support.schema import install
from tests.support.servers import PostgresServer
from tests.support.sources import ROOT

DEADLINE_SECONDS = 60.0
"""For one scenario in its process."""
RESTART_STRIDE = 6
"""A restart takes most of a second, so the server is restarted at each sixth point only."""


class Run(msgspec.Struct, frozen=True):
    """One run of a scenario."""

    points: tuple[str, ...]
    has_struck: bool
    """False: the scenario did not reach the point. Threads decide how often it makes some calls."""
    complaints: tuple[str, ...]
    log: str


class Place(Protocol):
    """Where the runs of one engine take place."""

    engine: Engine

    def fresh(self, folder: Path) -> str:
        """Return the URL of an empty store, whose transitions are logged."""

    def execute(self, url: str, world: World, name: str, fault: Fault | None) -> tuple[int, list[str], bool]:
        """Run the scenario in a process. Return its exit code, its points, and whether the fault has struck."""


class PostgresPlace:
    """A server of its own, which loses no commit when it crashes."""

    engine: Engine = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._url = server.create_database()
        install(self._url)
        history.install(self._url)

    def ask(self, statement: str) -> None:
        """Change the schema."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def fresh(self, folder: Path) -> str:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while connection.execute(CUT_OFF).fetchall():
                pass
            empty(connection)
        return self._url

    def execute(self, url: str, world: World, name: str, fault: Fault | None) -> tuple[int, list[str], bool]:
        started: list[subprocess.Popen[bytes]] = []
        strikes: dict[Kind, Callable[[], None]] = {
            "cut": lambda: None,
            "kill": lambda: started[0].send_signal(signal.SIGKILL),
            "restart": lambda: self._server.restart("immediate"),
        }
        with Wire(url, fault, strikes["cut" if fault is None else fault.kind]) as wire:
            code = execute(world, name, wire.url, started=started)
        return code, wire.points, wire.has_struck


class SqlitePlace:
    """A file, copied from one with the schema."""

    engine: Engine = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        url = f"sqlite:///{self._template}"
        asyncio.run(_install(url))
        history.install(url)

    def fresh(self, folder: Path) -> str:
        return f"sqlite:///{shutil.copy(self._template, folder / 'jobs.db')}"

    def execute(self, url: str, world: World, name: str, fault: Fault | None) -> tuple[int, list[str], bool]:
        words = [] if fault is None else [msgspec.json.encode(fault).decode()]
        code = execute(world, name, url, *words)
        file = world.folder / "points"
        points = file.read_text().split("\n")[:-1] if file.exists() else []
        return code, points, fault is not None and any(fault.is_at(name, n) for n, name in enumerate(points, 1))


async def _install(url: str) -> None:
    store = open_store(url)
    await store.schema.install()
    await store.close()


def execute(
    world: World, name: str, url: str, *words: str, started: list[subprocess.Popen[bytes]] | None = None
) -> int:
    """Run a scenario in a process of its own. Return its exit code."""
    command = [sys.executable, "-m", "tests.kill_points.program", name, url, str(world.folder), *words]
    with (world.folder / "log").open("wb") as log:
        process = subprocesses.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        if started is not None:
            started.append(process)
        try:
            return process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -signal.SIGALRM


@contextmanager
def places(engines: Sequence[Engine]) -> Iterator[dict[Engine, Place]]:
    """Yield the place of each engine."""
    with ExitStack() as stack:
        made: dict[Engine, Place] = {}
        if "sqlite" in engines:
            made["sqlite"] = SqlitePlace(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        if "postgres" in engines:
            server = PostgresServer(find_postgres()[0], synchronous_commit="on")
            made["postgres"] = PostgresPlace(stack.enter_context(server))
        yield made


def run(place: Place, name: str, fault: Fault | None = None) -> Run:
    """Run a scenario, recover, and check."""
    with tempfile.TemporaryDirectory(prefix="stow-kill-") as folder:
        url = place.fresh(Path(folder))
        world = World(url, Path(folder))
        asyncio.run(scenario_of(name).prepare(world))
        code, points, has_struck = place.execute(url, world, name, fault)
        complaints = [*_complaints_about_exit(code, fault, has_struck), *map(str, history.check_waits(url))]
        try:
            complaints += asyncio.run(_recover_and_check(msgspec.structs.replace(world, is_recovery=True), name))
        except (AssertionError, TimeoutError) as error:
            complaints.append(f"{type(error).__name__}: {error}")
        log = (world.folder / "log").read_text(errors="replace")
        return Run(tuple(points), has_struck, tuple(complaints), log)


def _complaints_about_exit(code: int, fault: Fault | None, has_struck: bool) -> Iterator[str]:
    kind = fault.kind if fault is not None and has_struck else None
    allowed = {None: {0}, "kill": {-signal.SIGKILL}}.get(kind, {0, UNREACHABLE})
    if code not in allowed:
        yield f"the process has ended with {code}"


async def _recover_and_check(world: World, name: str) -> list[str]:
    scenario = scenario_of(name)
    await scenario.recover(world)
    async with world.opened() as store:
        jobs = await all_jobs(store)
    transitions = history.assert_lawful(world.url, limits={"step": scenario.limits or ()})
    return list(scenario.check(Result(world, jobs, transitions)))


# -- which faults -------------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True):
    """Which faults to run. ``None``: all of them."""

    kind: Kind | None = None
    moment: Moment | None = None
    point: str | None = None

    def faults(self, name: str, engine: Engine, points: Sequence[str]) -> Iterator[Fault]:
        """Yield the faults of a scenario that has these points."""
        kinds = KINDS if self.kind is None else (self.kind,)
        for kind in kinds if engine == "postgres" else [kind for kind in kinds if kind != "restart"]:
            stride = RESTART_STRIDE if kind == "restart" else 1
            for point in points[::stride] if self.point is None else [self.point]:
                for moment in MOMENTS if self.moment is None else (self.moment,):
                    yield Fault(name, engine, point, kind, moment)


class Report(msgspec.Struct):
    """The figures of some runs."""

    points: int = 0
    """The calls of the run without a fault."""
    runs: int = 0
    struck: int = 0
    failures: list[str] = []

    def add(self, fault: Fault, result: Run) -> None:
        self.runs += 1
        self.struck += result.has_struck
        if result.complaints:
            self.failures.append("\n".join([fault.command, *result.complaints, result.log[-3000:]]))


def run_all(place: Place, name: str, wanted: Wanted) -> Report:
    """Run a scenario without a fault, and with each."""
    clean = run(place, name)
    report = Report(points=len(clean.points))
    report.add(Fault(name, place.engine, "none", "cut", "before"), clean)
    for fault in wanted.faults(name, place.engine, clean.points):
        report.add(fault, run(place, name, fault))
    return report


def run_sample(made: dict[Engine, Place], seed: int, seconds: float) -> Report:
    """Run random faults, of all scenarios in turns, until the time is over."""
    began, rng, report = time.monotonic(), random.Random(seed), Report()
    pairs = [(name, engine) for name, scenario in WRITTEN.items() for engine in scenario.engines if engine in made]
    pairs += [(f"{RANDOM}{rng.randrange(1_000_000)}", engine) for engine in made for _ in range(len(pairs) // 4)]
    rng.shuffle(pairs)
    counts: dict[tuple[str, Engine], int] = {}
    while True:
        for name, engine in pairs:
            if time.monotonic() - began > seconds:
                return report
            # The number of calls is not known before the first run, so the fault of that run may be too late.
            number = rng.randint(1, counts.get((name, engine)) or 24)
            kind: Kind = rng.choices(KINDS, (9, 9, 1 if engine == "postgres" else 0))[0]
            fault = Fault(name, engine, f"#{number}", kind, rng.choice(MOMENTS))
            result = run(made[engine], name, fault)
            counts[name, engine] = len(result.points)
            if result.has_struck:
                fault = msgspec.structs.replace(fault, point=result.points[number - 1])
            report.add(fault, result)


def run_random(place: Place, seed: int, number: int) -> Report:
    """Run random workflows. Each has one fault, at a random call of its undisturbed run."""
    rng, report = random.Random(seed), Report()
    for one in range(seed, seed + number):
        name = f"{RANDOM}{one}"
        clean = run(place, name)
        report.points += len(clean.points)
        report.add(Fault(name, place.engine, "none", "cut", "before"), clean)
        if clean.points:
            kind: Kind = rng.choices(KINDS, (4, 9, 1 if place.engine == "postgres" else 0))[0]
            fault = Fault(name, place.engine, rng.choice(clean.points), kind, rng.choice(MOMENTS))
            report.add(fault, run(place, name, fault))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/kill-points", description=__doc__)
    parser.add_argument("--scenario", help=f"only this one: {', '.join(WRITTEN)}, or {RANDOM}SEED")
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--fault", choices=KINDS, help="only this kind")
    parser.add_argument("--moment", choices=MOMENTS, help="only before, or only after the call")
    parser.add_argument("--point", help="only this call, by its name in a failure")
    parser.add_argument("--sample", type=float, metavar="SECONDS", help="random faults for this time")
    parser.add_argument("--random", type=int, metavar="NUMBER", help="random workflows, each with a random fault")
    parser.add_argument("--seed", type=int, help="repeats a sample, or random workflows")
    options = parser.parse_args()
    use_memory()
    engines = ENGINES if options.engine is None else (options.engine,)
    with places(engines) as made:
        if options.sample is not None:
            seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
            return say(f"sample, --seed {seed}", 0.0, run_sample(made, seed, options.sample))
        if options.random is not None:
            seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
            return max(
                say(
                    f"random workflows on {engine}, --seed {seed}",
                    time.monotonic(),
                    run_random(place, seed, options.random),
                )
                for engine, place in made.items()
            )
        return max(run_chosen(made, options))


def run_chosen(made: dict[Engine, Place], options: argparse.Namespace) -> Iterator[int]:
    """Run what the options choose. Yield an exit code for each scenario."""
    wanted = Wanted(options.fault, options.moment, options.point)
    names = WRITTEN if options.scenario is None else [options.scenario]
    for name in names:
        for engine in scenario_of(name).engines:
            if engine in made:
                began = time.monotonic()
                yield say(f"{name} on {engine}", began, run_all(made[engine], name, wanted))


def say(what: str, began: float, report: Report) -> int:
    """Print a report. Return the exit code."""
    for failure in report.failures:
        print(failure, end="\n\n", flush=True)  # noqa: T201 - the output of a program
    figures = f"{report.points} points, {report.runs} runs, {report.struck} faults, {len(report.failures)} failures"
    seconds = f", {time.monotonic() - began:.0f} s" if began else ""
    print(f"{what}: {figures}{seconds}", flush=True)  # noqa: T201
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
