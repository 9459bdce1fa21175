"""Translation of errors of Redis and its connections into exceptions of errors.py.

NoReply             the call may have been executed or not: the connection broke, or the deadline passed
StoreUnreachable    the call was not executed; it may succeed later (loading, failing over, busy)
StoreError          the call was not executed, and repeating it is useless until an administrator acts
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
"""Seconds after the first attempt; twice as many after the second, and so on."""
MAX_MESSAGE_BYTES = 300
"""Bytes of the server's message that an error repeats."""


class NoReply(StoreUnreachable):
    """The call may have been executed or not."""


class _ErrorKind(NamedTuple):
    """Kind of error, and how to recognize it."""

    error: type[StoreError]
    advice: str = ""
    """What to do, added to the server's message."""
    codes: tuple[str, ...] = ()
    """Error codes, the first word of the server's reply."""
    pattern: str = ""
    """Pattern of the text of errors without a code, from servers since 6.2 or from the driver."""
    is_wrong_setup: bool = False
    """Whether the error, while opening, is a mistake in the configuration and not an outage."""


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
        "in a cluster all keys of a flow must be in one slot: set the flow's hash_tag",
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
_REFUSED_CALL = _ErrorKind(StoreError)
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
"""Codes of the exception classes whose text comes without the code."""
_CODE_PATTERN = re.compile(r"^([A-Z]{3,})\b|: -([A-Z]{3,})\b")


@contextmanager
def translated(address: Address, *, opening: bool = False) -> Iterator[None]:
    """Translate errors of the driver. The message says what to do and contains no secret.

    A wrong address or login is a ConfigurationError only while ``opening``; later it is an outage, which may end.
    Values that the driver cannot send are a bug: the error is raised unchanged, and the call is not repeated.
    """
    try:
        yield
    except redis_errors.DataError:
        raise
    except (redis_errors.RedisError, redis_errors.RedisClusterException, OSError) as error:
        kind = _kind_of(error)
        exception = ConfigurationError if opening and kind.is_wrong_setup else kind.error
        text = address.scrub(_text(error)) or type(error).__name__
        message = " ".join(clean(text, MAX_MESSAGE_BYTES).split())
        advice = f"; {kind.advice}" if kind.advice else ""
        raise exception(f"{address}: {message}{advice}") from None


async def repeated(
    action: Callable[[], Awaitable[T]],
    address: Address,
    clock: Clock,
    *,
    unanswered: bool = False,
    opening: bool = False,
) -> T:
    """Await ``action`` and return its result; repeat it a few times after temporary errors.

    ``unanswered``: repeat it even if the server may have executed it. Raises what ``translated`` raises.
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
    code = next((code for exception, code in _CODES_BY_CLASS.items() if isinstance(error, exception)), None)
    if code is None and (match := _CODE_PATTERN.search(text)) is not None:
        code = match[1] or match[2]
    for kind in _ERROR_KINDS:
        if code in kind.codes:
            return kind
    for kind in _ERROR_KINDS:
        if kind.pattern and re.search(kind.pattern, text, re.IGNORECASE):
            return kind
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return _ERROR_KINDS[0]
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return _TIMED_OUT
    is_cut = isinstance(error, redis_errors.ConnectionError | redis_errors.ClusterError | OSError)
    return _CONNECTION_LOST if is_cut else _REFUSED_CALL


def _text(error: BaseException) -> str:
    """Return the message without the driver's list of sentinel clients and their options."""
    return str(error).partition(" : <")[0]
