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
    """One trouble: what it is known by, and what it means."""

    error: type[StoreError]
    advice: str
    code: str = ""
    """The word with which the server's answer begins."""
    kinds: tuple[type[Exception], ...] = ()
    """Classes of the driver, which takes the code away from the text where it has one."""
    words: str = ""
    """Pattern of the text, where it has neither: of servers from 6.2, or of the driver."""
    is_wrong_setup: bool = False
    """While opening it is a mistake in the configuration, and not an outage."""


_WRONG_LOGIN = _Meaning(
    StoreError,
    "check user and password in the address",
    "WRONGPASS",
    (redis_errors.AuthenticationWrongNumberOfArgsError,),
    "invalid username-password|invalid password|without any password",
    is_wrong_setup=True,
)
_CUT = _Meaning(NoReply, "the connection broke before the reply; if this lasts, see the server's log")
_SLOW = _Meaning(NoReply, "no answer in time; if this lasts, see what the server is busy with: SLOWLOG GET")
_UNKNOWN = _Meaning(StoreError, "the server refuses this call")

_MEANINGS = (
    _Meaning(
        StoreError,
        "give user and password in the address: redis://user:password@host",
        "NOAUTH",
        words="authentication required|must be authenticated",
        is_wrong_setup=True,
    ),
    _WRONG_LOGIN,
    _Meaning(
        StoreError,
        "the login lacks a permission; an administrator gives it with ACL SETUSER",
        "NOPERM",
        (redis_errors.NoPermissionError,),
        "ACL failure in script|no permissions? to|can't access at least one of the keys",
        is_wrong_setup=True,
    ),
    _Meaning(
        StoreUnreachable,
        "it has no free connection: see its setting maxclients",
        words="max number of clients",
    ),
    _Meaning(
        StoreError,
        "the server has no database of that number: see its setting 'databases'",
        words="DB index|invalid database",
        is_wrong_setup=True,
    ),
    _Meaning(
        StoreError,
        "this is a node of a cluster: write the address as redis+cluster://host:port, without a number",
        "MOVED",
        (redis_errors.AskError,),
        "SELECT is not allowed in cluster|cluster mode is not supported",
        is_wrong_setup=True,
    ),
    _Meaning(
        StoreError,
        "in a cluster all keys of a flow must lie in one slot: give it a hash_tag",
        "CROSSSLOT",
        (redis_errors.ClusterCrossSlotError, redis_errors.CrossSlotTransactionError),
        "same (?:hash |key )?slot|non local key|map to the same",
        is_wrong_setup=True,
    ),
    _Meaning(
        StoreError,
        "this is no cluster: write the address as redis://host:port",
        words="cluster support disabled|cluster mode is not enabled",
        is_wrong_setup=True,
    ),
    _Meaning(
        StoreUnreachable,
        "no sentinel names it: are they running, is the service's name right, do they ask for ?sentinel_password=…",
        words="no master found|no slave found",
    ),
    _Meaning(
        StoreUnreachable,
        "the primary has changed; the next call asks for the new one",
        words="previous master",
    ),
    _Meaning(
        StoreUnreachable,
        "TLS failed: name the authority's certificate in the address, ?ssl_ca_certs=/path/of/ca.pem",
        words=r"certificate|\bSSL\b",
    ),
    _Meaning(
        StoreUnreachable,
        "is it running, and is the address right (rediss only where it speaks TLS)?",
        words="connecting to|cannot be connected",
    ),
    _Meaning(
        StoreError,
        "its memory is full: raise maxmemory, or remove what is not needed",
        "OOM",
        (redis_errors.OutOfMemoryError,),
    ),
    _Meaning(StoreError, "it refuses writes because it cannot save to disk: see its log, and the disk", "MISCONF"),
    _Meaning(
        StoreUnreachable,
        "this is a replica: it is being promoted, or the address names the wrong server; sentinels and clusters are"
        " followed by redis+sentinel:// and redis+cluster://",
        "READONLY",
        (redis_errors.ReadOnlyError,),
    ),
    _Meaning(
        StoreUnreachable,
        "it is reading its data and will answer soon",
        "LOADING",
        (redis_errors.BusyLoadingError,),
    ),
    _Meaning(
        StoreUnreachable,
        "another client's script blocks the server; SCRIPT KILL ends one that has written nothing",
        "BUSY",
    ),
    _Meaning(StoreUnreachable, "its slots are being moved; it passes", "TRYAGAIN", (redis_errors.TryAgainError,)),
    _Meaning(StoreUnreachable, "the replica has lost its primary", "MASTERDOWN", (redis_errors.MasterDownError,)),
    _Meaning(
        StoreUnreachable,
        "the cluster does not serve this slot: see CLUSTER INFO on its nodes",
        "CLUSTERDOWN",
        (redis_errors.ClusterDownError, redis_errors.SlotNotCoveredError),
    ),
    _Meaning(StoreUnreachable, "too few replicas take writes: see its setting min-replicas-to-write", "NOREPLICAS"),
    _Meaning(StoreUnreachable, "the server has become a replica while a call waited; it passes", "UNBLOCKED"),
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
        meaning = _meaning_of(error)
        kind = ConfigurationError if opening and meaning.is_wrong_setup else meaning.error
        message = " ".join(clean(address.scrub(_text(error)) or type(error).__name__, SHOWN).split())
        raise kind(f"{address}: {message}; {meaning.advice}") from None


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


def _meaning_of(error: BaseException) -> _Meaning:
    text = _text(error)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else None
    for is_meant in (
        lambda meaning: isinstance(error, meaning.kinds),
        lambda meaning: meaning.code == code,
        lambda meaning: meaning.words and re.search(meaning.words, text, re.IGNORECASE),
    ):
        for meaning in _MEANINGS:
            if is_meant(meaning):
                return meaning
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return _WRONG_LOGIN
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return _SLOW
    if isinstance(error, redis_errors.ConnectionError | redis_errors.ClusterError | OSError):
        return _CUT
    return _UNKNOWN


def _text(error: BaseException) -> str:
    """Its words, without the list of the sentinels' clients and all their options."""
    return str(error).partition(" : <")[0]
