"""Durable steps: what a task meets that waits for child jobs (``ctx.call``, ``ctx.map``)."""

from stowhand.tasks.workflow import ChildFailed, ChildrenFailed

__all__ = ["ChildFailed", "ChildrenFailed"]
