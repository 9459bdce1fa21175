"""Layout of a flow in Redis: names of keys, public ids, and queues as scripts read them. No input or output.

                       classic                                  priority
    a job's hash       job:<flow>:<id>                          job:<id>          (its id begins with <flow>:)
    a child's hash     job:<parent>:<child>:<uuid>              the same
    a queue's base     queue:<queue>                            queue:<queue>:<priority>
    its lists          <base>:waiting, <base>:processing
    its sorted sets    <base>:delayed, <base>:parked, <base>:unlocked           scores are milliseconds since the epoch
    once per queue     at its first priority: <base>:suspects, <base>:swept; classic: <base>:flow
    moved jobs         <base>:moved                         taken from waiting for a worker that was idle
    a lock             lock:<queue>:<id>                    classic: and lease:<token of its claim>
    the timekeeper     <root>:timer, <root>:bell, <base>:lent    (due.lua)

With a hash tag every key begins with ``{tag}:``.

The public id of a job without a parent is its id in the lists. The public id of a child is ``<parent>:<child>:<uuid>``
in both layouts, whatever the lists contain. Arguments are always public ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.flows.new_job import Ids
from stowhand.flows.redis.values import children_again, readable
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout, Limiter

FIRST_FIELDS = ("priority", "flowName", "correlationId", "delay")
"""Fields that a claim reads of every job, after the retries and resets of the queue."""


class JobLocation(msgspec.Struct, frozen=True):
    """Location of one job."""

    job_id: str
    """The public id."""
    listed: str
    """The id in lists."""
    hash: str
    """The key of its hash."""
    child: FlowQueue | None = None
    """The queue of a child; ``None`` for a job without a parent."""


class Keys:
    """The keys and ids of one flow. ``queue`` is a queue's full name: ``queue``, or ``parent:child``."""

    def __init__(self, shape: FlowShape) -> None:
        self.shape = shape
        self.prefix = "" if shape.hash_tag is None else f"{{{shape.hash_tag}}}:"
        """Prefix of every key."""
        self.new_uuid = Ids().new
        """Create a uuid as text; later ones sort behind earlier ones."""
        self.is_lasting = shape.layout is Layout.PRIORITY
        """Whether no worker of the original implementation serves the flow.

        Then a job's keys get a time to live only when it ends, and a lock lives as long as the lease. Otherwise a job
        gets a time to live at its creation, and a lock lives for the lock time.
        """
        self._own = f"{shape.name}:" if self.is_lasting else ""
        self.jobs = f"{self.prefix}job:" if self.is_lasting else f"{self.prefix}job:{shape.name}:"
        """The prefix of the hash keys of jobs without a parent; the id follows."""
        self.children = tuple(queue for queue in shape.all_queues() if queue.parent is not None)
        """The queues of children."""
        self._child_hashes = tuple(map(self.child_hashes, self.children))

    # -- jobs ------------------------------------------------------------------------------------

    def job(self, job_id: str) -> str:
        """Return the key of the hash of a job without a parent; in the priority layout, of any job."""
        return f"{self.jobs}{job_id}"

    def hashes(self, queue: FlowQueue) -> str:
        """Return the prefix of the hash keys of a queue's jobs; the id in its lists follows."""
        return self.jobs if queue.parent is None or self.is_lasting else self.child_hashes(queue)

    def child_hashes(self, child: FlowQueue) -> str:
        """Return the prefix of the hash keys of a child's queue; a uuid follows."""
        return f"{self.prefix}job:{child.name}:"

    def child(self, queue: str, unique: str) -> tuple[str, str]:
        """Return the child's id in lists, and the key of its hash. ``unique``: a uuid7 as text."""
        full = f"{queue}:{unique}"
        return (full if self.is_lasting else unique), f"{self.prefix}job:{full}"

    def listed(self, child_hash: str) -> str:
        """Return a child's id in lists from the key of its hash."""
        return child_hash.removeprefix(self.jobs) if self.is_lasting else child_hash.rpartition(":")[2]

    def lookup(self, attribute: str, value: str) -> str:
        """Return the key of the list of ids with that value of a lookup attribute."""
        return f"{self.prefix}job:{self.shape.name}:{attribute}:{value}"

    def key(self, key: str) -> str:
        """Return the key of a list with the id of the job created with this key: a lookup without a name."""
        return self.lookup("", key)

    def new_id(self) -> str:
        """Create the id of a new job without a parent; ids grow with time."""
        return f"{self._own}{self.new_uuid()}"

    # -- public ids ------------------------------------------------------------------------------

    def location(self, job_id: str) -> JobLocation | None:
        """Return the location of a job; ``None`` if no job of this flow can have the id."""
        for queue in self.children:
            unique = _behind(f"{queue.name}:", job_id)
            if unique is not None:
                return JobLocation(job_id, *self.child(queue.name, unique), queue)
        return None if _behind(self._own, job_id) is None else JobLocation(job_id, job_id, self.job(job_id))

    def public_id(self, queue: FlowQueue, listed: str) -> str:
        """Return the public id for an id in the lists of a queue."""
        return listed if queue.parent is None or self.is_lasting else f"{queue.name}:{listed}"

    def public_id_of_hash(self, key: str) -> str | None:
        """Return the public id of the child with this hash; ``None`` if it is not a child of this flow."""
        known = any(_behind(begin, key) is not None for begin in self._child_hashes)
        return key.removeprefix(f"{self.prefix}job:") if known else None

    def is_child(self, key: object) -> bool:
        """Return whether ``key`` is the key of a child's hash."""
        return isinstance(key, str) and self.public_id_of_hash(key) is not None

    def listed_after(self, queue: FlowQueue, job_id: str) -> str | None:
        """Return the start of the range of the queue's ids behind this id; ``None`` if the range is empty."""
        begin = f"{queue.name}:" if queue.parent is not None and not self.is_lasting else ""
        if job_id.startswith(begin):
            return f"({job_id.removeprefix(begin)}"
        return "-" if job_id < begin else None

    # -- queues ----------------------------------------------------------------------------------

    def base(self, queue: str, priority: int = 1) -> str:
        """Return the prefix of the names of a queue's lists."""
        return f"{self.prefix}queue:{queue}:{priority}" if self.is_lasting else f"{self.prefix}queue:{queue}"

    def bases(self, queue: FlowQueue) -> list[str]:
        """Return the base of each priority, in the order of service."""
        return [self.base(queue.name, rank) for rank in range(1, queue.declared.priorities + 1)]

    def root(self, queue: str) -> str:
        """Return the prefix of keys that exist once for each queue, and not for each priority.

        It is the base of the first priority. So two layouts share no key, even if both have a queue of the same name.
        """
        return self.base(queue)

    def flow(self, queue: str) -> str:
        """Return the key of a text: the flow to which the queue belongs, in the classic layout."""
        return f"{self.root(queue)}:flow"

    def paused(self, queue: str) -> str:
        """Return the key of a text that exists while the queue is paused."""
        return f"{self.root(queue)}:paused"

    def bell(self, queue: str) -> str:
        """Return the key of a list; a push to it wakes the timekeeper of the queue."""
        return f"{self.root(queue)}:bell"

    def settled(self, digest: str) -> str:
        """Return the key that marks a call of ``settle`` as executed; its value is the result for each job."""
        return f"{self.prefix}settled:{digest}"


