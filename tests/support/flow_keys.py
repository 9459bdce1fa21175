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
