"""Which flow owns a queue. In the classic layout an id in a list does not name its flow: a worker of another flow would
take it for a deleted job. So there each queue belongs to one flow, and a mark in Redis names it.
"""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.server import Server
from stowhand.protocols.flow_shape import Layout


async def take_queues(keys: Keys, server: Server) -> None:
    """Mark every queue of the flow as its own. Raises ConfigurationError where one is another flow's."""
    shape = keys.shape
    if shape.layout is not Layout.CLASSIC:
        return
    queues = [queue.name for queue in shape.queues]
    marks = [keys.flow(name) for name in queues]
    taken = await server.run("own", marks[:1], shape.name, *marks, unanswered=True)
    if taken:
        place, owner = taken
        raise ConfigurationError(
            f"{server.address}: queue {queues[place - 1]!r} belongs to flow {owner!r}: in the classic layout two flows"
            f" that share a queue lose each other's jobs. Give flow {shape.name!r} a queue of another name, another"
            f" database, or both layout='priority'; if there is no flow {owner!r} any more: DEL {marks[place - 1]}"
        )
