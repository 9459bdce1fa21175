"""What a handler or a middleware of your own is written with."""

from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Claimable, Handler, PostHandle, PreHandle
from stowhand.worker.policy import Policy

__all__ = ["Attempt", "Claimable", "Handler", "Policy", "PostHandle", "PreHandle"]
