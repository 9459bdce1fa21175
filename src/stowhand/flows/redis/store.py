"""Store of a worker for one queue of a flow in Redis. Each operation is one atomic script."""

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
"""Seconds that a lock outlives the lock time, in the classic layout."""
WAIT_TIMEOUT_SECONDS = 3.0
PAUSED_REPLY = 2
"""Value of ``more`` in the reply of ``claim.lua`` for a paused queue."""
_FIRST_FIELD_COUNT = 2 + len(FIRST_FIELDS)
MAX_CLAIM = 200
"""Jobs claimed by one script: with more, the worker would be idle while the server runs the script."""


class FlowRecord(msgspec.Struct):
    """A claimed job of a flow."""

    id: str
    """Id in the lists."""
    flow: str
    """Flow of the job; flows may share queues."""
    priority: int
    values: dict[str, str | None]
    """JSON text by attribute: the requested ones (``None``: the job lacks it), or all of the hash."""
    retries: int = 0
    correlation_id: str | None = None
    """JSON text."""

    def carried_along(self) -> dict[str, str]:
        """Return the trace context and correlation id if they are texts: other applications may write any value."""
        texts = {TRACE_PARENT: self.values.get(TRACE_PARENT), CORRELATION_ID: self.correlation_id}
        values = {name: readable(text) for name, text in texts.items()}
        return {name: value for name, value in values.items() if isinstance(value, str)}


class FlowStore:
    """Store of one queue of a flow. ``lock_time``, ``wait_timeout`` and ``lease`` are seconds.

    ``lease``: how long a worker that sends no heartbeat keeps its jobs. In the classic layout a lock nevertheless lives
    for the ``lock_time``, as workers of the original implementation expect. ``reasons``: why jobs wait, by job id and
    token.

    Jobs are claimed by priority; a claim's ``task`` is the queue's full name. The store connects on first use.
    """

    enclosing = None
    jobs = transactions = inspect = admin = operate = timetable = results = workflows = None
    schema = settings = connections = flows = notices = None
    """The flow itself creates, inspects and retries jobs."""
    capabilities = Capabilities(absent=dict.fromkeys(PART_NAMES, "the Flow creates and inspects jobs of a flow"))

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
        """Lease and backoff for workers."""
        # What the last claim has shown, so that the next call needs no script.
        self._was_empty = False
        self._has_no_suspects = False
        self._is_probably_empty = False

    @property
    def description(self) -> str:
        """The server's address without a password, for display."""
        return str(self._server.address)

    async def open(self) -> None:
        """Connect. Raise StoreUnreachable, or ConfigurationError if a queue belongs to another flow."""
        await self._server.ask(lambda: self._server.client.ping())
        await take_queues(self.keys, self._server)
        self._waiter.open()

    async def close(self) -> None:
        """Close every connection. A running ``wait`` returns at once."""
        await self._waiter.close()
        await self._timekeeper.close()
        await self._server.dialer.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[FlowRecord]]:
        """Claim due jobs and lock them. Jobs beyond a limiter's reservoir are delayed instead.

        After a lost reply it raises StoreUnreachable; ``RedisHeartbeats.abandon`` returns the jobs that it may have
        claimed to the queue.
        """
        if request.conditions or request.forbidden_flags:
            raise ConfigurationError("a queue supports no conditions, and a flow no flags: jobs come in their order")
        if request.suspects and self._has_no_suspects:
            self._has_no_suspects = False
            return []
        was_woken = self._waiter.was_woken and not request.suspects
        was_idle = self._waiter.was_idle
        if self._is_probably_empty and not request.suspects and not was_woken:
            # One job woke the idle worker, and the last claim took it. If more jobs come, the next wait returns.
            self._is_probably_empty = False
            self._was_empty = True
            self._has_no_suspects = True
            self._waiter.claimed(dry=True)
            return []
        self._has_no_suspects = not request.suspects
        claims = await self._claim(request, was_woken=was_woken) if self._is_among(request.tasks) else []
        if not request.suspects:
            self._was_empty = not claims
            self._is_probably_empty = was_idle and len(claims) == request.limit == 1
            self._waiter.claimed(dry=len(claims) < request.limit)
        return claims

    async def _claim(self, request: ClaimRequest, *, was_woken: bool) -> list[Claim[FlowRecord]]:
        """Claim page after page, until the request is satisfied or no due job is left."""
        queue = self._queue
        claims: list[Claim[FlowRecord]] = []
        lease = max(1, round(request.lease * 1000))
        lock = self._lock and max(self._lock, lease)
        apart = "suspects" if request.suspects else ""
        hint = "woken" if was_woken else ""
        while (room := min(request.limit - len(claims), MAX_CLAIM)) > 0:
            args = (queue.text, request.token, request.worker, room, lease, apart, lock, hint)
            try:
                moment, more, timed, suspects, *rows = await self._server.run("claim", (queue.root,), *args)
            except StoreError as error:
                if claims and not isinstance(error, NoReply):
                    return claims  # this page claimed nothing; the jobs of the pages before can run
                raise
            claims += claims_of(queue, request.token, int(moment), rows)
            self._waiter.is_paused = more == PAUSED_REPLY
            if suspects:
                self._has_no_suspects = False
            if not timed:
                self._timekeeper.start(request.worker)
            if self._waiter.is_paused or (not more and len(rows) < room):
                break
        return claims

    def _is_among(self, tasks: tuple[str, ...] | None) -> bool:
        return tasks is None or self._queue.name in tasks

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record the outcomes of jobs and move the jobs on, at most 200 in one script."""
        return await self._settlements.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest delayed job is due.

        After a claim without jobs it is ``None``: the timekeeper wakes an idle worker.
        """
        if self._was_empty or not self._is_among(tasks):
            self._was_empty = False
            return None
        milliseconds = int(await self._server.run("next_due", (self._queue.root,), self._queue.text, unanswered=True))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def foreign(self) -> Foreign | None:
        """Return ``None``: a heartbeat finds the jobs of lost workers, when it sees them without a lock twice."""
        return None

    async def wait(self, timeout: float) -> bool:
        """Wait for a job that the last claim has not seen, for at most the ``wait_timeout``. True if there is one."""
        return await self._waiter.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """Whether the last blocking call got a reply, or none has been made yet."""
        return self._waiter.is_listening

    def heartbeats(self) -> RedisHeartbeats:
        """Return heartbeats with their own connection."""
        queues = self.keys.shape.all_queues()
        others = [QueueLocation(self.keys, queue) for queue in queues if queue.name != self._queue.name]
        return RedisHeartbeats(Server(self._server.address), self._queue, others, self._lock)

    async def sweep(self) -> Sequence[ResetJob]:
        """Sweep the queue once now, however recent the last sweep is. Return the reset jobs."""
        reset_jobs: list[ResetJob] = []
        start = 0
        while start >= 0:
            start, _, *swept = await self._server.run("sweep", (self._queue.root,), self._queue.text, start, "now")
            reset_jobs += resets_of(self._queue, swept, None)
        return reset_jobs


