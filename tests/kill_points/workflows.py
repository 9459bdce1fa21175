"""Workflows as data: thirty that are written down, and others from a seed. All of their calls are kill points.

A workflow is a tree of nodes. Its tasks interpret the tree, note every run of a step's function in the ledger, and
return what their steps returned. A plain function says what an undisturbed run returns. Time is pinned: when no job is
due, the clock goes on to the next one.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from inspect import isawaitable
from typing import Any, Literal

import msgspec
import psycopg

from stowhand import Context, Fail, SyncContext
from stowhand.app.app import App
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.retry import constant
from stowhand.steps import ChildFailed
from tests.kill_points.scenarios import SCENARIOS, Result, Scenario, repeated
from tests.kill_points.world import World

MAX_ROUNDS = 300
NEVER_SECONDS = 3650 * 86_400.0
"""A job that is due later waits for an event or for its children alone."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A step, whose function raises so many times in each attempt."""

    name: str
    fails: int = 0
    is_transaction: bool = False
    """It inserts a row in the transaction that records it."""


class Together(msgspec.Struct, frozen=True, tag="together"):
    """Steps that run at the same time."""

    names: tuple[str, ...]


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """A sleep: of hours, since the history keeps ended jobs for days, and ``check`` reads it."""

    delay: str


class Event(msgspec.Struct, frozen=True, tag="event"):
    """A wait for an event that is emitted before the workflow starts, while it waits, or after its timeout."""

    name: str
    emitted: Literal["before", "after", "late"]


class Map(msgspec.Struct, frozen=True, tag="map"):
    """Children, each with a tree of its own. ``call``: the only one is called by ``ctx.call``."""

    name: str
    children: tuple[tuple[Node, ...], ...]
    failures: Literal["raise", "collect"] = "raise"
    max_attempts: int = 9
    is_call: bool = False


class FailOnce(msgspec.Struct, frozen=True, tag="fail-once"):
    """The attempt fails when it is here for the first time."""


class FailAlways(msgspec.Struct, frozen=True, tag="fail"):
    """The job fails permanently."""


Node = Step | Together | Sleep | Event | Map | FailOnce | FailAlways
Tree = tuple[Node, ...]


class Program(msgspec.Struct, frozen=True):
    """A workflow. The words of its name say what it is about."""

    tree: Tree
    is_sync: bool = False
    is_canceled: bool = False
    """Somebody cancels it when nothing is due any more."""


def expected(tree: Tree, path: str) -> list[Any] | None:
    """Return what an undisturbed run returns; ``None`` if it fails."""
    found: list[Any] = []
    for number, node in enumerate(tree):
        match node:
            case Step():
                found.append(f"{path}.{number}")
            case Together(names):
                found.append([f"{path}.{number}.{name}" for name in names])
            case Event(name, emitted):
                found.append("timed out" if emitted == "late" else f"payload of {name}")
            case Map(children=children):
                found.append([expected(child, f"{path}.{number}.{place}") for place, child in enumerate(children)])
            case FailAlways():
                return None
            case _:
                pass
    return found


def nodes_of(tree: Tree, path: str) -> Iterator[tuple[str, Node]]:
    """Yield all nodes of a tree with their paths."""
    for number, node in enumerate(tree):
        yield f"{path}.{number}", node
        if isinstance(node, Map):
            for place, child in enumerate(node.children):
                yield from nodes_of(child, f"{path}.{number}.{place}")


# -- the tasks ----------------------------------------------------------------------------------

Call = Callable[[Any], Any]
"""What an interpreter asks of its context: a value, or an awaitable of one."""


def interpret(  # noqa: C901 - a case for each kind of node
    world: World, epoch: int, tree: Tree, path: str, task: Any
) -> Generator[Call, Any, list[Any]]:
    """Yield the calls of a workflow. Return what its steps returned."""
    found: list[Any] = []
    for number, node in enumerate(tree):
        here = f"{path}.{number}"
        match node:
            case Step(is_transaction=True):
                found.append((yield _transaction(world, here, node.name, epoch)))
            case Step():
                function = _Function(world, here, epoch, node.fails)
                found.append((yield _step(node.name, function, node.fails + 1)))
            case Together(names):
                functions = {name: _Function(world, f"{here}.{name}", epoch) for name in names}
                found.append((yield _together(functions)))
            case Sleep(delay):
                yield _sleep(delay)
            case Event(name, emitted):
                try:
                    found.append((yield _event(name, {"before": "900d", "late": "1h"}.get(emitted))))
                except TimeoutError:
                    found.append("timed out")
            case Map(is_call=True):
                (child,) = node.children
                found.append([(yield _call_child(node, task, child, f"{here}.0"))])
            case Map():
                jobs = [
                    new_job(task.name, child, f"{here}.{place}", node.max_attempts)
                    for place, child in enumerate(node.children)
                ]
                values = yield _map(node, jobs)
                found.append([None if isinstance(value, ChildFailed) else value for value in values])
            case FailOnce():
                if [here] not in world.notes("failed"):
                    world.note("failed", here)
                    raise RuntimeError("it fails once")
            case FailAlways():
                raise Fail("it always fails")
    return found


