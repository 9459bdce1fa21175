"""The type as which a task's result is read: the annotated return type of its function, without outcomes."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin

import msgspec

from stowhand.errors import PayloadMismatch, UndecodablePayload
from stowhand.jobs import strict_json
from stowhand.jobs.outcomes import OUTCOMES
from stowhand.tasks.shape import read_other, returned_annotation


def read_result(function: Callable[..., Any], text: str | None) -> Any:
    """Return the result in the annotated type; plain JSON values if there is no usable annotation.

    Raises PayloadMismatch if this version of the task is annotated to return another type.
    """
    if text is None:
        return None
    return read_typed(_result_type(function), text, "the result is not what this version of the task returns")


def read_typed(kind: Any, text: str, problem: str = "the value is not of the expected type") -> Any:
    """Return JSON text as a value of a type; plain values for a type that cannot be read.

    Raises PayloadMismatch with this problem, and UndecodablePayload.
    """
    decoder = _decoder(kind)
    if decoder is None:
        return strict_json.decode(text)
    try:
        return strict_json.decode_with(decoder, text)
    except UndecodablePayload as error:
        strict_json.decode(text)  # raises UndecodablePayload if the text itself is invalid
        raise PayloadMismatch(f"{problem}: {error}") from None


@cache
def _result_type(function: Callable[..., Any]) -> Any:
    return _without_outcomes(returned_annotation(function))


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any] | None:
    if kind is Any:
        return None
    try:
        return msgspec.json.Decoder(kind, dec_hook=read_other)
    except TypeError:
        return None


def _without_outcomes(kind: Any) -> Any:
    if kind in OUTCOMES:
        return Any
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    alternatives = [alternative for alternative in get_args(kind) if alternative not in OUTCOMES]
    if len(alternatives) == len(get_args(kind)):
        return kind
    return Union[tuple(alternatives)] if alternatives else Any  # noqa: UP007 - made of a list
