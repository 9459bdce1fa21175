"""The keys of a flow's lists in Redis, which the scripts name by themselves: for tests that look inside."""

from __future__ import annotations

from stowhand.flows.redis.layout import Keys


class FlowKeys(Keys):
    """``queue`` is a queue's full name."""

    def waiting(self, queue: str, priority: int = 1) -> str:
        """List; the head is served first."""
        return f"{self.base(queue, priority)}:waiting"

    def processing(self, queue: str, priority: int = 1) -> str:
        """List; the head was claimed first."""
        return f"{self.base(queue, priority)}:processing"

    def delayed(self, queue: str, priority: int = 1) -> str:
        """Sorted set; the score is when the job is ready."""
        return f"{self.base(queue, priority)}:delayed"

    def parked(self, queue: str, priority: int = 1) -> str:
        """Sorted set of parents that wait for children; the score is when the sweep counts them next."""
        return f"{self.base(queue, priority)}:parked"

    def unlocked(self, queue: str, priority: int = 1) -> str:
        """Sorted set of ids seen in processing without a lock; the score is when first."""
        return f"{self.base(queue, priority)}:unlocked"

    def suspects(self, queue: str) -> str:
        """List of ids whose workers died twice: they run apart."""
        return f"{self.root(queue)}:suspects"

    def swept(self, queue: str) -> str:
        """Text; while it exists the queue needs no sweep."""
        return f"{self.root(queue)}:swept"

    def moved(self, queue: str, priority: int = 1) -> str:
        """List of ids that have woken an idle worker, which is about to claim them."""
        return f"{self.base(queue, priority)}:moved"

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