class _Function:
    """The function of a step. It notes its runs, and its value says which one it was."""

    def __init__(self, world: World, path: str, epoch: int, fails: int = 0) -> None:
        self._world, self._path, self._epoch, self._fails = world, path, epoch, fails

    def __call__(self) -> str:
        if self._fails:
            self._fails -= 1
            raise RuntimeError("try again")
        self._world.note("ran", self._path, self._epoch)
        return f"{self._path}:{self._epoch}"


def _step(name: str, function: Callable[[], str], attempts: int) -> Call:
    return lambda ctx: ctx.step(name, function, attempts=attempts, backoff=constant(0))


def _together(functions: dict[str, _Function]) -> Call:
    return lambda ctx: asyncio.gather(*(ctx.step(name, function) for name, function in functions.items()))


def _sleep(delay: str) -> Call:
    return lambda ctx: ctx.sleep(delay)


def _event(name: str, timeout: str | None) -> Call:
    return lambda ctx: ctx.event(name, timeout=timeout)


def _map(node: Map, jobs: Sequence[NewJob]) -> Call:
    return lambda ctx: ctx.map(node.name, jobs, failures=node.failures)


def _call_child(node: Map, task: Any, tree: Tree, path: str) -> Call:
    child = task.options(max_attempts=node.max_attempts, max_resets=9)
    return lambda ctx: ctx.call(node.name, child, msgspec.to_builtins(tree), path)


def _transaction(world: World, path: str, name: str, epoch: int) -> Call:
    function = _Function(world, path, epoch)
    insert = f"insert into effects values ('{path}')"

    async def run(ctx: Context) -> str:
        async with await psycopg.AsyncConnection.connect(world.url) as connection:

            async def insert_row() -> str:
                await connection.execute(insert.encode())
                return function()

            return await ctx.step(name, insert_row, connection=connection)

    def run_sync(ctx: SyncContext) -> str:
        with _connection(world) as connection:

            def insert_row() -> str:
                connection.execute(insert)
                return function()

            return ctx.step(name, insert_row, connection=connection)

    async def run_on_file(ctx: Context) -> str:
        with _connection(world) as connection:

            async def insert_row() -> str:
                connection.execute(insert)
                return function()

            return await ctx.step(name, insert_row, connection=connection)

    def choose(ctx: Any) -> Any:
        if isinstance(ctx, SyncContext):
            return run_sync(ctx)
        return run_on_file(ctx) if world.is_sqlite else run(ctx)

    return choose


@contextmanager
def _connection(world: World) -> Iterator[Any]:
    """Return a connection with a transaction, which is committed at the end."""
    if not world.is_sqlite:
        with psycopg.connect(world.url) as connection:
            yield connection
        return
    with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        try:
            yield file
        except BaseException:
            file.execute("ROLLBACK")
            raise
        file.execute("COMMIT")


def new_job(task: str, tree: Tree, path: str, max_attempts: int = 9) -> NewJob:
    """Return the job of a tree."""
    payload = {"tree": msgspec.to_builtins(tree), "path": path}
    return NewJob(task=task, payload=json.dumps(payload), max_attempts=max_attempts, max_resets=9)


def _read(tree: Any) -> Tree:
    return msgspec.convert(tree, Tree)


# -- the scenarios ------------------------------------------------------------------------------


