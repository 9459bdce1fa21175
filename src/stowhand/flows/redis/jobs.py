"""New jobs of a flow in Redis, and jobs that are to be forgotten; each whole, in one script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stowhand.errors import OutcomeUnknown, QueueFull, StoreError, StoreUnreachable
from stowhand.flows.engine import NewFlowJob
from stowhand.flows.redis.looking import Looking
from stowhand.flows.redis.naming import Naming, Spot
from stowhand.flows.redis.owning import take_queues
from stowhand.flows.redis.queues import QueueAt
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.trouble import NoReply, translated
from stowhand.flows.redis.values import KEY
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import FlowQueue, Layout
from stowhand.protocols.propagation import TRACE_PARENT

BATCH = 200
"""Jobs that one script creates; the server does nothing else meanwhile."""
BATCH_SIZE = 512 * 1024
"""Characters of their values."""
MOST_WAITING = 1_000_000
"""Jobs that may wait in the first queue where it does not say: they are in memory, and perhaps no worker serves it."""


class RedisJobs:
    """Creates and deletes the jobs of one flow."""

    def __init__(self, naming: Naming, looking: Looking, server: Server) -> None:
        self._naming, self._keys, self._looking = naming, naming.keys, looking
        self._server = server
        self._shape = naming.keys.shape
        self._entry = QueueAt(naming.keys, self._shape.entry)
        self._ranked = self._shape.layout is Layout.PRIORITY
        most = self._shape.entry.declared.max_length
        self._most = MOST_WAITING if most is None else most
        self._life = round(self._shape.key_life * 1000)
        self._described = {queue.name: _described(naming, queue) for queue in self._shape.all_queues()}

    # -- create ----------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewFlowJob]) -> list[str]:
        """Keep them, and put them into the first queue, some hundreds in one step. Gives their ids.

        A try whose reply was lost is repeated: a job that is there by then is left as it is. Raises StoreUnreachable
        when nothing was written, OutcomeUnknown when that is not known, or some of them are there.
        """
        made: list[str] = []
        for batch in _batches([(self._keys.new_id(), job) for job in jobs]):
            try:
                made += await self._create(batch)
            except StoreError as error:
                if made:
                    raise OutcomeUnknown(
                        f"the first {len(made)} of {len(jobs)} jobs were created, then: {error}"
                    ) from error
                raise
        return made

    async def _create(self, batch: Sequence[tuple[str, NewFlowJob]]) -> Sequence[str]:
        entry, lasting = self._shape.entry.name, self._keys.lasting
        keys = [self._keys.job(batch[0][0]), *([] if self._ranked else [self._keys.flow(entry)])]
        args: list[Any] = [self._keys.jobs, self._life, "1" if lasting else "", self._shape.name]
        args += [self._keys.prefix, self._keys.root(entry), self._most, entry]
        for job_id, job in batch:
            args += self._words(job_id, job)
        unanswered = False

        async def attempt() -> Any:
            nonlocal unanswered
            try:
                with translated(self._server.address):
                    return await run(self._server.client, SCRIPTS["create"], keys, args)
            except NoReply:
                unanswered = True
                raise

        try:
            made, *ids = await self._server.ask(attempt)
        except StoreError as error:
            if unanswered:
                raise OutcomeUnknown(f"it is not known whether the jobs were created: {error}") from error
            raise
        if made < 0:
            raise QueueFull(
                f"{self._server.address}: queue {entry!r} holds as many jobs as its max_length, {self._most}: nothing"
                " was created. Start workers that serve it, or raise max_length"
            )
        if not made:
            await take_queues(self._keys, self._server)  # says whose it is by now
            raise StoreUnreachable(f"{self._server.address}: queue {entry!r} has changed hands; try again")
        return list(ids)

    def _words(self, job_id: str, job: NewFlowJob) -> Iterator[Any]:
        """As ``create.lua`` reads them."""
        fields = dict(job.values)
        if job.correlation_id is not None:
            fields["correlationId"] = strict_json.encode(job.correlation_id, what="correlation_id")
        if context := job.carried.get(TRACE_PARENT):
            fields.setdefault(TRACE_PARENT, strict_json.encode(context, what=TRACE_PARENT))
        if self._ranked:
            fields |= {"flowName": strict_json.encode(self._shape.name), "priority": str(job.priority)}
        lists = dict.fromkeys(self._keys.lookup(attribute, value) for attribute, value in job.lookups)
        key = "" if job.key is None else self._keys.key(job.key)
        if job.key is not None:
            fields[KEY] = strict_json.encode(job.key, what="key")
            lists[key] = None
        delay = 0 if job.delay is None else round(job.delay * 1000)
        yield from (job_id, self._entry.bases[job.priority - 1], delay, key, 2 * len(fields))
        for name, text in fields.items():
            yield from (name, text)
        yield len(lists)
        yield from lists

    # -- delete ----------------------------------------------------------------------------------

    async def delete(self, spot: Spot) -> bool:
        """Delete it, its children and its lookups. What runs is not interrupted, and leaves nothing behind."""
        (known,) = await self._looking.hashes([spot.hash])
        queues = [queue for queue in self._shape.all_queues() if queue.parent is None]
        job = {
            "lookups": self._naming.lookups(known),
            "queues": {queue.name: self._described[queue.name] for queue in queues},
            "parents": [queue.name for queue in queues if queue.is_parent],
            "classic": not self._ranked,
            "children": [self._described[queue.name] for queue in self._naming.children],
            "prefix": self._keys.prefix,
            "life": self._life,
        }
        text = msgspec.json.encode(job).decode()
        return bool(await self._server.run("delete", (spot.hash,), text, spot.listed))


def _batches(jobs: Sequence[tuple[str, NewFlowJob]]) -> Iterator[list[tuple[str, NewFlowJob]]]:
    batch: list[tuple[str, NewFlowJob]] = []
    size = 0
    for entry in jobs:
        more = sum(map(len, entry[1].values.values()))
        if batch and (len(batch) == BATCH or size + more > BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def _described(naming: Naming, queue: FlowQueue) -> dict[str, Any]:
    """A queue as ``delete.lua`` reads it."""
    known = QueueAt(naming.keys, queue).described
    return {
        "named": naming.hashes_of(queue),
        **{name: known[name] for name in ("root", "bases", "hashes", "limiter") if name in known},
    }
