"""One queue of a flow as the scripts know it: where its jobs lie and its rules, as JSON (``lua/_queue.lua``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.flows.redis.layout import Keys
from stowhand.protocols.flow_shape import FlowQueue, Layout, Limiter

FIRST_FIELDS = ("priority", "flowName", "correlationId", "delay")
"""What a claim reads of every job, after the retries and resets of the queue."""


class QueueAt:
    """A queue and where it lies. Made once; ``text`` goes with every call of a script."""

    def __init__(self, keys: Keys, queue: FlowQueue) -> None:
        self.keys = keys
        self.flow_queue = queue
        self.bases = bases_of(keys, queue)
        self.root = keys.root(queue.name)
        self._quoted = msgspec.json.encode(keys.shape.name).decode()
        wanted = queue.declared.attributes_to_get
        self.wanted = None if wanted is None else tuple(dict.fromkeys(wanted))
        """Attributes that the worker function gets; ``None``: all."""
        self.first = (f"retries:{queue.name}", f"resets:{queue.name}", *FIRST_FIELDS)
        """What a claim looks at itself."""
        self.fields = None if self.wanted is None else (*self.first, *self._group(), *self.wanted)
        self.described = self._described()
        self.quoted = msgspec.json.encode(queue.name).decode()
        """Its name as JSON text."""
        self.text = msgspec.json.encode(self.described).decode()

    @property
    def name(self) -> str:
        """Of the queue, in full."""
        return self.flow_queue.name

    def flow_of(self, quoted: str | None) -> str:
        """The flow's name of a job's hash, which is JSON text."""
        if quoted is None or quoted == self._quoted:
            return self.keys.shape.name
        try:
            return msgspec.json.decode(quoted, type=str)
        except (msgspec.MsgspecError, UnicodeError):
            return self.keys.shape.name

    def _group(self) -> tuple[str, ...]:
        limiter = self.flow_queue.declared.limiter
        return () if limiter is None or limiter.group_by is None else (limiter.group_by,)

    def _described(self) -> dict[str, Any]:
        keys, queue = self.keys, self.flow_queue
        shape, change = keys.shape, queue.declared.priority_change
        own = queue.parent is None
        said: dict[str, Any] = {
            "name": queue.name,
            "flow": shape.name,
            "ranked": shape.layout is Layout.PRIORITY,
            "lasting": keys.lasting,
            "prefix": keys.prefix,
            "found": keys.lookup("", "")[:-1],
            "lookups": list(shape.lookup_attributes) if own else [],
            "parents": [each.name for each in shape.queues if each.children] if own else [],
            "root": self.root,
            "bases": self.bases,
            "hashes": keys.hashes(queue),
            "locks": keys.locks(queue.name),
            "dead": keys.dead(""),
            "allowed_resets": queue.allowed_resets,
            "change": dict(change) if isinstance(change, Mapping) else change,
            "key_life": round(shape.key_life * 1000),
            "fields": self.fields or False,
        }
        if not keys.lasting:
            said["leases"] = keys.lease("")
        if queue.parent is not None:
            above = shape.find_queue(queue.parent)
            said["parent"] = {
                "name": above.name,
                "hashes": keys.hashes(above),
                "bases": bases_of(keys, above),
            }
        if queue.declared.limiter is not None:
            said["limiter"] = self._limiter(queue.declared.limiter)
        return said

    def _limiter(self, limiter: Limiter) -> dict[str, Any]:
        reason = f"limiter: {limiter.reservoir} jobs in {limiter.interval:g} s"
        return {
            "reservoir": limiter.reservoir,
            "interval": round(limiter.interval * 1000),
            "group": limiter.group_by or False,
            "calls": self.keys.calls(self.name),
            "enqueued": self.keys.enqueued(limiter.id or self.name),
            "tickets": self.keys.tickets(limiter.id or self.name),
            "reason": msgspec.json.encode(reason).decode(),
        }


def bases_of(keys: Keys, queue: FlowQueue) -> list[str]:
    """What the names of the lists of each priority begin with, the first served first."""
    return [keys.base(queue.name, rank) for rank in range(1, queue.declared.priorities + 1)]
