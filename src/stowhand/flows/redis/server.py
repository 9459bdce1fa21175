"""A Redis or Valkey as the parts of a flow use it: each call is tried a few times, and its trouble is one of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from stowhand.clock import SystemClock
from stowhand.flows.redis.address import Address
from stowhand.flows.redis.dialing import Client, Dialer
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.trouble import repeated

T = TypeVar("T")


class Server:
    """With connections of its owner's own. Every method raises what ``translated`` raises."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.dialer = Dialer(address)
        self.clock = SystemClock()

    @property
    def client(self) -> Client:
        """Of the running loop's calls."""
        return self.dialer.calls()

    async def ask(self, action: Callable[[], Awaitable[T]]) -> T:
        """What ``action`` gives, which is repeated even if it may have been done."""
        return await repeated(action, self.address, self.clock, unanswered=True)

    async def run(self, name: str, keys: Sequence[str], *args: Any, unanswered: bool = False) -> Any:
        """Execute a script. ``unanswered``: it is repeated even if it may have been done."""
        action = partial(run, self.client, SCRIPTS[name], keys, args)
        return await repeated(action, self.address, self.clock, unanswered=unanswered)
