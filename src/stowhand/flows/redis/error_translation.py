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

MAX_ATTEMPTS = 4
RETRY_PAUSE_SECONDS = 0.05
"""Seconds after the first try; twice as many after the second, and so on."""
MAX_MESSAGE_BYTES = 300
"""Bytes of the server's own words in an error of ours."""


class NoReply(StoreUnreachable):
    """The call may have been executed or not."""


class _ErrorKind(NamedTuple):
    """One kind of trouble."""

    error: type[StoreError]
    advice: str = ""
    """What the server's own words do not say."""
    codes: tuple[str, ...] = ()
    """Words with which the server's answer begins."""
    pattern: str = ""
    """Pattern of the text where it has no code: of servers from 6.2, or of the driver."""
    is_wrong_setup: bool = False
    """While opening it is a mistake in the configuration, and not an outage."""


_ERROR_KINDS = (
    _ErrorKind(
        StoreError,
        "check user and password in the address: redis://user:password@host",
        ("NOAUTH", "WRONGPASS"),
        "invalid username-password|invalid password|without any password|authentication required|must be authenticated",
        is_wrong_setup=True,
    ),
    _ErrorKind(
        StoreError,
        "an administrator gives the permission with ACL SETUSER",
        ("NOPERM",),
        "ACL failure in script|no permissions? to|can't access at least one of the keys",
        is_wrong_setup=True,
    ),
    _ErrorKind(
        StoreError,
        "the address of a server is redis://host:port/number, of a cluster redis+cluster://host:port",
        ("MOVED",),
        "DB index|invalid database|SELECT is not allowed in cluster|cluster mode is not|cluster support disabled",
        is_wrong_setup=True,
    ),
    _ErrorKind(
        StoreError,
        "in a cluster all keys of a flow must lie in one slot: give it a hash_tag",
        ("CROSSSLOT",),
        "same (?:hash |key )?slot|non local key|map to the same",
        is_wrong_setup=True,
    ),
    _ErrorKind(
        StoreUnreachable,
        "this is a replica: it is being promoted, or the address names the wrong server; sentinels and clusters are"
        " followed by redis+sentinel:// and redis+cluster://",
        ("READONLY",),
        "previous master",
    ),
    _ErrorKind(
        StoreUnreachable,
        "no sentinel names it: are they running, is the service's name right, do they ask for ?sentinel_password=…",
        pattern="no master found|no slave found",
    ),
    _ErrorKind(
        StoreUnreachable,
        "is it running, and is the address right (rediss only where it speaks TLS, with ?ssl_ca_certs=… where needed)?",
        pattern=r"connecting to|cannot be connected|certificate|\bSSL\b",
    ),
    _ErrorKind(
        StoreUnreachable,
        codes=("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "UNBLOCKED"),
        pattern="max number of clients",
    ),
)
_REFUSED = _ErrorKind(StoreError)
_CONNECTION_LOST = _ErrorKind(NoReply, "the connection broke before the reply; if this lasts, see the server's log")
_TIMED_OUT = _ErrorKind(NoReply, "no answer in time; if this lasts, see what the server is busy with: SLOWLOG GET")
_CODES_BY_CLASS: dict[type[Exception], str] = {
    redis_errors.AuthenticationWrongNumberOfArgsError: "WRONGPASS",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.AskError: "MOVED",
    redis_errors.ClusterCrossSlotError: "CROSSSLOT",
    redis_errors.CrossSlotTransactionError: "CROSSSLOT",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.SlotNotCoveredError: "CLUSTERDOWN",
}
"""Of classes for which the driver takes the code away from the text."""
_CODE_PATTERN = re.compile(r"^([A-Z]{3,})\b|: -([A-Z]{3,})\b")


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
        meaning = _kind_of(error)
        kind = ConfigurationError if opening and meaning.is_wrong_setup else meaning.error
        message = " ".join(clean(address.scrub(_text(error)) or type(error).__name__, MAX_MESSAGE_BYTES).split())
        raise kind(f"{address}: {message}" + (f"; {meaning.advice}" if meaning.advice else "")) from None


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
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            with translated(address, opening=opening):
                return await action()
        except StoreUnreachable as error:
            if isinstance(error, NoReply) and not unanswered:
                raise
        await clock.sleep(RETRY_PAUSE_SECONDS * attempt)
    with translated(address, opening=opening):
        return await action()


def _kind_of(error: BaseException) -> _ErrorKind:
    text = _text(error)
    found = _CODE_PATTERN.search(text)
    of_class = next((code for kind, code in _CODES_BY_CLASS.items() if isinstance(error, kind)), None)
    code = of_class or (found and (found[1] or found[2]))
    by_code = (meaning for meaning in _ERROR_KINDS if code in meaning.codes)
    by_pattern = (one for one in _ERROR_KINDS if one.pattern and re.search(one.pattern, text, re.IGNORECASE))
    if (meaning := next(by_code, None) or next(by_pattern, None)) is not None:
        return meaning
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return _ERROR_KINDS[0]
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return _TIMED_OUT
    is_cut = isinstance(error, redis_errors.ConnectionError | redis_errors.ClusterError | OSError)
    return _CONNECTION_LOST if is_cut else _REFUSED


def _text(error: BaseException) -> str:
    """Its words, without the list of the sentinels' clients and all their options."""
    return str(error).partition(" : <")[0]
