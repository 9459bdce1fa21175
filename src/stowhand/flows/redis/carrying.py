"""What a job in Redis carries of the attempt that moves it on: the field ``traceparent`` of its hash, as JSON text."""

from __future__ import annotations

import msgspec

from stowhand.flows.redis.ending import StepEnd
from stowhand.protocols.propagation import TRACE_PARENT, handed_on


def handed_over(end: StepEnd) -> StepEnd:
    """With the context of the attempt that ends so, where it is traced and somebody follows. The user's own stays."""
    context = handed_on()
    if context is None or not (end.next or end.children):
        return end
    carried = {TRACE_PARENT: msgspec.Raw(msgspec.json.encode(context))}
    children = [msgspec.structs.replace(child, fields=carried | child.fields) for child in end.children or ()]
    return msgspec.structs.replace(end, fields=carried | end.fields, children=children or end.children)