class Workflow(Scenario):
    """One workflow from its start to its end, through all of its waits."""

    def __init__(self, program: Program) -> None:
        self.program = program

    async def prepare(self, world: World) -> None:
        world.advance(0)
        world.ask("create table if not exists effects (path text not null)")
        async with world.opened() as store:
            await store.jobs.enqueue(new_job("sync" if self.program.is_sync else "async", self.program.tree, "w"))

    @asynccontextmanager
    async def workflow_app(self, world: World) -> AsyncIterator[App]:
        """Return an open app with the tasks of workflows."""
        app = App(store=world.store())

        @app.task(name="async", backoff=constant(0))
        async def run(ctx: Context, tree: list[Any], path: str) -> list[Any]:
            calls = _Calls(interpret(world, ctx.lease.epoch, _read(tree), path, run))
            while calls.next is not None:
                try:
                    value = calls.next(ctx)
                    value = await value if isawaitable(value) else value
                except Exception as error:  # noqa: BLE001 - the interpreter decides
                    calls.throw(error)
                else:
                    calls.send(value)
            return calls.value

        @app.task(name="sync", backoff=constant(0))
        def run_sync(ctx: SyncContext, tree: list[Any], path: str) -> list[Any]:
            calls = _Calls(interpret(world, ctx.lease.epoch, _read(tree), path, run_sync))
            while calls.next is not None:
                try:
                    value = calls.next(ctx)
                except Exception as error:  # noqa: BLE001 - the interpreter decides
                    calls.throw(error)
                else:
                    calls.send(value)
            return calls.value

        async with app:
            yield app

    async def run(self, world: World) -> None:
        async with self.workflow_app(world) as app:
            await self._drive(world, app)

    async def recover(self, world: World) -> None:
        async with self.workflow_app(world) as app, asyncio.timeout(50):
            store = await app.open()
            heartbeats = store.heartbeats()
            try:
                while await heartbeats.reset_stalled(0):
                    pass
                await self._drive(world, app)
            finally:
                await heartbeats.close()
            waiting = [(job.id, job.state, job.waits_for) for job in await _jobs(store) if not job.state.terminal]
            assert not waiting, f"nobody wakes them: {waiting}"

    async def _drive(self, world: World, app: App) -> None:  # noqa: C901 - one loop of what may happen next
        """Run the jobs, emit what they wait for, and let time pass, until nothing is left to do."""
        store = await app.open()
        nodes = [node for _, node in nodes_of(self.program.tree, "w")]
        events = {node.name: node.emitted for node in nodes if isinstance(node, Event)}
        for name in events:
            if events[name] == "before":
                await self._emit(app, name)
        is_canceled = False
        for _ in range(MAX_ROUNDS):
            await world.work(app, concurrency=self.concurrency)
            jobs = [job for job in await repeated(lambda: _jobs(store)) if not job.state.terminal]
            awaited = [name for job in jobs if (name := (job.waits_for or "").removeprefix("event:")) in events]
            awaited = [name for name in awaited if events.get(name) == "after" and name not in world.emitted()]
            due = await repeated(lambda: store.next_due(None))
            if not jobs:
                break
            if due is not None and due <= 0:
                continue
            if self.program.is_canceled and not is_canceled:
                is_canceled = True
                await repeated(lambda: store.admin.cancel(1))
            elif awaited:
                await self._emit(app, awaited[0])
                world.note("emitted", awaited[0])
            elif due is not None and due < NEVER_SECONDS:
                world.advance(due + 0.001)
            else:
                break
        for name in events:
            if events[name] == "late":
                await self._emit(app, name)

    async def _emit(self, app: App, name: str) -> None:
        await repeated(lambda: app.emit(name, f"payload of {name}"))

    def check(self, result: Result) -> Iterator[str]:
        (root,) = [job for job in result.jobs if job.id == 1]
        if self.program.is_canceled:
            if root.state is not State.CANCELED:
                yield f"the workflow is {root.state}"
        elif root.state is not State.COMPLETED:
            yield f"the workflow is {root.state} after {root.attempts} attempts: {root.last_error}"
        else:
            returned = _returned(result.world)[1]
            if _without_epochs(returned) != expected(self.program.tree, "w"):
                yield f"it has returned {returned}, not {expected(self.program.tree, 'w')}"
        yield from _check_jobs(result, self.program.tree)
        yield from self._check_steps(result)

    def _check_steps(self, result: Result) -> Iterator[str]:
        """A recorded step never runs again, and the workflow gets the recorded value. Transactions happen once."""
        world = result.world
        recorded = _recorded(world)
        epochs_of = {path: int(value.rsplit(":", 1)[1]) for path, value in recorded.items()}
        runs: dict[str, list[int]] = defaultdict(list)
        for path, epoch in world.notes("ran"):
            runs[path].append(int(epoch))
        for path, epochs in runs.items():
            if _is_in_retried_child(self.program.tree, path):
                continue
            if len(set(epochs)) < len(epochs):
                yield f"step {path} has run twice in an attempt: {epochs}"
            if path in recorded and max(epochs) > epochs_of[path]:
                yield f"step {path} was recorded at epoch {epochs_of[path]} and has run again: {epochs}"
        for text in _texts(list(_returned(world).values())):
            path = text.rsplit(":", 1)[0]
            if path in runs and not _is_in_retried_child(self.program.tree, path) and recorded.get(path) != text:
                yield f"{text} was returned, and {recorded.get(path)} is recorded"
        yield from self._check_transactions(world, recorded)

    def _check_transactions(self, world: World, recorded: dict[str, str]) -> Iterator[str]:
        effects = Counter(path for (path,) in world.ask("select path from effects"))
        rows = [path for path, node in nodes_of(self.program.tree, "w") if node == ROW]
        for path in rows:
            if effects[path] != (path in recorded) and not _is_in_retried_child(self.program.tree, path):
                yield f"the transaction of step {path} has taken effect {effects[path]} times"