class QueueLocation:
    """A queue with its keys. Every call of a script passes ``text``."""

    def __init__(self, keys: Keys, queue: FlowQueue) -> None:
        self.keys = keys
        self.flow_queue = queue
        self.bases = keys.bases(queue)
        self.root = keys.root(queue.name)
        self._quoted = msgspec.json.encode(keys.shape.name).decode()
        requested = queue.declared.attributes_to_get
        self.requested = None if requested is None else tuple(dict.fromkeys(requested))
        """Attributes that the worker function receives; ``None``: all."""
        self.first = (f"retries:{queue.name}", f"resets:{queue.name}", *FIRST_FIELDS)
        """Fields that the claim itself needs."""
        self.fields = None if self.requested is None else (*self.first, *self._group(), *self.requested)
        self.described = self._described()
        self.quoted = msgspec.json.encode(queue.name).decode()
        """The queue's name as JSON text."""
        self.text = msgspec.json.encode(self.described).decode()

    @property
    def name(self) -> str:
        """The queue's full name."""
        return self.flow_queue.name

    def flow_of(self, quoted: str | None) -> str:
        """Return the flow of a job from its JSON text in the hash; this flow if the text names none."""
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
    """Return the rest of a text that begins with ``begin``; ``None`` without that prefix or with more parts."""
    rest = text.removeprefix(begin) if text.startswith(begin) else ""
    return rest if rest and ":" not in rest else None
