"""The children of a parent's queue, on both engines: the attributes about them, their parameters, their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stowhand.errors import InvalidJob
from stowhand.flows.job import FlowJob
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import RESERVED, FlowQueue


def params_at(queue: str) -> str:
    """The attribute with what the children of a parent's queue are to be given."""
    return f"children:{queue}:params"


def jobs_at(queue: str) -> str:
    """The attribute that lists the children, once there are some."""
    return f"children:{queue}:jobs"


def results_at(queue: str) -> str:
    """The attribute with what they have ended with."""
    return f"children:{queue}:results"


def checked_params(queue: FlowQueue, job: FlowJob, params: object) -> list[Any]:
    """The parameters of a parent's children; none where they are missing. Raises InvalidJob for what is no list."""
    if params is None:
        job.ctx.logger.warning(f"{params_at(queue.name)} is missing; there are no children")
        return []
    if not isinstance(params, list):
        raise InvalidJob(f"{params_at(queue.name)} is no list of objects")
    return params


def children_of(queue: FlowQueue, job: FlowJob, params: list[Any]) -> Iterator[tuple[FlowQueue, dict[str, Any], int]]:
    """The children that a parent's parameters name: queue, attributes and priority of each."""
    kinds = {kind.name: FlowQueue(f"{queue.name}:{kind.name}", kind, queue.name) for kind in queue.declared.children}
    for index, given in enumerate(params):
        kind = kinds.get(str(given.get("childName"))) if isinstance(given, Mapping) else None
        if kind is None:
            job.ctx.logger.warning(f"{params_at(queue.name)}[{index}] names no child; it is skipped")
            continue
        values = {
            name: value for name, value in given.items() if value is not None and name not in ("childName", *RESERVED)
        }
        priority = given.get("priority")
        rank = priority if type(priority) is int else job.priority
        yield kind, values, min(max(rank, 1), kind.declared.priorities)


def check_unchanged(queue: FlowQueue, before: int, now: int) -> None:
    """Raises InvalidJob where a retried parent's parameters name another number of children than it has made."""
    if before != now:
        raise InvalidJob(f"{params_at(queue.name)} has changed since the children were made")


def children_failed(failed: int, number: int, first: str, reason: object) -> str:
    """Why a parent has failed whose children must succeed."""
    return f"{failed} of {number} children failed; the first is {first}: {reason}"


def results_text(job: FlowJob, results: list[dict[str, Any]], limit: int = strict_json.SIZE_LIMIT) -> str:
    """The children's results as one attribute; none where they are too large, and are read in pages."""
    try:
        return strict_json.encode(results, what="the children's results", limit=limit)
    except InvalidJob as error:
        job.ctx.logger.warning(f"{error}: they are left apart, to be read by get_children")
        return "[]"
