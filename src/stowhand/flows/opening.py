"""The engine for a place: Redis, or any queue store of ours."""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.flows.engine import Engine
from stowhand.protocols.flow_shape import FlowShape
from stowhand.protocols.queue_store import QueueStore
from stowhand.stores.opening import SCHEMES

REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
"""What a URL of Redis begins with; a kind may follow, as in ``redis+cluster``."""
PLACES = "redis://, rediss://, unix:///, redis+sentinel://, redis+cluster://, postgresql://, sqlite:///"


def engine_at(place: str | QueueStore, shape: FlowShape) -> Engine:
    """Not connected yet. Raises ConfigurationError."""
    if isinstance(place, str) and place.partition(":")[0].partition("+")[0] in REDIS:
        try:
            from stowhand.flows.redis import RedisEngine
        except ImportError as error:
            raise ConfigurationError(f"Redis needs a driver: pip install 'stowhand[redis]' ({error})") from error
        return RedisEngine(place, shape)
    if isinstance(place, str) and not place.startswith(SCHEMES):
        scheme = place.partition(":")[0]
        raise ConfigurationError(f"flow {shape.name!r}: no place at {scheme!r}; its URL begins with one of: {PLACES}")
    from stowhand.flows.queue import QueueEngine

    return QueueEngine(place, shape)
