"""What an error of Redis or of its connection means for the caller, as an exception of errors.py.

NoReply             it may have been done or not: the connection broke, or the deadline passed
StoreUnreachable    definitely not done; the same call may succeed later (loading, failing over, busy)
StoreError          definitely not done, and repeating is useless until an administrator acts
ConfigurationError  while opening: the address, the login or the layout is wrong
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from redis import exceptions as redis_errors

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, StoreError, StoreUnreachable
from stowhand.flows.redis.address import Address
from stowhand.jobs.text import clean

T = TypeVar("T")

TRIES = 4
PAUSE = 0.05
"""Seconds after the first try; twice as many after the second, and so on."""
SHOWN = 300
"""Bytes of the server's own words in an error of ours."""


class NoReply(StoreUnreachable):
    """The call may have been executed or not."""


class _Meaning(NamedTuple):
    error: type[StoreError]
    advice: str
    wrong_setup: bool = False
    """While opening it is a mistake in the configuration, and not an outage."""


_CROSS_SLOT = _Meaning(StoreError, "in a cluster all keys of a flow must lie in one slot: give it a hash_tag", True)
_A_CLUSTER = _Meaning(
    StoreError, "this is a node of a cluster: write the address as redis+cluster://host:port, without a number", True
)

_MEANINGS = {
    "NOAUTH": _Meaning(StoreError, "give user and password in the address: redis://user:password@host", True),
    "WRONGPASS": _Meaning(StoreError, "check user and password in the address", True),
    "NOPERM": _Meaning(StoreError, "the login lacks a permission; an administrator gives it with ACL SETUSER", True),
    "NODB": _Meaning(StoreError, "the server has no database of that number: see its setting 'databases'", True),
    "CROSSSLOT": _CROSS_SLOT,
    "MOVED": _A_CLUSTER,
    "ASK": _A_CLUSTER,
    "NOCLUSTER": _Meaning(StoreError, "this is no cluster: write the address as redis://host:port", True),
    "OOM": _Meaning(StoreError, "its memory is full: raise maxmemory, or remove what is not needed"),
    "MISCONF": _Meaning(StoreError, "it refuses writes because it cannot save to disk: see its log, and the disk"),
    "READONLY": _Meaning(
        StoreUnreachable,
        "this is a replica: it is being promoted, or the address names the wrong server; sentinels and clusters are"
        " followed by redis+sentinel:// and redis+cluster://",
    ),
    "LOADING": _Meaning(StoreUnreachable, "it is reading its data and will answer soon"),
    "BUSY": _Meaning(
        StoreUnreachable, "another client's script blocks the server; SCRIPT KILL ends one that has written nothing"
    ),
    "TRYAGAIN": _Meaning(StoreUnreachable, "its slots are being moved; it passes"),
    "CLUSTERDOWN": _Meaning(StoreUnreachable, "the cluster does not serve this slot: see CLUSTER INFO on its nodes"),
    "MASTERDOWN": _Meaning(StoreUnreachable, "the replica has lost its primary"),
    "NOREPLICAS": _Meaning(StoreUnreachable, "too few replicas take writes: see its setting min-replicas-to-write"),
    "NOPRIMARY": _Meaning(
        StoreUnreachable,
        "no sentinel names it: are they running, is the service's name right, do they ask for ?sentinel_password=…",
    ),
    "UNBLOCKED": _Meaning(StoreUnreachable, "the server has become a replica while a call waited; it passes"),
    "FULL": _Meaning(StoreUnreachable, "it has no free connection: see its setting maxclients"),
    "NOTHERE": _Meaning(StoreUnreachable, "is it running, and is the address right (rediss only where it speaks TLS)?"),
    "DEMOTED": _Meaning(StoreUnreachable, "the primary has changed; the next call asks for the new one"),
    "CERTIFICATE": _Meaning(
        StoreUnreachable, "TLS failed: name the authority's certificate in the address, ?ssl_ca_certs=/path/of/ca.pem"
    ),
    "CUT": _Meaning(NoReply, "the connection broke before the reply; if this lasts, see the server's log"),
    "SLOW": _Meaning(NoReply, "no answer in time; if this lasts, see what the server is busy with: SLOWLOG GET"),
    "UNKNOWN": _Meaning(StoreError, "the server refuses this call"),
}

