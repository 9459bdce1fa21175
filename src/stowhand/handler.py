"""Protocols and types for your own handlers and middleware."""

from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import ClaimDecision, Handler, PostHandle, PreHandle
from stowhand.worker.policy import Policy

__all__ = ["Attempt", "ClaimDecision", "Handler", "Policy", "PostHandle", "PreHandle"]
