"""Children of a parent's queue, on both engines: their attributes, parameters and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stowhand.errors import InvalidJob
from stowhand.flows.job import FlowJob
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import RESERVED_FIELDS, FlowQueue


def params_at(queue: str) -> str:
    """Return the name of the attribute with the parameters of a parent's children."""
    return f"children:{queue}:params"


def jobs_at(queue: str) -> str:
    """Return the name of the attribute that lists the created children."""
    return f"children:{queue}:jobs"


def results_at(queue: str) -> str:
    """Return the name of the attribute with the children's results."""
    return f"children:{queue}:results"


def checked_params(queue: FlowQueue, job: FlowJob, params: object) -> list[Any]:
    """Return the parameters of the children; none if they are missing. Raises InvalidJob unless they are a list."""
    if params is None:
        job.ctx.logger.warning(f"{params_at(queue.name)} is missing; there are no children")
        return []
    if not isinstance(params, list):
        raise InvalidJob(f"{params_at(queue.name)} is not a list of objects")
    return params


def children_of(queue: FlowQueue, job: FlowJob, params: list[Any]) -> Iterator[tuple[FlowQueue, dict[str, Any], int]]:
    """Yield the queue, attributes and priority of each child that the parameters name."""
    kinds = {kind.name: FlowQueue(f"{queue.name}:{kind.name}", kind, queue.name) for kind in queue.declared.children}
    for index, child_params in enumerate(params):
        kind = kinds.get(str(child_params.get("childName"))) if isinstance(child_params, Mapping) else None
        if kind is None:
            job.ctx.logger.warning(f"{params_at(queue.name)}[{index}] names no child; it is skipped")
            continue
        values = {
            name: value
            for name, value in child_params.items()
            if value is not None and name not in ("childName", *RESERVED_FIELDS)
        }
        priority = child_params.get("priority")
        rank = priority if type(priority) is int else job.priority
        yield kind, values, min(max(rank, 1), kind.declared.priorities)


def check_unchanged(queue: FlowQueue, before: int, now: int) -> None:
    """Raise InvalidJob if the parameters of a retried parent name more or fewer children than it has created."""
    if before != now:
        raise InvalidJob(f"{params_at(queue.name)} has changed since the children were created")


def children_failed(failed: int, number: int, first: str, reason: object) -> str:
    """Return the error of a parent whose children must succeed and have not."""
    return f"{failed} of {number} children failed; the first is {first}: {reason}"


def results_text(job: FlowJob, results: list[dict[str, Any]], limit: int = strict_json.MAX_WRITTEN_BYTES) -> str:
    """Return the children's results as one attribute; an empty list if they are too large and must be read in pages."""
    try:
        return strict_json.encode(results, what="the children's results", limit=limit)
    except InvalidJob as error:
        job.ctx.logger.warning(f"{error}: they are stored separately; read them with get_children")
        return "[]"
