"""Which flow owns a queue. In the classic layout an id in a list does not name its flow: a worker of another flow would
take it for a deleted job. So there each queue belongs to one flow, and a mark in Redis names it.
"""

from __future__ import annotations

from typing import Any

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError
from stowhand.flows.redis.address import Address
from stowhand.flows.redis.dialing import Client
from stowhand.flows.redis.layout import Keys
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.trouble import repeated
from stowhand.protocols.flow_shape import Layout

_OWN = SCRIPTS["own"]


async def take_queues(keys: Keys, client: Client, address: Address, clock: Clock) -> None:
    """Mark every queue of the flow as its own. Raises ConfigurationError where one is another flow's."""
    shape = keys.shape
    if shape.layout is not Layout.CLASSIC:
        return
    queues = [queue.name for queue in shape.queues]
    marks = [keys.flow(name) for name in queues]

    async def ask() -> Any:
        return await run(client, _OWN, (marks[0],), (shape.name, *marks))

    taken = await repeated(ask, address, clock, unanswered=True)
    if taken:
        place, owner = taken
        raise ConfigurationError(
            f"{address}: queue {queues[place - 1]!r} belongs to flow {owner!r}: in the classic layout two flows that"
            f" share a queue lose each other's jobs. Give flow {shape.name!r} a queue of another name, another"
            f" database, or both layout='priority'; if there is no flow {owner!r} any more: DEL {marks[place - 1]}"
        )
