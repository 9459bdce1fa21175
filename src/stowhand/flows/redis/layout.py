"""Where a flow's jobs lie in Redis: the names of its keys, ids as people see them, queues as scripts know them. Pure.

                       classic                                  priority
    a job's hash       job:<flow>:<id>                          job:<id>          (its id begins with <flow>:)
    a child's hash     job:<parent>:<child>:<uuid>              the same
    a queue's base     queue:<queue>                            queue:<queue>:<priority>
    its lists          <base>:waiting, <base>:processing
    its sorted sets    <base>:delayed, <base>:parked, <base>:unlocked           scores are milliseconds since the epoch
    of a queue         those of its first priority: <base>:suspects, <base>:swept; classic: <base>:flow
    on its way         <base>:moved                         taken from waiting for a worker that was idle
    a lock             lock:<queue>:<id>                    classic: and lease:<token of its claim>
    the timekeeper     <root>:timer, <root>:bell, <base>:lent    (due.lua)

With a hash tag every key begins with ``{tag}:``.

The id of a job without a parent is the id in the lists. People see a child's as ``<parent>:<child>:<uuid>``, whatever
the layout writes into the lists: so every id that is shown is accepted as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.flows.new_job import Ids
from stowhand.flows.redis.values import children_again, readable
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout, Limiter

FIRST_FIELDS = ("priority", "flowName", "correlationId", "delay")
"""What a claim reads of every job, after the retries and resets of the queue."""


class JobLocation(msgspec.Struct, frozen=True):
    """Where one job lies."""

    job_id: str
    """As people see it."""
    listed: str
    """As it stands in lists."""
    hash: str
    """The key of its hash."""
    child: FlowQueue | None = None
    """The queue of a child; ``None``: the job has no parent."""


class Keys:
    """The keys and ids of one flow. ``queue`` is a queue's full name: ``queue``, or ``parent:child``."""

    def __init__(self, shape: FlowShape) -> None:
        self.shape = shape
        self.prefix = "" if shape.hash_tag is None else f"{{{shape.hash_tag}}}:"
        """What every key begins with."""
        self.new_uuid = Ids().new
        """A uuid as text; later ones sort behind earlier ones."""
        self.is_lasting = shape.layout is Layout.PRIORITY
        """Every worker is ours: so a job's keys have no time to live before it has ended, and a lock lives as long as
        the lease. Beside the original a job has one from its creation, and a lock lives as long as the lock time."""
        self._own = f"{shape.name}:" if self.is_lasting else ""
        self.jobs = f"{self.prefix}job:" if self.is_lasting else f"{self.prefix}job:{shape.name}:"
        """The prefix of the hash keys of jobs without a parent; the id follows."""
        self.children = tuple(queue for queue in shape.all_queues() if queue.parent is not None)
        """The queues of children."""
        self._child_hashes = tuple(map(self.child_hashes, self.children))

    # -- jobs ------------------------------------------------------------------------------------

    def job(self, job_id: str) -> str:
        """The hash of a job without a parent; in the priority layout of any job."""
        return f"{self.jobs}{job_id}"

    def hashes(self, queue: FlowQueue) -> str:
        """The same for the jobs of this queue, as they stand in its lists."""
        return self.jobs if queue.parent is None or self.is_lasting else self.child_hashes(queue)

    def child_hashes(self, child: FlowQueue) -> str:
        """What the hash keys of a child's queue begin with; a uuid follows."""
        return f"{self.prefix}job:{child.name}:"

    def child(self, queue: str, unique: str) -> tuple[str, str]:
        """The child's id, as it stands in lists, and the key of its hash. ``unique``: a uuid7 as text."""
        full = f"{queue}:{unique}"
        return (full if self.is_lasting else unique), f"{self.prefix}job:{full}"

    def listed(self, child_hash: str) -> str:
        """A child's id as it stands in lists, by the key of its hash."""
        return child_hash.removeprefix(self.jobs) if self.is_lasting else child_hash.rpartition(":")[2]

    def lookup(self, attribute: str, value: str) -> str:
        """The list of ids with that value of a lookup attribute."""
        return f"{self.prefix}job:{self.shape.name}:{attribute}:{value}"

    def key(self, key: str) -> str:
        """List: the id of the job created with this key, as if looked up by an attribute without a name."""
        return self.lookup("", key)

    def new_id(self) -> str:
        """The id of a new job without a parent; ids grow with time."""
        return f"{self._own}{self.new_uuid()}"

    # -- ids that people see ---------------------------------------------------------------------

    def location(self, job_id: str) -> JobLocation | None:
        """``None``: no job of this flow has such an id."""
        for queue in self.children:
            unique = _behind(f"{queue.name}:", job_id)
            if unique is not None:
                return JobLocation(job_id, *self.child(queue.name, unique), queue)
        return None if _behind(self._own, job_id) is None else JobLocation(job_id, job_id, self.job(job_id))

    def public_id(self, queue: FlowQueue, listed: str) -> str:
        """The id that people see of one that stands in the lists of a queue."""
        return listed if queue.parent is None or self.is_lasting else f"{queue.name}:{listed}"

    def public_id_of_hash(self, key: str) -> str | None:
        """The id that people see of the child with this hash; ``None``: it is no child of this flow."""
        known = any(_behind(begin, key) is not None for begin in self._child_hashes)
        return key.removeprefix(f"{self.prefix}job:") if known else None

    def is_child(self, key: object) -> bool:
        """Is that the key of a child's hash?"""
        return isinstance(key, str) and self.public_id_of_hash(key) is not None

    def listed_after(self, queue: FlowQueue, job_id: str) -> str | None:
        """Where a range of the queue's ids in lists begins that is after this id; ``None``: none is after it."""
        begin = f"{queue.name}:" if queue.parent is not None and not self.is_lasting else ""
        if job_id.startswith(begin):
            return f"({job_id.removeprefix(begin)}"
        return "-" if job_id < begin else None

    # -- queues ----------------------------------------------------------------------------------

    def base(self, queue: str, priority: int = 1) -> str:
        """What the names of a queue's lists begin with."""
        return f"{self.prefix}queue:{queue}:{priority}" if self.is_lasting else f"{self.prefix}queue:{queue}"

    def bases(self, queue: FlowQueue) -> list[str]:
        """The bases of each priority, the first served first."""
        return [self.base(queue.name, rank) for rank in range(1, queue.declared.priorities + 1)]

    def root(self, queue: str) -> str:
        """What the names of that begin with which there is once, and not of each priority.

        It lies with the first: so the layouts have nothing in common, where both have a queue of one name.
        """
        return self.base(queue)

    def flow(self, queue: str) -> str:
        """Text: the flow that the queue is of, in the classic layout."""
        return f"{self.root(queue)}:flow"

    def paused(self, queue: str) -> str:
        """Text, there while the queue is paused."""
        return f"{self.root(queue)}:paused"

    def bell(self, queue: str) -> str:
        """List; a push wakes the timekeeper of the queue."""
        return f"{self.root(queue)}:bell"

    def settled(self, digest: str) -> str:
        """Mark: this call of ``settle`` was executed; its value is what became of each."""
        return f"{self.prefix}settled:{digest}"


