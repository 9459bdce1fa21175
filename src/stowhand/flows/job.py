"""A job of a flow, as its worker function is given it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stowhand.protocols.attempt import Attempt


class FlowJob(Mapping[str, Any]):
    """The attributes of ``attributes_to_get``, decoded: ``job["userId"]``. A listed one that the job lacks is ``None``.

    ``job.ctx`` is the attempt: ``ctx.logger``, ``ctx.canceled``, the lease.
    """

    __slots__ = ("_values", "correlation_id", "ctx", "flow", "id", "priority", "queue", "retries")

    def __init__(
        self,
        id: str,  # noqa: A002 - the document's word
        flow: str,
        queue: str,
        values: Mapping[str, Any],
        ctx: Attempt[Any],
        *,
        priority: int = 1,
        correlation_id: str | None = None,
        retries: int = 0,
    ) -> None:
        self.id = id
        self.flow = flow
        self.queue = queue
        self.ctx = ctx
        self._values = values
        self.priority = priority
        """1 is served first."""
        self.correlation_id = correlation_id
        self.retries = retries
        """How often this queue has retried the job."""

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            # This becomes the job's failure: the bare name of the attribute would not explain it.
            raise KeyError(f"{name}: no attribute of this job, or not in attributes_to_get of {self.queue}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"FlowJob({self.id!r}, {self.queue!r}, {dict(self._values)!r})"