def claims_of(queue: QueueLocation, token: str, epoch: int, rows: Sequence[list[Any]]) -> list[Claim[FlowRecord]]:
    """Convert the reply of ``claim.lua``. ``epoch``: the time of the claim, in microseconds.

    Each job gets its own epoch, so that jobs that return to the queue keep their order. The script takes longer than a
    microsecond for each job, so the epochs of a later claim are greater.
    """
    return [_claim(queue, token, epoch + number, row) for number, row in enumerate(rows)]


def _claim(queue: QueueLocation, token: str, epoch: int, row: list[Any]) -> Claim[FlowRecord]:
    rank, job_id = row.pop(), row.pop()
    if queue.requested is None:
        values: dict[str, str | None] = dict(zip(row[::2], row[1::2], strict=True))
        fields = [values.get(name) for name in queue.first]
    else:
        fields = row[:_FIRST_FIELD_COUNT]
        values = dict(zip(queue.requested, row[len(row) - len(queue.requested) :], strict=True))
    retries, resets, priority, flow, correlation_id, _ = fields
    attempts = _read_count(retries) + 1
    max_attempts = queue.flow_queue.max_attempts
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
        attempts=min(attempts, max_attempts),
        max_attempts=max_attempts,
        resets=_read_count(resets),
    )


def _read_count(text: str | None) -> int:
    """Parse a count; 0 unless it is a number of up to nine digits: other applications may write any value."""
    return int(text) if text is not None and len(text) < 10 and text.isascii() and text.isdigit() else 0
