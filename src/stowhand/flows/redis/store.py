"""Queues of a flow in Redis, as the store of a worker. Each operation is one script, which runs atomically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.redis.error_translation import NoReply
from stowhand.flows.redis.heartbeats import RedisHeartbeats, resets_of
from stowhand.flows.redis.layout import FIRST_FIELDS, Keys, QueueLocation
from stowhand.flows.redis.server import Server, take_queues
from stowhand.flows.redis.settlements import Settlements
from stowhand.flows.redis.values import readable
from stowhand.flows.redis.wakeups import ListWaiter, Timekeeper
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.observe.propagation import CORRELATION_ID, TRACE_PARENT
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.store import PART_NAMES, Capabilities, Claim, ClaimRequest, Foreign, Reply, Terms
from stowhand.retry import constant

LOCK_TIME_SECONDS = 180.0
LEASE_SECONDS = 30.0
LOCK_MARGIN_SECONDS = 2.0
"""Seconds that a lock lives longer than the job may take, where it outlives its lease."""
WAIT_TIMEOUT_SECONDS = 3.0
PAUSED_REPLY = 2
"""In the answer of ``claim.lua``."""
_FIRST = 2 + len(FIRST_FIELDS)
MAX_CLAIM = 200
"""Jobs in one step: more, and the worker no longer works while the server does."""


class FlowRecord(msgspec.Struct):
    """A job of a flow as it was claimed."""

    id: str
    """As it is written in the lists."""
    flow: str
    """The flow that it belongs to: queues may be shared."""
    priority: int
    values: dict[str, str | None]
    """JSON text by attribute: the requested ones (``None``: the job lacks it), or all of the hash."""
    retries: int = 0
    correlation_id: str | None = None
    """JSON text."""

    def carried_along(self) -> dict[str, str]:
        """The trace context and correlation id, where they are texts: other applications may have written any value."""
        known = {TRACE_PARENT: self.values.get(TRACE_PARENT), CORRELATION_ID: self.correlation_id}
        values = {name: readable(text) for name, text in known.items()}
        return {name: value for name, value in values.items() if isinstance(value, str)}


class FlowStore:
    """One queue of a flow. ``lock_time``, ``wait_timeout``, ``lease``: seconds. ``reasons``: by job id and token, why a
    job waits.

    ``lease``: how long a worker that sends no heartbeat keeps its jobs. In the classic layout a lock lives for the
    ``lock_time`` nevertheless, as workers of the original implementation expect.

    Claims come by priority; a claim's ``task`` is the queue's full name. Nothing is connected before it is used.
    """

    enclosing = None
    jobs = transactions = inspect = admin = operate = timetable = results = None
    schema = settings = connections = flows = notices = None
    """Creating jobs, looking at them and retrying them are the flow's."""
    capabilities = Capabilities(absent=dict.fromkeys(PART_NAMES, "jobs of a flow are made and looked at by its Flow"))

    def __init__(
        self,
        server: Server,
        shape: FlowShape,
        queue: FlowQueue,
        *,
        lock_time: float = LOCK_TIME_SECONDS,
        wait_timeout: float = WAIT_TIMEOUT_SECONDS,
        lease: float = LEASE_SECONDS,
        reasons: dict[tuple[str, str], str] | None = None,
    ) -> None:
        self._server = server
        self.keys = Keys(shape)
        self._queue = QueueLocation(self.keys, queue)
        self._settlements = Settlements(server, self._queue, {} if reasons is None else reasons)
        self._waiter = ListWaiter(server, self._queue.bases, wait_timeout)
        self._timekeeper = Timekeeper(server, self._queue)
        backoff = queue.declared.backoff
        self._lock = 0 if self.keys.is_lasting else round((lock_time + LOCK_MARGIN_SECONDS) * 1000)
        self.terms = Terms(lease=lease, backoff=backoff or constant(0.0))
        """The flow's terms for its workers."""
        self._dry = self._no_suspects = self._worked_off = False
        """The last claim has answered the next question already."""

    @property
    def description(self) -> str:
        """Where it is, for people; without a password."""
        return str(self._server.address)

    async def open(self) -> None:
        """Connect. Raises StoreUnreachable, and ConfigurationError where the address or the login is wrong, or a queue
        is another flow's.
        """
        await self._server.ask(lambda: self._server.client.ping())
        await take_queues(self.keys, self._server)
        self._waiter.open()

    async def close(self) -> None:
        """Let every connection go. A ``wait`` ends at once."""
        await self._waiter.close()
        await self._timekeeper.close()
        await self._server.dialer.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[FlowRecord]]:
        """Due jobs, each under its lock. A limiter's jobs beyond its reservoir are delayed on the way.

        StoreUnreachable after a lost reply: ``RedisHeartbeats.abandon`` hands back what the claim may have taken.
        """
        if request.conditions or request.forbidden_flags:
            raise ConfigurationError("a queue takes no conditions, and a flow's no flags: jobs come as they stand")
        if request.suspects and self._no_suspects:
            self._no_suspects = False
            return []
        was_woken, was_idle = self._waiter.was_woken and not request.suspects, self._waiter.was_idle
        if self._worked_off and not request.suspects and not was_woken:
            # A lone job has woken an idle worker, and was taken: should there be more, the next wait hears of it.
            self._worked_off = False
            self._dry = True
            self._no_suspects = True
            self._waiter.claimed(dry=True)
            return []
        self._no_suspects = not request.suspects
        claims = await self._claim(request, was_woken=was_woken) if self._is_among(request.tasks) else []
        if not request.suspects:
            self._dry = not claims
            self._worked_off = was_idle and len(claims) == request.limit == 1
            self._waiter.claimed(dry=len(claims) < request.limit)
        return claims

    async def _claim(self, request: ClaimRequest, *, was_woken: bool) -> list[Claim[FlowRecord]]:
        """Page after page, until there are enough or there is nothing more."""
        queue = self._queue
        claims: list[Claim[FlowRecord]] = []
        lease = max(1, round(request.lease * 1000))
        lock = self._lock and max(self._lock, lease)
        apart, hint = "suspects" if request.suspects else "", "woken" if was_woken else ""
        while (room := min(request.limit - len(claims), MAX_CLAIM)) > 0:
            args = (queue.text, request.token, request.worker, room, lease, apart, lock, hint)
            try:
                moment, more, timed, suspects, *rows = await self._server.run("claim", (queue.root,), *args)
            except StoreError as error:
                if claims and not isinstance(error, NoReply):
                    return claims  # nothing was taken this time; what was taken before is not to suffer for it
                raise
            claims += claims_of(queue, request.token, int(moment), rows)
            self._waiter.is_paused = more == PAUSED_REPLY
            if suspects:
                self._no_suspects = False
            if not timed:
                self._timekeeper.start(request.worker)
            if self._waiter.is_paused or (not more and len(rows) < room):
                break
        return claims

    def _is_among(self, tasks: tuple[str, ...] | None) -> bool:
        return tasks is None or self._queue.name in tasks

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how jobs left processing, and move them on: at most 200 in one step."""
        return await self._settlements.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Seconds until the earliest waiting job is due; asked after a claim that brought nothing: ``None``, since the
        timekeeper wakes an idle worker.
        """
        if self._dry or not self._is_among(tasks):
            self._dry = False
            return None
        milliseconds = int(await self._server.run("next_due", (self._queue.root,), self._queue.text, unanswered=True))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def foreign(self) -> Foreign | None:
        """``None``: dead workers are found by a heartbeat that sees a job twice without a lock."""
        return None

    async def wait(self, timeout: float) -> bool:
        """True when something waits that the last claim has not seen; at the latest after the ``wait_timeout``."""
        return await self._waiter.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """The last blocking call was answered, or none has been made yet."""
        return self._waiter.is_listening

    def heartbeats(self) -> RedisHeartbeats:
        """With a connection of its own."""
        mine, queues = self._queue.name, self.keys.shape.all_queues()
        others = [QueueLocation(self.keys, queue) for queue in queues if queue.name != mine]
        return RedisHeartbeats(Server(self._server.address), self._queue, others, self._lock)

    async def sweep(self) -> Sequence[ResetJob]:
        """One look at the queue, however short the last one is ago, as workers take once a second."""
        found: list[ResetJob] = []
        start = 0
        while start >= 0:
            start, _, *swept = await self._server.run("sweep", (self._queue.root,), self._queue.text, start, "now")
            found += resets_of(self._queue, swept, None)
        return found


