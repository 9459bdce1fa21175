"""Places of flows: valid ones, and errors for others."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.flows import Flow, Queue
from stowhand.flows.redis import RedisEngine

REDIS = {
    "redis://localhost": "redis://localhost:6379/0",
    "valkey://localhost": "redis://localhost:6379/0",
    "valkeys://localhost": "rediss://localhost:6379/0",
    "unix:///run/redis.sock": "unix:///run/redis.sock?db=0",
    "redis+unix:///run/redis.sock": "unix:///run/redis.sock?db=0",
    "redis+sentinel://one,two/service": "redis+sentinel://one:26379,two:26379/service/0",
    "valkey+cluster://one": "redis+cluster://one:6379",
    "rediss+cluster://one": "rediss+cluster://one:6379",
}


@pytest.mark.parametrize("place", REDIS)
def test_every_address_of_redis_is_one_of_a_flow(place: str) -> None:
    flow = Flow("demo", place, [Queue("only")], hash_tag="demo")
    assert isinstance(flow.engine, RedisEngine)
    assert flow.engine.description == REDIS[place]


@pytest.mark.parametrize("place", ["rdis://localhost", "mysql://x", "sqlite://file.db", "postgres//x", "orders.db", ""])
def test_an_unknown_place_is_refused_with_the_valid_ones(place: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"flow 'demo'.*begins with one of: redis://.*postgresql://.*sqlite:///"
    ):
        Flow("demo", place, [Queue("only")])


def test_an_invalid_address_of_redis_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigurationError, match="it looks like redis://host:6379/0"):
        Flow("demo", "redis:/localhost/abc", [Queue("only")])
