"""An engine of a flow whose creating is a span: what is created through it carries the context of its span along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from opentelemetry.trace import Tracer

from stowhand.observe.enqueue_span import EnqueueSpan
from stowhand.protocols.propagation import CORRELATION


class TracedEngine:
    """Everything but creating is the engine's own. From here on its jobs carry a context from step to step."""

    def __init__(self, engine: Any, tracer: Tracer) -> None:
        self._engine, self._tracer = engine, tracer
        self._task = engine.task(engine.shape.entry)
        engine.carries = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, job: Any) -> str:
        """``enqueue <task>``: the task is that of the first queue."""
        span = EnqueueSpan(self._tracer, self._task)
        with span.current():
            job_id: str = await self._engine.create(_loaded(span, job))
            span.made(job_id)
            return job_id

    async def create_many(self, jobs: Sequence[Any]) -> Sequence[str]:
        """One span for all of them."""
        span = EnqueueSpan(self._tracer, self._task)
        with span.current():
            ids: Sequence[str] = await self._engine.create_many([_loaded(span, job) for job in jobs])
            span.made_many(len(ids))
            return ids


def _loaded(span: EnqueueSpan, job: Any) -> Any:
    """Its correlation id is its own: it need not be the one that is bound here."""
    return msgspec.structs.replace(job, carried=span.carried() | {CORRELATION: job.correlation_id})
