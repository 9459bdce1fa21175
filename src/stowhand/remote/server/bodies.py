"""Request bodies: bounded while they come in, and of exactly the shape that the call wants."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from stowhand.errors import StowhandError
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.wire import Kind

LIMIT = 1024 * 1024
"""Bytes."""
HEADERS = 128
HEADER_BYTES = 32 * 1024
"""The address of the request included."""
M = TypeVar("M", bound=msgspec.Struct)
_PLACE = re.compile(r" - at `\$?\.?(.*)`$")


def check_head(scope: Scope) -> None:
    """Raises Refused for too many headers, or too large ones (what comes in one piece gets past uvicorn's own limit),
    and for a body of two lengths: a proxy may believe the other one, and what follows would be somebody's next request.
    """
    headers = scope["headers"]
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise Refused(
            Kind.MALFORMED,
            "the body has two lengths",
            "send Content-Length, or Transfer-Encoding: chunked, and not both",
            closes=True,
        )
    size = sum(len(name) + len(value) for name, value in headers)
    size += len(scope["raw_path"]) + len(scope["query_string"])
    if len(headers) > HEADERS or size > HEADER_BYTES:
        raise Refused(
            Kind.MALFORMED,
            f"{len(headers)} headers of {size} bytes, the limits are {HEADERS} and {HEADER_BYTES}",
            "send fewer and shorter headers",
            status=431,
        )


async def read(request: Request, kind: type[M]) -> M:
    """The message. Raises Refused with the place of what is wrong in it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Also what keeps a web page from sending one: a browser asks first, and is not answered.
        raise malformed("the body must be JSON", "send the header Content-Type: application/json")
    raw = await _collect(request)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise malformed(_told(str(error))) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise malformed(f"no JSON: {error}", "send one JSON object") from None
    except StowhandError as error:  # a condition that cannot be
        raise Refused(Kind.REFUSED, str(error), "see the operators of stowhand.jobs.conditions.Where") from None


async def _collect(request: Request) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > LIMIT:
        raise _too_large()
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > LIMIT:
            raise _too_large()
    return bytes(raw)


def _too_large() -> Refused:
    return Refused(
        Kind.TOO_LARGE,
        f"the body is larger than {LIMIT} bytes",
        "send fewer items in one call, and keep large data elsewhere",
    )


def _told(message: str) -> str:
    """The place first."""
    found = _PLACE.search(message)
    where = f"{found[1]}: " if found and found[1] else ""
    return f"{where}{_PLACE.sub('', message)}".replace("`", "'")
