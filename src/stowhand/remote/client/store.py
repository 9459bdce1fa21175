"""Store that a server lends: each call is one request.

An idle worker waits in one long poll (``POST /v1/due``) that claims nothing. The reply contains the server's count of
wake-ups, so that none is missed between two polls, or between a poll and a claim. A claim never waits at the server:
its number of free slots could be outdated when it returns, and an interrupted claim may already have taken jobs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable
from stowhand.events import Events
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.flow_tables import FlowTables
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.operator import Operator
from stowhand.protocols.options import OUTAGE_BACKOFF
from stowhand.protocols.queue_store import Administrator, Inspector, Notices, Schema, Timetable, require_part
from stowhand.protocols.store import PART_NAMES, Capabilities, Foreign, Terms
from stowhand.remote.client.attempt import RemoteAttempt
from stowhand.remote.client.claims import HeldProofs, HttpClaims
from stowhand.remote.client.heartbeats import HttpHeartbeats, QueueHeartbeats
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.jobs import HttpJobs, HttpResults
from stowhand.remote.client.options import HttpOptions, base_url_of
from stowhand.remote.client.workflows import HttpWorkflows
from stowhand.remote.wire import DUE_VERB, MAX_WAIT_SECONDS, TERMS_VERB, DueRequest, TermsReply

MAX_OPEN_ATTEMPTS = 5
"""Attempts of ``open``, within 1.5 seconds, before an unreachable server is an error."""


class HttpStore:
    """Jobs of a queue, or records of a user's table, that ``stowhand serve`` lends at ``url``.

    For use on one event loop, and by one thread for its heartbeats. Raises ConfigurationError for an invalid URL, and
    for a token that would be sent unencrypted.
    """

    transactions = settings = connections = None
    """Parts that a lent store does not have."""

    def __init__(self, url: str, options: HttpOptions | None = None) -> None:
        self._options = options or HttpOptions()
        self._base = base_url_of(url, self._options)
        self._clock = SystemClock()
        self._http = HttpCaller(self._base, self._options, self._clock)
        self._proofs = HeldProofs()
        self._claims = HttpClaims(self._http, self._proofs, self._options)
        self.claim = self._claims.claim
        self.settle = self._claims.settle
        self.description = self._base
        """Address without the token."""
        self.capabilities = Capabilities(rations=True, lent=True, has_queues=True, absent=_absent(self._base))
        self.jobs = HttpJobs(self._http, self._options)
        self.results = HttpResults(self._http)
        self.workflows = HttpWorkflows(self._http, self._proofs)
        self.notices = Notices()
        """Unused: replies to polls report wake-ups (``is_listening``), and the server logs the store's warnings."""
        self._terms_reply: TermsReply | None = None
        self.terms: Terms | None = None
        """Terms of a lent table; ``None`` for a queue, and until the store is open."""
        self._wake_count: str | None = None
        self._is_listening = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # -- worker ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Request the terms of the lent store. Repeat this a few times in case the server is starting or busy.

        Raises StoreUnreachable, and StoreError if the token is refused.
        """
        terms_reply = await self._request_terms()
        if self._options.record is not None and terms_reply.kind == "queue":
            raise ConfigurationError(f"{self._base} lends jobs of a queue, not records of a table: leave out record=…")
        self._terms_reply, self.terms = terms_reply, _terms_of(terms_reply)

    async def _request_terms(self) -> TermsReply:
        for failures in range(1, MAX_OPEN_ATTEMPTS):
            try:
                return await self._http.get(TERMS_VERB)
            except StoreUnreachable:
                await self._clock.sleep(OUTAGE_BACKOFF(failures))
        return await self._http.get(TERMS_VERB)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest waiting job of these tasks and queues is due."""
        return (await self._http.post(DUE_VERB, DueRequest(tasks=tasks, queues=queues))).seconds

    def foreign(self) -> Foreign | None:
        """Return ``None``: the server finds the expired leases of other workers."""
        return None

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up in long polls of at most 30 seconds each. Return False at the timeout."""
        while True:
            wait_seconds = min(max(timeout, 0.0), MAX_WAIT_SECONDS)
            if await self._poll(wait_seconds):
                return True
            timeout -= wait_seconds
            if timeout <= 0:
                return False

    @property
    def is_listening(self) -> bool:
        """Whether the last poll was answered, and the lent store receives wake-ups."""
        return self._is_listening

    async def _poll(self, wait_seconds: float) -> bool:
        if self._wake_count is None:
            wait_seconds = 0.0  # the first reply counts as a wake-up: earlier ones may have been missed
        try:
            due = await self._http.post(
                DUE_VERB,
                DueRequest(tasks=(), wait=wait_seconds, wake_count=self._wake_count),
                wait_seconds=wait_seconds,
            )
        except StoreError:
            self._is_listening = False
            raise
        is_woken = due.wake_count != self._wake_count
        self._wake_count, self._is_listening = due.wake_count, due.is_listening
        return is_woken

    def heartbeats(self) -> HttpHeartbeats:
        """Return heartbeats with connections of their own, and the proofs of this store's leases.

        Heartbeats of a table do not record progress. Call this after the store is open: only then is its kind known.
        """
        if self._terms_reply is not None and self._terms_reply.kind != "queue":
            return HttpHeartbeats(self._base, self._options, self._proofs)
        return QueueHeartbeats(self._base, self._options, self._proofs)

    # -- parts that are not available over HTTP ----------------------------------------------------

    @property
    def inspect(self) -> Inspector:
        return require_part(self, "inspect", None)

    @property
    def admin(self) -> Administrator:
        return require_part(self, "admin", None)

    @property
    def operate(self) -> Operator:
        return require_part(self, "operate", None)

    @property
    def timetable(self) -> Timetable:
        return require_part(self, "timetable", None)

    @property
    def schema(self) -> Schema:
        return require_part(self, "schema", None)

    @property
    def flows(self) -> FlowTables:
        return require_part(self, "flows", None)

    @property
    def enclosing(self) -> EnclosingStore:
        """This store."""
        return self

    async def validate(self, events: Events | None = None) -> None:
        """Open the store if necessary: a worker needs its terms.

        Raises StoreError if the token lacks the scope claim, since the worker could never claim a job.
        """
        if self._terms_reply is None:
            await self.open()
        with suppress(StoreUnreachable):  # an outage passes, and the worker's own calls report it
            await self._http.post(DUE_VERB, DueRequest(tasks=()))

    def around(self, attempt: Attempt[Any]) -> None:
        """Bind ``ctx.store`` for the handler if the lent store is a table."""
        if self._terms_reply is not None and self._terms_reply.logs:
            control_of(attempt).bind(RemoteAttempt(self._http, self._proofs, attempt))


def _absent(address: str) -> dict[str, str]:
    refusal = (
        f"not over HTTP; {address} only lends its jobs to workers."
        " Use a machine that reaches the store itself, with that store's own URL (postgresql://… or sqlite:///…)"
    )
    return dict.fromkeys(set(PART_NAMES) - {"jobs", "notices", "results", "workflows"}, refusal)


def _terms_of(terms_reply: TermsReply) -> Terms | None:
    if terms_reply.lease is None:
        return None
    retry_delay = terms_reply.retry_after
    return Terms(
        lease=terms_reply.lease,
        heartbeat_interval=terms_reply.heartbeat_interval,
        cancel_interval=terms_reply.cancel_interval,
        polls=terms_reply.polls,
        backoff=None if retry_delay is None else (lambda attempt: retry_delay),
    )
