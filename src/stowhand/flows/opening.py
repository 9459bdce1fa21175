"""The engine for a place: Redis, or any queue store of ours."""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.flow_shape import FlowShape
from stowhand.flows.engine import Engine
from stowhand.queue_store import QueueStore

REDIS = ("redis://", "rediss://", "unix://", "redis+unix://", "redis+sentinel://", "redis+cluster://")


def engine_at(place: str | QueueStore, shape: FlowShape) -> Engine:
    """Not connected yet. Raises ConfigurationError."""
    if isinstance(place, str) and place.startswith(REDIS):
        try:
            from stowhand.flows.on_redis import RedisEngine
        except ImportError as error:
            raise ConfigurationError(f"Redis needs a driver: pip install 'stowhand[redis]' ({error})") from error
        return RedisEngine(place, shape)
    from stowhand.flows.on_queue import QueueEngine

    return QueueEngine(place, shape)
