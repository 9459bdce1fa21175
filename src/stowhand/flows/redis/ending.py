"""What a completed step of a flow leaves behind: the result of its settlement, as JSON."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs import strict_json
from stowhand.protocols.propagation import TRACE_PARENT, handed_on

SHORT = 80
"""Characters of an end that is remembered once it was read."""
LIMIT = 64 * 1024 * 1024
"""Bytes of one step's end: a parent may have thousands of children, each with parameters of its own."""


class NewChild(msgspec.Struct, frozen=True):
    """A child to be created."""

    queue: str
    """Its full name, ``parent:child``."""
    id: str
    """As it will stand in the lists of that queue."""
    fields: dict[str, msgspec.Raw]


class StepEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a step ended well."""

    fields: dict[str, msgspec.Raw] = {}
    """Attributes to keep, each any JSON value."""
    next: str | None = None
    """The queue that the job goes on to; ``None``: it is done."""
    children: list[NewChild] | None = None
    """Given, even empty: the job is a parent and waits on, until all of its children have ended."""


_decoder = msgspec.json.Decoder(StepEnd)
NOTHING = StepEnd()


def handed_over(end: StepEnd) -> StepEnd:
    """The end with the attempt's trace context for the next step and the children. A context set by the user stays."""
    context = handed_on()
    if context is None or not (end.next or end.children):
        return end
    carried = {TRACE_PARENT: msgspec.Raw(msgspec.json.encode(context))}
    children = [msgspec.structs.replace(child, fields=carried | child.fields) for child in end.children or ()]
    return msgspec.structs.replace(end, fields=carried | end.fields, children=children or end.children)


def encode_end(end: StepEnd) -> str:
    """As the result of a settlement; every field of it has been checked. Raises InvalidJob: it is too much."""
    text = msgspec.json.encode(end)
    if len(text) > LIMIT:
        raise InvalidJob(f"the step's end: {len(text)} bytes, the limit is {LIMIT}")
    return text.decode()


def decode_end(text: str | None) -> StepEnd:
    """The end that a settlement's result tells; no result: nothing to keep. Raises UndecodablePayload."""
    if text is None:
        return NOTHING
    return _short(text) if len(text) < SHORT else _decoded(text)


def _decoded(text: str) -> StepEnd:
    end: StepEnd = strict_json.decode_with(_decoder, text, limit=LIMIT)
    return end


_short = lru_cache(maxsize=256)(_decoded)
"""Steps that leave little behind mostly leave the same."""