def claims_of(queue: QueueLocation, token: str, epoch: int, rows: Sequence[list[Any]]) -> list[Claim[FlowRecord]]:
    """The answer of ``claim.lua``. ``epoch``: the moment of the claim, in microseconds.

    Each job gets an epoch of its own, so that jobs that are handed back keep their order. The script takes longer than
    a microsecond for each job, so the epochs of a later claim are greater.
    """
    return [_claim(queue, token, epoch + place, row) for place, row in enumerate(rows)]


def _claim(queue: QueueLocation, token: str, epoch: int, row: list[Any]) -> Claim[FlowRecord]:
    rank, job_id = row.pop(), row.pop()
    if queue.requested is None:
        values: dict[str, str | None] = dict(zip(row[::2], row[1::2], strict=True))
        facts = [values.get(name) for name in queue.first]
    else:
        facts = row[:_FIRST]
        values = dict(zip(queue.requested, row[len(row) - len(queue.requested) :], strict=True))
    retries, resets, priority, flow, correlation_id, _ = facts
    attempts, most = _read_count(retries) + 1, queue.flow_queue.max_attempts
    return Claim(
        lease=Lease(job_id, token, epoch),
        record=FlowRecord(
            id=job_id,
            flow=queue.flow_of(flow),
            priority=_read_count(priority) or rank,
            values=values,
            retries=attempts - 1,
            correlation_id=correlation_id,
        ),
        task=queue.name,
        attempts=min(attempts, most),
        max_attempts=most,
        resets=_read_count(resets),
    )


def _read_count(text: str | None) -> int:
    """0 for what is not a number of up to nine digits: other applications may have written any value."""
    return int(text) if text is not None and len(text) < 10 and text.isascii() and text.isdigit() else 0