def _recorded(world: World) -> dict[str, str]:
    """Return the recorded values of steps with functions, by the path of the step."""
    table = "stowhand_steps" if world.is_sqlite else "stowhand.steps"
    rows = world.ask(f"select value from {table} where place = 0 and value is not null")
    values = [value for (row,) in rows if isinstance(value := _decoded(row), str) and value[:2] == "w."]
    return {value.rsplit(":", 1)[0]: value for value in values}


def _check_jobs(result: Result, tree: Tree) -> Iterator[str]:
    """Each child exists once, but those that were created anew after a failure, and theirs."""
    states: dict[str, list[State]] = defaultdict(list)
    for job in result.jobs:
        states[str(json.loads(job.payload_text)["path"])].append(job.state)
    for path, found in states.items():
        parent = path.rsplit(".", 2)[0]
        good = sum(state is not State.FAILED for state in found)
        if (good > 1 or len(found) > 2) and not _is_in_retried_child(tree, parent):
            yield f"the child {path} was created too often: {found}"


def _is_in_retried_child(tree: Tree, path: str) -> bool:
    """Whether a step is in a child that may be created anew: both have the same path."""
    return any(
        isinstance(node, Map) and node.max_attempts == 1 and path.startswith(f"{where}.")
        for where, node in nodes_of(tree, "w")
    )


class _Calls:
    """The calls of an interpreter, one after the other, and its value at the end."""

    def __init__(self, generator: Generator[Call, Any, list[Any]]) -> None:
        self._generator = generator
        self.next: Call | None = None
        self.value: list[Any] = []
        self.send(None)

    def send(self, value: Any) -> None:
        self._go_on(lambda: self._generator.send(value))

    def throw(self, error: Exception) -> None:
        self._go_on(lambda: self._generator.throw(error))

    def _go_on(self, step: Callable[[], Call]) -> None:
        try:
            self.next = step()
        except StopIteration as end:
            self.next, self.value = None, end.value


def _returned(world: World) -> dict[int, Any]:
    """Return the results of the completed jobs, by id."""
    table = "stowhand_history" if world.is_sqlite else "stowhand.history"
    rows = world.ask(f"select id, result from {table} where state = 'completed' and result is not null")
    return {job: _decoded(result) for job, result in rows}


def _decoded(value: Any) -> Any:
    """Return a JSON value: psycopg has decoded it already."""
    return json.loads(value) if isinstance(value, str) and value[:1] in '["' else value


def _without_epochs(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_epochs(one) for one in value]
    return value.rsplit(":", 1)[0] if isinstance(value, str) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


async def _jobs(store: QueueStore) -> list[Job]:
    return list(await store.inspect.list(JobFilter(states=tuple(State), limit=1000)))


def _call(name: str, *tree: Node, max_attempts: int = 9) -> Map:
    return Map(name, (tree,), max_attempts=max_attempts, is_call=True)


def _map_of(name: str, *children: Tree, **options: Any) -> Map:
    return Map(name, children, **options)


