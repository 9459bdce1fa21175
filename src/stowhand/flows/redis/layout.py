"""Where a flow's jobs lie in Redis: the names of its keys. Pure.

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
"""

from __future__ import annotations

from stowhand.flows.ids import Ids
from stowhand.protocols.flow_shape import FlowQueue, FlowShape, Layout


class Keys:
    """The keys of one flow. ``queue`` is a queue's full name: ``queue``, or ``parent:child``."""

    def __init__(self, shape: FlowShape) -> None:
        self.shape = shape
        self.prefix = "" if shape.hash_tag is None else f"{{{shape.hash_tag}}}:"
        """What every key begins with."""
        self._ranked = shape.layout is Layout.PRIORITY
        self.new_uuid = Ids().new
        """A uuid as text; later ones sort behind earlier ones."""
        self.lasting = self._ranked
        """Every worker is ours: so a job's keys have no time to live before it has ended, and a lock lives as long as
        the lease. Beside the original a job has one from its creation, and a lock lives as long as the lock time."""

    # -- jobs ------------------------------------------------------------------------------------

    def job(self, job_id: str) -> str:
        """The hash of a job without a parent; in the priority layout of any job."""
        return f"{self.jobs}{job_id}"

    @property
    def jobs(self) -> str:
        """The prefix of the hash keys of jobs without a parent; the id follows."""
        return f"{self.prefix}job:" if self._ranked else f"{self.prefix}job:{self.shape.name}:"

    def hashes(self, queue: FlowQueue) -> str:
        """The same for the jobs of this queue, as they stand in its lists."""
        if queue.parent is None or self._ranked:
            return self.jobs
        return f"{self.prefix}job:{queue.name}:"

    def child(self, parent: str, child: str, unique: str) -> tuple[str, str]:
        """The child's id, as it stands in lists, and the key of its hash. ``unique``: a uuid7 as text."""
        full = f"{parent}:{child}:{unique}"
        return (full if self._ranked else unique), f"{self.prefix}job:{full}"

    def listed(self, child_hash: str) -> str:
        """A child's id as it stands in lists, by the key of its hash."""
        return child_hash.removeprefix(self.jobs) if self._ranked else child_hash.rpartition(":")[2]

    def lookup(self, attribute: str, value: str) -> str:
        """The list of ids with that value of a lookup attribute."""
        return f"{self.prefix}job:{self.shape.name}:{attribute}:{value}"

    def key(self, key: str) -> str:
        """List: the id of the job created with this key, as if looked up by an attribute without a name."""
        return self.lookup("", key)

    def new_id(self) -> str:
        """The id of a new job without a parent; ids grow with time."""
        return f"{self.shape.name}:{self.new_uuid()}" if self._ranked else self.new_uuid()

    # -- queues ----------------------------------------------------------------------------------

    def base(self, queue: str, priority: int = 1) -> str:
        """What the names of a queue's lists begin with."""
        return f"{self.prefix}queue:{queue}:{priority}" if self._ranked else f"{self.prefix}queue:{queue}"

    def root(self, queue: str) -> str:
        """What the names of that begin with which there is once, and not of each priority.

        It lies with the first: so the layouts have nothing in common, where both have a queue of one name.
        """
        return self.base(queue)

    def flow(self, queue: str) -> str:
        """Text: the flow that the queue is of, in the classic layout."""
        return f"{self.root(queue)}:flow"

    def lock(self, queue: str, job_id: str) -> str:
        """Text ``<worker>:<claim token>``, which lives as long as the lease; ``<worker>+:<claim token>``, which lives
        as long as the lock time, and then the claim has a ``lease``.
        """
        return f"{self.locks(queue)}{job_id}"

    def locks(self, queue: str) -> str:
        """What the locks of a queue begin with; the id follows."""
        return f"{self.prefix}lock:{queue}:"

    def lease(self, token: str) -> str:
        """Text, there while a claim is alive whose locks outlive its lease."""
        return f"{self.prefix}lease:{token}"

    def paused(self, queue: str) -> str:
        """Text, there while the queue is paused."""
        return f"{self.root(queue)}:paused"

    def bell(self, queue: str) -> str:
        """List; a push wakes the timekeeper of the queue."""
        return f"{self.root(queue)}:bell"

    # -- counters and marks ----------------------------------------------------------------------

    def calls(self, queue: str) -> str:
        """A limiter's counter of a window begins with this; ``<group>:<window>`` follows."""
        return f"{self.prefix}counter:delay:calls:{queue}:"

    def enqueued(self, limiter: str) -> str:
        """A limiter's counter of those that wait begins with this; ``<group>`` follows."""
        return f"{self.prefix}counter:delay:enqueued:{limiter}:"

    def tickets(self, limiter: str) -> str:
        """The last ticket of a limiter that was given, ``<window>:<number>``, begins with this; ``<group>`` follows."""
        return f"{self.prefix}counter:delay:tickets:{limiter}:"

    def dead(self, token: str) -> str:
        """Mark: this claim token claims nothing more."""
        return f"{self.prefix}dead:{token}"

    def settled(self, digest: str) -> str:
        """Mark: this call of ``settle`` was executed; its value is what became of each."""
        return f"{self.prefix}settled:{digest}"
