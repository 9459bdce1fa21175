"""One flow in one Redis, two programs: the real @guildxyz/queues (driven by guild.js), and ours, by the same words.

async with Theirs(url, shape) as theirs, Ours(url, shape) as ours:
    await theirs.work("first", Step("first"))
    await ours.work("second", Step("second"))
    await theirs.start(), ours.start()
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import redis.asyncio

from stowhand.flows import Flow, FlowJob
from stowhand.flows.redis.values import NOTE_FIELDS
from stowhand.protocols.flow_shape import FlowShape, Queue
from tests.interop.original import OF_GUILD, environment, installed, node

SCRIPT = Path(__file__).parent / "guild.js"
STOPS_WITHIN = 10.0
LINE_LIMIT = 2**24
LOCK_SECONDS = 30
CORRELATION = "corr-1"

Found = dict[str, Any]


class Step(msgspec.Struct, frozen=True):
    """What a worker function does, in words that both sides understand. It appends each job's id to a ledger."""

    name: str
    """Of the ledger."""
    writes: Mapping[str, object] = {}
    """Attributes of the result."""
    saw: str | None = None
    """One more, in which it keeps the job as it got it."""
    fails: int = 0
    """Jobs whose ``n`` is a multiple of it fail, if it is not 0."""
    hangs: bool = False
    """It never ends. Only theirs knows that."""

    @property
    def ledger(self) -> str:
        """A list in the same Redis."""
        return f"ledger:{self.name}"

    @property
    def message(self) -> str:
        """With which they fail."""
        return f'no "{self.name}" for you, ä'

    def for_them(self) -> dict[str, object]:
        """As guild.js reads it."""
        fails = {"n": self.fails, "message": self.message} if self.fails else None
        return {"ledger": self.ledger, "writes": self.writes, "saw": self.saw, "fails": fails, "hangs": self.hangs}


class Side(Protocol):
    """A program that knows the flow."""

    async def work(self, queue: str, step: Step) -> None: ...
    async def parent(self, queue: str) -> None: ...
    async def child(self, queue: str, child: str, step: Step) -> None: ...
    async def start(self) -> None: ...
    async def create(self, jobs: Sequence[Mapping[str, object]]) -> list[str]: ...
    async def find(self, key: str, value: object, *, resolve: bool = False) -> list[Found]: ...
    async def delete(self, job_id: str) -> None: ...


class Theirs:
    """Their program. Two workers for each queue that it serves."""

    def __init__(self, url: str, shape: FlowShape) -> None:
        self._url, self._shape = url, shape
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        folder = installed()
        self._process = await asyncio.create_subprocess_exec(
            node(OF_GUILD),
            SCRIPT,
            stdin=PIPE,
            start_new_session=True,
            stdout=PIPE,
            limit=LINE_LIMIT,
            env=environment(folder),
        )
        await self._do(
            "flow",
            redis=_their_options(self._url),
            name=self._shape.name,
            queues=[_their_queue(queue) for queue in self._shape.queues],
            lookups=self._shape.lookup_attributes,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            if kind is None and self._process.returncode is None:
                with suppress(TimeoutError):  # on some versions of node it never ends to stop
                    async with asyncio.timeout(STOPS_WITHIN):
                        await self._do("stop")
        finally:
            await self.die()

    async def work(self, queue: str, step: Step) -> None:
        await self._do("work", queue=queue, count=2, lock=LOCK_SECONDS, step=step.for_them())

    async def parent(self, queue: str) -> None:
        await self._do("parent", queue=queue, count=2, lock=LOCK_SECONDS)

    async def child(self, queue: str, child: str, step: Step) -> None:
        await self._do("child", queue=queue, child=child, count=2, lock=LOCK_SECONDS, step=step.for_them())

    async def start(self) -> None:
        await self._do("start")

    async def create(self, jobs: Sequence[Mapping[str, object]]) -> list[str]:
        return list(await self._do("create", jobs=jobs))

    async def find(self, key: str, value: object, *, resolve: bool = False) -> list[Found]:
        """Their program shows every field of a hash; the notes of our scripts are left out."""
        return [_without_notes(job) for job in await self._do("find", key=key, value=value, resolve=resolve)]

    async def delete(self, job_id: str) -> None:
        await self._do("delete", id=job_id)

    async def die(self) -> None:
        """At once, whatever it does."""
        assert self._process is not None
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # node of a wheel is a child of what was started
        await self._process.wait()

    async def _do(self, what: str, **arguments: object) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        answer = json.loads(await self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["ok"]


class Ours:
    """Our program, in this process. As many slots."""

    def __init__(self, url: str, shape: FlowShape) -> None:
        self.flow = Flow(shape.name, url, shape.queues, shape.lookup_attributes, correlate=lambda: CORRELATION)
        self._ledger = redis.asyncio.Redis.from_url(url)

    async def __aenter__(self) -> Self:
        await self.flow.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.flow.stop_all(now=kind is not None)
        await self._ledger.aclose()

    async def work(self, queue: str, step: Step) -> None:
        self.flow.create_workers(queue, self._function(step), 2, LOCK_SECONDS)

    async def parent(self, queue: str) -> None:
        self.flow.create_parent_workers(queue, 2, LOCK_SECONDS)

    async def child(self, queue: str, child: str, step: Step) -> None:
        self.flow.create_child_workers(queue, child, self._function(step), 2, LOCK_SECONDS)

    async def start(self) -> None:
        await self.flow.start_all()

    async def create(self, jobs: Sequence[Mapping[str, object]]) -> list[str]:
        return await self.flow.create_jobs(jobs)

    async def find(self, key: str, value: object, *, resolve: bool = False) -> list[Found]:
        return await self.flow.get_jobs_by_key(key, value, resolve_children=resolve)

    async def delete(self, job_id: str) -> None:
        await self.flow.delete_job(job_id)

    def _function(self, step: Step) -> Any:
        async def function(job: FlowJob) -> dict[str, object]:
            own = job.id.rpartition(":")[2]  # a child has its queue's name before it with us
            await self._ledger.rpush(step.ledger, own)
            if step.fails and job["n"] % step.fails == 0:
                raise ValueError(step.message)
            return {**step.writes, **({step.saw: {"id": own} | {**job} | {"id": own}} if step.saw else {})}

        return function


def _their_options(url: str) -> dict[str, object]:
    """Of its Redis client, which takes no URL of a socket."""
    place = redis.Redis.from_url(url).connection_pool.connection_kwargs
    socket = {"path": place["path"]} if "path" in place else {"host": place["host"], "port": place["port"]}
    login = {name: place[name] for name in ("username", "password") if place.get(name)}
    return {"socket": socket, "database": place.get("db") or 0, **login}


def _their_queue(queue: Queue) -> dict[str, object]:
    return {
        "queueName": queue.name,
        "nextQueueName": queue.next_queue,
        "attributesToGet": queue.attributes_to_get,
        "children": [_their_queue(child) for child in queue.children],
    }


def _without_notes(value: Any) -> Any:
    """Of a job, and of the jobs that are its children."""
    if isinstance(value, dict):
        return {name: _without_notes(each) for name, each in value.items() if name not in NOTE_FIELDS}
    return [_without_notes(each) for each in value] if isinstance(value, list) else value
