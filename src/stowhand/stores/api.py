"""The function that opens a store, and the types for a store of your own."""

from stowhand.jobs.job import KeyMode
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import (
    Capabilities,
    Claim,
    ClaimRequest,
    Foreign,
    Heartbeats,
    Pulse,
    RefusedChange,
    RefusedSettlement,
    Store,
    StoreOptions,
    Terms,
    Verdict,
)
from stowhand.stores.url import open_store

__all__ = [
    "Capabilities",
    "Claim",
    "ClaimRequest",
    "Foreign",
    "Heartbeats",
    "KeyMode",
    "Lease",
    "Pulse",
    "RefusedChange",
    "RefusedSettlement",
    "ResetJob",
    "Settlement",
    "Store",
    "StoreOptions",
    "Terms",
    "Verdict",
    "open_store",
]
