"""Queues of a flow in Redis, as the store of a worker. Each operation is one script, which runs atomically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.flows.redis.address import Address, check_hash_tag, read_address
from stowhand.flows.redis.claiming import FlowRecord, claims_of
from stowhand.flows.redis.dialing import Client, Dialer
from stowhand.flows.redis.heartbeats import RedisHeartbeats, resets_of
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.owning import take_queues
from stowhand.flows.redis.queues import QueueAt
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.settling import Settlements
from stowhand.flows.redis.timekeeping import Timekeeper
from stowhand.flows.redis.trouble import NoReply, repeated
from stowhand.flows.redis.waiting import Waiting
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.flow_shape import FlowQueue, FlowShape
from stowhand.protocols.store import PARTS, Capabilities, Claim, ClaimRequest, Foreign, Reply, Terms
from stowhand.retry import constant

LOCK_TIME = 180.0
LEASE = 30.0
EXTRA = 2.0
"""Seconds that a lock lives longer than the job may take, where it outlives its lease."""
WAIT_TIMEOUT = 3.0
LARGEST_CLAIM = 200
"""Jobs in one step: more, and the worker no longer works while the server does."""

_CLAIM, _SWEEP, _NEXT_DUE = SCRIPTS["claim"], SCRIPTS["sweep"], SCRIPTS["next_due"]


class FlowStore:
    """Some queues of one flow, or all of them. ``lock_time``, ``wait_timeout``, ``lease``: seconds.

    ``lease``: how long a worker that sends no heartbeat keeps its jobs. In the classic layout a lock lives for the
    ``lock_time`` nevertheless, as workers of the original implementation expect.

    Claims come from the queues in the order given, from each by priority; a claim's ``task`` is the queue's full name.
    Nothing is connected before it is used. Raises ConfigurationError.
    """

    enclosing = None
    jobs = transactions = inspect = admin = operate = timetable = None
    schema = settings = connections = flows = notices = None
    """Creating jobs, looking at them and retrying them are the flow's."""
    capabilities = Capabilities(absent=dict.fromkeys(PARTS, "jobs of a flow are made and looked at by its Flow"))

    def __init__(
        self,
        place: str | Address,
        shape: FlowShape,
        queues: Sequence[FlowQueue] | None = None,
        *,
        lock_time: float = LOCK_TIME,
        wait_timeout: float = WAIT_TIMEOUT,
        lease: float = LEASE,
    ) -> None:
        self._address = read_address(place) if isinstance(place, str) else place
        check_hash_tag(self._address, shape.hash_tag)
        self.keys = Keys(shape)
        self._queues = [QueueAt(self.keys, queue) for queue in (shape.all_queues() if queues is None else queues)]
        if not self._queues:
            raise ConfigurationError(f"flow {shape.name!r}: a store of no queue has nothing to give")
        self._dialer, self._clock = Dialer(self._address), SystemClock()
        self._settlements = Settlements(self._address, self._dialer, self.keys, self._queues)
        self._waiting = Waiting(self._address, self._dialer, self._queues, wait_timeout)
        self._timekeepers = [Timekeeper(self._address, self._dialer, queue, self._clock) for queue in self._queues]
        backoff = self._queues[0].flow_queue.declared.backoff
        self._lock = 0 if self.keys.lasting else round((lock_time + EXTRA) * 1000)
        self.terms = Terms(lease=lease, backoff=backoff or constant(0.0))
        """The flow's terms for its workers."""
        self._dry = self._no_suspects = self._worked_off = False
        """The last claim has answered the next question already."""

    @property
    def description(self) -> str:
        """Where it is, for people; without a password."""
        return str(self._address)

    @property
    def reasons(self) -> dict[tuple[str, str], str]:
        """(job id, token) -> why it is to wait: what a settlement has no room for. Forgotten when it is settled."""
        return self._settlements.reasons

    async def open(self) -> None:
        """Connect. Raises StoreUnreachable, and ConfigurationError where the address or the login is wrong, or a queue
        is another flow's.
        """
        await repeated(lambda: self._client.ping(), self._address, self._clock, unanswered=True)
        await take_queues(self.keys, self._client, self._address, self._clock)
        self._waiting.open()

    async def close(self) -> None:
        """Let every connection go. A ``wait`` ends at once."""
        await self._waiting.close()
        for one in self._timekeepers:
            await one.close()
        await self._dialer.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[FlowRecord]]:
        """Due jobs, each under its lock. A limiter's jobs beyond its reservoir are delayed on the way.

        StoreUnreachable after a lost reply: ``RedisHeartbeats.abandon`` hands back what the claim may have taken.
        """
        if request.conditions or request.forbidden_flags:
            raise ConfigurationError("a queue takes no conditions, and a flow's no flags: jobs come as they stand")
        if request.suspects and request.overdue is None and self._no_suspects:
            self._no_suspects = False
            return []
        woken, alone = self._waiting.woken and not request.suspects, self._waiting.alone
        if self._worked_off and not request.suspects and not woken:
            # A lone job has woken an idle worker, and was taken: should there be more, the next wait hears of it.
            self._worked_off = False
            self._dry = True
            self._no_suspects = True
            self._waiting.claimed(dry=True)
            return []
        claims: list[Claim[FlowRecord]] = []
        self._no_suspects = not request.suspects
        for queue, timekeeper in zip(self._queues, self._timekeepers, strict=True):
            if request.tasks is None or queue.name in request.tasks:
                await self._claim_of(queue, timekeeper, request, claims, woken=woken)
            if len(claims) >= request.limit:
                break
        if not request.suspects:
            self._dry = not claims
            self._worked_off = alone and len(claims) == request.limit == 1
            self._waiting.claimed(dry=len(claims) < request.limit)
        return claims

    async def _claim_of(
        self,
        queue: QueueAt,
        timekeeper: Timekeeper,
        request: ClaimRequest,
        claims: list[Claim[FlowRecord]],
        *,
        woken: bool,
    ) -> None:
        """Page after page, until there are enough or there is nothing more."""
        lease = max(1, round(request.lease * 1000))
        lock = self._lock and max(self._lock, lease)
        apart, hint = "suspects" if request.suspects else "", "woken" if woken else ""
        overdue = "" if request.overdue is None else round(request.overdue * 1000)
        while (room := min(request.limit - len(claims), LARGEST_CLAIM)) > 0:
            args = (
                queue.text,
                request.token,
                request.worker,
                room,
                lease,
                apart,
                lock,
                overdue,
                hint,
            )

            async def ask(args: Sequence[Any] = args) -> Any:
                return await run(self._client, _CLAIM, (queue.root,), args)

            try:
                moment, more, timed, suspects, *rows = await repeated(ask, self._address, self._clock)
            except StoreError as error:
                if claims and not isinstance(error, NoReply):
                    return  # nothing was taken this time; what was taken before is not to suffer for it
                raise
            claims += claims_of(queue, request.token, int(moment), rows)
            if suspects:
                self._no_suspects = False
            if not timed:
                timekeeper.begin(request.worker)
            if not more and len(rows) < room:
                return

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how jobs left processing, and move them on: at most 200 in one step."""
        return await self._settlements.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job is due; asked after a claim that brought nothing: ``None``, since the
        timekeeper wakes an idle worker.
        """
        if self._dry:
            self._dry = False
            return None
        due = [await self._due_of(queue) for queue in self._queues if tasks is None or queue.name in tasks]
        known = [milliseconds for milliseconds in due if milliseconds >= 0]
        return min(known) / 1000 if known else None

    async def _due_of(self, queue: QueueAt) -> int:
        async def ask() -> Any:
            return await run(self._client, _NEXT_DUE, (queue.root,), (queue.text,))

        return int(await repeated(ask, self._address, self._clock, unanswered=True))

    def foreign(self) -> Foreign | None:
        """``None``: dead workers are found by a heartbeat that sees a job twice without a lock."""
        return None

    async def wait(self, timeout: float) -> bool:
        """True when something waits that the last claim has not seen; at the latest after the ``wait_timeout``."""
        return await self._waiting.wait(timeout)

    @property
    def is_listening(self) -> bool:
        """The last blocking call was answered, or none has been made yet."""
        return self._waiting.is_listening

    def heartbeats(self) -> RedisHeartbeats:
        """With a connection of its own."""
        served = {queue.name for queue in self._queues}
        others = [QueueAt(self.keys, queue) for queue in self.keys.shape.all_queues() if queue.name not in served]
        return RedisHeartbeats(self._address, self._queues, others, self._lock)

    async def sweep(self) -> Sequence[ResetJob]:
        """One look at every queue, however short the last one is ago, as workers take once a second."""
        found: list[ResetJob] = []
        for queue in self._queues:
            begin = 0
            while begin >= 0:
                begin, _, *swept = await self._sweep_of(queue, begin)
                found += resets_of(queue, swept, None)
        return found

    async def _sweep_of(self, queue: QueueAt, begin: int) -> Sequence[Any]:
        async def ask() -> Any:
            return await run(self._client, _SWEEP, (queue.root,), (queue.text, begin, "now"))

        swept: Sequence[Any] = await repeated(ask, self._address, self._clock)
        return swept

    @property
    def _client(self) -> Client:
        return self._dialer.calls()