# The driver takes the code away from the text where it has a class for it.
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.NoPermissionError, "NOPERM"),
    (redis_errors.OutOfMemoryError, "OOM"),
    (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.TryAgainError, "TRYAGAIN"),
    (redis_errors.ClusterCrossSlotError, "CROSSSLOT"),
    (redis_errors.CrossSlotTransactionError, "CROSSSLOT"),
    (redis_errors.MovedError, "MOVED"),
    (redis_errors.AskError, "ASK"),
    (redis_errors.SlotNotCoveredError, "CLUSTERDOWN"),
    (redis_errors.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
)
# What is known only by its words: the server's (all versions from 6.2), then the driver's.
_WORDS = (
    (re.compile(r"authentication required|must be authenticated", re.IGNORECASE), "NOAUTH"),
    (re.compile(r"invalid username-password|invalid password|without any password", re.IGNORECASE), "WRONGPASS"),
    (re.compile(r"ACL failure in script|no permissions? to|can't access at least one of the keys"), "NOPERM"),
    (re.compile(r"max number of clients", re.IGNORECASE), "FULL"),
    (re.compile(r"DB index|invalid database", re.IGNORECASE), "NODB"),
    (re.compile(r"SELECT is not allowed in cluster|cluster mode is not supported", re.IGNORECASE), "MOVED"),
    (re.compile(r"same (?:hash |key )?slot|non local key|map to the same", re.IGNORECASE), "CROSSSLOT"),
    (re.compile(r"cluster support disabled|cluster mode is not enabled", re.IGNORECASE), "NOCLUSTER"),
    (re.compile(r"no master found|no slave found", re.IGNORECASE), "NOPRIMARY"),
    (re.compile(r"previous master", re.IGNORECASE), "DEMOTED"),
    (re.compile(r"certificate|\bSSL\b", re.IGNORECASE), "CERTIFICATE"),
    (re.compile(r"connecting to|cannot be connected", re.IGNORECASE), "NOTHERE"),
)
_CODE = re.compile(r"^([A-Z]{3,})\b|: -([A-Z]{3,})\b")


@contextmanager
def translated(address: Address, *, opening: bool = False) -> Iterator[None]:
    """Errors of the driver become ours, with a sentence that says what to do and no secret.

    Only while ``opening`` is a wrong address or login a ConfigurationError; later it is an outage, which may end.
    Values that the driver cannot send are a bug: the error is raised as it is, and no loop repeats the call.
    """
    try:
        yield
    except redis_errors.DataError:
        raise
    except (redis_errors.RedisError, redis_errors.RedisClusterException, OSError) as error:
        meaning = _MEANINGS[_code(error)]
        kind = ConfigurationError if opening and meaning.wrong_setup else meaning.error
        raise kind(f"{address}: {_said(address, error)}; {meaning.advice}") from None


async def repeated(
    action: Callable[[], Awaitable[T]],
    address: Address,
    clock: Clock,
    *,
    unanswered: bool = False,
    opening: bool = False,
) -> T:
    """What ``action`` gives, tried a few times while its trouble passes by itself. Raises what `translated` raises.

    ``unanswered``: the action may be repeated even if it may have been done.
    """
    for attempt in range(1, TRIES):
        try:
            with translated(address, opening=opening):
                return await action()
        except StoreUnreachable as error:
            if isinstance(error, NoReply) and not unanswered:
                raise
        await clock.sleep(PAUSE * attempt)
    with translated(address, opening=opening):
        return await action()


def _code(error: BaseException) -> str:
    code = next((code for kind, code in _CLASSES if isinstance(error, kind)), "")
    return code or _code_in(_text(error)) or _code_of_kind(error)


def _code_in(text: str) -> str:
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    return code if code in _MEANINGS else next((code for words, code in _WORDS if words.search(text)), "")


def _code_of_kind(error: BaseException) -> str:
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return "WRONGPASS"
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return "SLOW"
    if isinstance(error, redis_errors.ConnectionError | redis_errors.ClusterError | OSError):
        return "CUT"
    return "UNKNOWN"


def _said(address: Address, error: BaseException) -> str:
    """One line, short, harmless."""
    return " ".join(clean(address.scrub(_text(error)) or type(error).__name__, SHOWN).split())


def _text(error: BaseException) -> str:
    """Its words, without the list of the sentinels' clients and all their options."""
    return str(error).partition(" : <")[0]
