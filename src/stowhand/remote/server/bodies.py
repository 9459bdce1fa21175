"""Request bodies: limited in size and time, and without unknown fields."""

from __future__ import annotations

import asyncio
import re
from functools import cache, reduce
from operator import or_
from types import GenericAlias
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import Request
from starlette.types import Scope

from stowhand.errors import StowhandError, suggest
from stowhand.jobs.job import NewJob
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.wire import MAX_BODY_BYTES, ErrorKind

MAX_HEADERS = 128
MAX_HEADER_BYTES = 32 * 1024
"""Including the path and query of the request."""
MAX_NESTED = 2
"""Maximum depth of a record in itself: the failure job of a job has no failure job of its own."""
READ_TIMEOUT_SECONDS = 30.0
"""Time within which the whole body must arrive."""
M = TypeVar("M", bound=msgspec.Struct)
_UNKNOWN_FIELD_PATTERN = re.compile("unknown field `(.*?)`")
_PLACE_PATTERN = re.compile(r" - at `\$?\.?(.*)`$")


def check_head(scope: Scope) -> None:
    """Raise Refused for too many or too large headers, and for a body with two lengths.

    The limit of uvicorn misses headers that arrive in one piece. With two lengths, a proxy may use the other one, and
    the rest of the body would be read as another request.
    """
    headers = scope["headers"]
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise Refused(
            ErrorKind.MALFORMED,
            "the body has two lengths",
            "send Content-Length, or Transfer-Encoding: chunked, and not both",
            closes=True,
        )
    size = sum(len(name) + len(value) for name, value in headers)
    size += len(scope["raw_path"]) + len(scope["query_string"])
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise Refused(
            ErrorKind.MALFORMED,
            f"{len(headers)} headers of {size} bytes; the limits are {MAX_HEADERS} and {MAX_HEADER_BYTES}",
            "send fewer and shorter headers",
            status=431,
        )


async def read(request: Request, message_type: type[M]) -> M:
    """Read a message. Raises Refused, which names the invalid field."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # This also refuses web pages: for this type a browser first sends a preflight request, which is refused.
        raise malformed("the body must be JSON", "send the header Content-Type: application/json")
    raw = await collect(request)
    try:
        message = msgspec.json.decode(raw, type=message_type)
        _strict_decoder(message_type).decode(raw)
        return message
    except msgspec.ValidationError as error:
        raise malformed(_with_field_first(str(error))) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise malformed(f"not JSON: {error}", "send one JSON object") from None
    except StowhandError as error:  # an impossible condition
        raise Refused(ErrorKind.REFUSED, str(error), "see the operators of stowhand.jobs.conditions.Where") from None


@cache
def _strict_decoder(message_type: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that refuses unknown fields at every level.

    The types of the records ignore unknown fields, because replies contain the same records.
    """
    return msgspec.json.Decoder(_names_only(inspect.type_info(message_type)))


def _names_only(field_type: inspect.Type, outer: tuple[type, ...] = ()) -> Any:
    """Return a type with the same fields at every level, and any values. ``outer``: the enclosing structs."""
    match field_type:
        case inspect.Metadata(type=inner):
            return _names_only(inner, outer)
        case inspect.StructType(cls=cls, fields=fields, array_like=False) if outer.count(cls) < MAX_NESTED:
            within = (*outer, cls)
            names = [(field.encode_name, _names_only(field.type, within), None) for field in fields]
            return msgspec.defstruct(cls.__name__, names, forbid_unknown_fields=True)
        case inspect.VarTupleType(item_type=item):
            return GenericAlias(tuple, (_names_only(item, outer), ...))
        case inspect.TupleType(item_types=items):
            return GenericAlias(tuple, tuple(_names_only(item, outer) for item in items))
        case inspect.UnionType(types=types):
            return reduce(or_, (_names_only(member, outer) for member in types))
        case inspect.NoneType():
            return None
        case _:
            return Any


async def collect(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Read a body. Raises Refused if it has more bytes than this, or does not arrive in time."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    raw = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        message = f"the body did not arrive within {READ_TIMEOUT_SECONDS:g} s"
        raise Refused(ErrorKind.MALFORMED, message, "send it without pauses", status=408, closes=True) from None
    return bytes(raw)


def _too_large(limit: int) -> Refused:
    return Refused(
        ErrorKind.TOO_LARGE,
        f"the body is larger than {limit} bytes",
        "send fewer items in one call, and keep large data elsewhere",
    )


def _with_field_first(message: str) -> str:
    """Return the error message with the field at its beginning."""
    place_match = _PLACE_PATTERN.search(message)
    place = place_match[1] if place_match else ""
    prefix = f"{place}: " if place else ""
    return f"{prefix}{_PLACE_PATTERN.sub('', message)}".replace("`", "'") + _advice(place, message)


def _advice(place: str, message: str) -> str:
    """Return advice for a mistake in an enqueued job; empty for other messages."""
    if not place.startswith("jobs["):
        return ""
    if unknown := _UNKNOWN_FIELD_PATTERN.search(message):
        return suggest(unknown[1], NewJob.__struct_fields__)
    if place.endswith("].payload"):
        return '; encode the JSON as text: "payload": "{\\"to\\": \\"ada@example.com\\"}"'
    return ""