A, B, C = Step("a"), Step("b"), Step("c")
ROW = Step("row", is_transaction=True)
LEAF: Tree = (Step("leaf"),)
FRAGILE: Tree = (Step("leaf"), FailOnce())
HOPELESS: Tree = (Step("leaf"), FailAlways())
PROGRAMS: dict[str, Program] = {
    "steps": Program((A, B, C)),
    "steps-of-one-name": Program((A, A, FailOnce(), A)),
    "steps-repeated": Program((Step("a", fails=2), B, Step("c", fails=1))),
    "steps-together": Program((Together(("x", "y", "z")), A)),
    "steps-and-a-failure": Program((A, FailOnce(), B, FailOnce())),
    "sleep": Program((A, Sleep("1h"), B)),
    "sleeps": Program((Sleep("1m"), A, Sleep("9h"), Sleep("1s"))),
    "sleep-and-a-failure": Program((A, Sleep("1h"), FailOnce(), B)),
    "event-before": Program((A, Event("e", "before"), B)),
    "event-after": Program((A, Event("e", "after"), B)),
    "event-too-late": Program((A, Event("e", "late"), B)),
    "events": Program((Event("e", "after"), Event("f", "before"), Event("g", "late"), A)),
    "event-and-a-failure": Program((Event("e", "after"), FailOnce(), Event("f", "late"), FailOnce(), A)),
    "map": Program((A, _map_of("m", LEAF, LEAF, LEAF), B)),
    "map-of-none": Program((A, _map_of("m"), B)),
    "map-collects-failures": Program((_map_of("m", LEAF, HOPELESS, HOPELESS, failures="collect"), A)),
    "map-retries-failures": Program((_map_of("m", FRAGILE, LEAF, FRAGILE, max_attempts=1), A)),
    "map-with-retries": Program((_map_of("m", FRAGILE, FRAGILE), A)),
    "map-of-sleepers": Program((_map_of("m", (Sleep("1h"), A), (Sleep("2h"), A), LEAF), B)),
    "map-of-listeners": Program((_map_of("m", (Event("e", "after"), A), (Event("f", "before"),)), B)),
    "map-twice": Program((_map_of("m", LEAF, LEAF), _map_of("m", LEAF), A)),
    "call": Program((A, _call("c", A, B), B)),
    "call-in-call": Program((_call("c", A, _call("d", _call("e", A), B)), C)),
    "call-retried": Program((_call("c", A, FailOnce(), max_attempts=1), B)),
    "cancel-while-children-wait": Program(
        (A, _map_of("m", (Event("never", "late"), A), (_call("c", Sleep("9h"), A),), LEAF)), is_canceled=True
    ),
    "cancel-a-sleeper": Program((A, ROW, Sleep("9h"), B), is_canceled=True),
    "transactions": Program((ROW, A, ROW, Sleep("1h"), ROW)),
    "transactions-and-a-failure": Program((ROW, FailOnce(), _map_of("m", (ROW,), (ROW, FailOnce())))),
    "sync": Program((A, Sleep("1h"), Event("e", "after"), _map_of("m", LEAF, (Sleep("1h"), A)), B), is_sync=True),
    "sync-transactions": Program((ROW, FailOnce(), ROW, _call("c", ROW)), is_sync=True),
}


def random_program(seed: int) -> Program:  # noqa: C901 - a case for each kind of node
    """Return the workflow of a seed."""
    rng = random.Random(seed)
    is_sync = rng.random() < 0.25
    names = (f"e{number}" for number in range(1000))

    def tree(depth: int) -> Tree:
        return tuple(node(depth) for _ in range(rng.randint(1, 4 - depth)))

    def node(depth: int) -> Node:
        choice = rng.choices(
            ["step", "row", "together", "sleep", "event", "map", "call", "fail-once"],
            [6, 2, 0 if is_sync else 1, 2, 3, *([2, 2] if depth < 2 else [0, 0]), 2],
        )[0]
        match choice:
            case "step":
                return Step(rng.choice("abc"), fails=rng.choice((0, 0, 1)))
            case "row":
                return ROW
            case "together":
                return Together(("x", "y"))
            case "sleep":
                return Sleep(rng.choice(("1s", "1h", "3h")))
            case "event":
                return Event(next(names), rng.choice(("before", "after", "late")))
            case "map":
                children = tuple(tree(depth + 1) for _ in range(rng.randint(0, 3)))
                if rng.random() < 0.3:
                    return Map("m", (*children, HOPELESS), failures="collect")
                return Map("m", children, max_attempts=rng.choice((9, 9, 1)))
            case "call":
                return Map("c", (tree(depth + 1),), is_call=True)
            case _:
                return FailOnce()

    return Program(tree(0), is_sync=is_sync)


RANDOM = "random-"
WRITTEN: dict[str, Scenario] = {
    **SCENARIOS,
    **{f"workflow-{name}": Workflow(program) for name, program in PROGRAMS.items()},
}
"""All scenarios but those of seeds."""


def scenario_of(name: str) -> Scenario:
    """Return a scenario by its name, or the workflow of the seed in the name."""
    if name.startswith(RANDOM):
        return Workflow(random_program(int(name.removeprefix(RANDOM))))
    return WRITTEN[name]
