"""The ids that people see, and where the jobs of those ids lie. Pure.

The id of a job without a parent is the id in the lists. A child's is ``<parent>:<child>:<uuid>``, whatever the layout
writes into the lists: so every id that is shown is accepted as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stowhand.flows.new_job import lookup_values
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.values import KEY, readable
from stowhand.protocols.flow_shape import FlowQueue, Layout


class Spot(msgspec.Struct, frozen=True):
    """Where one job lies."""

    job_id: str
    """As people see it."""
    listed: str
    """As it stands in lists."""
    hash: str
    """The key of its hash."""
    child: FlowQueue | None = None
    """The queue of a child; ``None``: the job has no parent."""


class Naming:
    """Ids and hashes of one flow."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        flow = keys.shape.name
        self.children = tuple(queue for queue in keys.shape.all_queues() if queue.parent is not None)
        """The queues of children."""
        self._own = f"{flow}:" if keys.shape.layout is Layout.PRIORITY else ""
        self._hashes = [(self.hashes_of(queue), queue) for queue in self.children]

    def hashes_of(self, child: FlowQueue) -> str:
        """What the hash keys of a child's queue begin with; a uuid follows."""
        return f"{self.keys.prefix}job:{child.name}:"

    @property
    def hashes(self) -> str:
        """What the hash keys of the flow's own jobs begin with; a uuid follows."""
        return f"{self.keys.jobs}{self._own}"

    def spot(self, job_id: str) -> Spot | None:
        """``None``: no job of this flow has such an id."""
        for queue in self.children:
            unique = _behind(f"{queue.name}:", job_id)
            if unique is not None and queue.parent is not None:
                listed, key = self.keys.child(queue.parent, queue.declared.name, unique)
                return Spot(job_id, listed, key, queue)
        if _behind(self._own, job_id) is None:
            return None
        return Spot(job_id, job_id, self.keys.job(job_id))

    def is_child(self, key: object) -> bool:
        """Is that the key of a child's hash?"""
        return isinstance(key, str) and any(_behind(begin, key) is not None for begin, _ in self._hashes)

    def lookups(self, values: Mapping[str, str]) -> list[str]:
        """The lookup lists of a job with these fields and without a parent."""
        lists = [
            self.keys.lookup(name, text)
            for name in self.keys.shape.lookup_attributes
            for text in dict.fromkeys(lookup_values(readable(values.get(name))))
        ]
        key = readable(values.get(KEY))
        return [*lists, self.keys.key(key)] if isinstance(key, str) else lists

    def shown(self, queue: FlowQueue, listed: str) -> str:
        """The id that people see of one that stands in the lists of a queue."""
        if queue.parent is None or self._own:
            return listed
        return f"{queue.name}:{listed}"

    def listed_after(self, queue: FlowQueue, job_id: str) -> str | None:
        """Where a range of the queue's ids in lists begins that is after this id; ``None``: none is after it."""
        begin = f"{queue.name}:" if queue.parent is not None and not self._own else ""
        if job_id.startswith(begin):
            return f"({job_id.removeprefix(begin)}"
        return "-" if job_id < begin else None

    def shown_of_hash(self, key: str) -> str | None:
        """The id that people see of the job with this hash; ``None``: it is no job of this flow."""
        for begin, queue in self._hashes:
            unique = _behind(begin, key)
            if unique is not None:
                return f"{queue.name}:{unique}"
        unique = _behind(self.hashes, key)
        return None if unique is None else f"{self._own}{unique}"


def _behind(begin: str, text: str) -> str | None:
    """The last part of a name that begins so; ``None`` if it does not, or if more parts follow."""
    rest = text.removeprefix(begin) if text.startswith(begin) else ""
    return rest if rest and ":" not in rest else None