class QueueLocation:
    """A queue and where it lies. Made once; ``text`` goes with every call of a script."""

    def __init__(self, keys: Keys, queue: FlowQueue) -> None:
        self.keys = keys
        self.flow_queue = queue
        self.bases = keys.bases(queue)
        self.root = keys.root(queue.name)
        self._quoted = msgspec.json.encode(keys.shape.name).decode()
        requested = queue.declared.attributes_to_get
        self.requested = None if requested is None else tuple(dict.fromkeys(requested))
        """Attributes that the worker function gets; ``None``: all."""
        self.first = (f"retries:{queue.name}", f"resets:{queue.name}", *FIRST_FIELDS)
        """What a claim looks at itself."""
        self.fields = None if self.requested is None else (*self.first, *self._group(), *self.requested)
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
        flow = None if quoted == self._quoted else readable(quoted)
        return flow if isinstance(flow, str) else self.keys.shape.name

    def _group(self) -> tuple[str, ...]:
        limiter = self.flow_queue.declared.limiter
        return () if limiter is None or limiter.group_by is None else (limiter.group_by,)

    def _described(self) -> dict[str, Any]:
        keys, queue = self.keys, self.flow_queue
        shape, change = keys.shape, queue.declared.priority_change
        own = queue.parent is None
        description: dict[str, Any] = {
            "name": queue.name,
            "flow": shape.name,
            "ranked": keys.is_lasting,
            "lasting": keys.is_lasting,
            "prefix": keys.prefix,
            "found": keys.lookup("", "")[:-1],
            "lookups": list(shape.lookup_attributes) if own else [],
            "parents": [each.name for each in shape.queues if each.children] if own else [],
            "root": self.root,
            "bases": self.bases,
            "hashes": keys.hashes(queue),
            "allowed_resets": queue.allowed_resets,
            "change": dict(change) if isinstance(change, Mapping) else change,
            "key_life": round(shape.key_life * 1000),
            "fields": self.fields or False,
        }
        if queue.parent is not None:
            above = shape.find_queue(queue.parent)
            description["parent"] = {
                "name": above.name,
                "hashes": keys.hashes(above),
                "bases": keys.bases(above),
            }
        if queue.declared.children_must_succeed:
            description["again"] = children_again(queue)
        if queue.declared.limiter is not None:
            description["limiter"] = self._limiter(queue.declared.limiter)
        return description

    def _limiter(self, limiter: Limiter) -> dict[str, Any]:
        reason = f"limiter: {limiter.reservoir} jobs in {limiter.interval:g} s"
        return {
            "reservoir": limiter.reservoir,
            "interval": round(limiter.interval * 1000),
            "group": limiter.group_by or False,
            "id": limiter.id or self.name,
            "reason": msgspec.json.encode(reason).decode(),
        }


def _behind(begin: str, text: str) -> str | None:
    """The last part of a name that begins so; ``None`` if it does not, or if more parts follow."""
    rest = text.removeprefix(begin) if text.startswith(begin) else ""
    return rest if rest and ":" not in rest else None
