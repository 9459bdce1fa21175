"""What a flow has left in Redis, key by key and field by field, so that two programs' can be laid side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import redis

from stowhand.clock import stopwatch

NOT_COMPARED = re.compile("ledger:.*|queue:.*:(swept|unlocked|flow|renewed|timer|bell)|lease:.*")
"""The tests' own; and what our sweep remembers from one look to the next."""


class Left(msgspec.Struct, frozen=True):
    """A key, or a field of a hash."""

    kind: str
    """Redis' word for the type, or ``field``."""
    value: Any
    """Text; of a list all its elements. Of a lock only that it is there: it names a worker."""
    life: int = 0
    """Seconds; -1: for ever. Fields have none."""
    took: float = 0.0
    """Seconds in which all of it was written: some of its life may be over by now."""

    def is_like(self, other: Left) -> bool:
        """The same but for the seconds that have passed."""
        near = abs(self.life - other.life) <= 2 + max(self.took, other.took) and (self.life < 0) == (other.life < 0)
        return (self.kind, self.value) == (other.kind, other.value) and near


def look(client: redis.Redis, jobs: Mapping[str, str], since: float) -> dict[str, Left]:
    """All of it. ``jobs``: ids by what they are to be called; children are called by their places (of one parent).

    ``since``: when the first of it was written, by the stopwatch.
    """
    names = {job_id: f"<{name}>" for name, job_id in jobs.items()} | _children(client)

    def named(text: str) -> str:
        for result, name in names.items():
            text = text.replace(result, name)
        return re.sub("settled:[0-9a-f]{40}", "settled:<call>", text)

    left: dict[str, Left] = {}
    for key in client.scan_iter("*", count=1000):
        if NOT_COMPARED.fullmatch(key):
            continue
        kind, life = str(client.type(key)), int(client.ttl(key))
        result = _read(client, key, kind)
        if isinstance(result, dict):
            left |= {f"{named(key)}.{name}": Left("field", named(text)) for name, text in result.items()}
            result = ""
        value = [named(each) for each in result] if isinstance(result, list) else result
        left[named(key)] = Left(kind, value, life, stopwatch() - since)
    return left


def _read(client: redis.Redis, key: str, kind: str) -> Any:
    match kind:
        case "hash":
            return client.hgetall(key)
        case "list":
            return client.lrange(key, 0, -1)
        case "string":
            return "" if key.startswith(("lock:", "settled:")) else client.get(key)
        case "zset":
            return client.zrange(key, 0, -1)
    raise AssertionError(f"{key} is a {kind}")


def _children(client: redis.Redis) -> dict[str, str]:
    """The last parts of their keys, by their places among the children of their parent."""
    names: dict[str, str] = {}
    for key in client.scan_iter("job:*", count=1000, _type="hash"):
        fields: Mapping[str, str] = _read(client, key, "hash")
        for field, text in fields.items():
            if field.startswith("children:") and field.endswith(":jobs"):
                names |= {kid.rpartition(":")[2]: f"<child {place}>" for place, kid in enumerate(json.loads(text), 1)}
    return names
