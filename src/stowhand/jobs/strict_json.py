"""Strict JSON: a subset of JSON that every reader accepts.

RFC 8259 allows texts that some readers refuse or change: PostgreSQL refuses ``\\u0000``, Python turns ``1e5000`` into
infinity, msgspec writes NaN as ``null``, and a thousand brackets exhaust a stack. The subset has no NUL, no lone
surrogates, no NaN or infinity, and bounded size, depth, digits and exponents. Writers and readers check it.

Checking a small text takes a few substring searches; only a suspicious text is examined exactly.

A value without an annotation is also refused if it would be read back as another type (a Decimal as text, a set as a
list). A tuple may be read back as a list.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload, a_type

MAX_WRITTEN_BYTES = 1024 * 1024
"""Maximum bytes of UTF-8 in a written text."""
MAX_READ_BYTES = 2 * MAX_WRITTEN_BYTES
"""Maximum bytes in a text that is read: a store that normalises JSON adds a space after each comma and colon."""
MAX_DEPTH = 64
MAX_DIGITS = 300
MAX_EXPONENT = 308

# Possessive quantifiers avoid backtracking, so hostile text takes linear time.
_STRING_PATTERN = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NUMBER_PATTERN = re.compile(r"-?(\d++)(?:\.\d++)?(?:[eE][+-]?0*+(\d++))?")
_LONG_NUMBER_PATTERN = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS + 1}}}")
# Two patterns that begin with a literal are three times as fast as one that begins with a class.
_EXPONENT_PATTERN = re.compile(r"[eE][+-]?\d{3}")
_LOWER_EXPONENT_PATTERN = re.compile(r"e[+-]?\d{3}")
_UPPER_EXPONENT_PATTERN = re.compile(r"E[+-]?\d{3}")
_NUL_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000")
_SURROGATE_PAIR_PATTERN = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LONE_SURROGATE_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*+\\u[dD][89a-fA-F]")
_NOT_A_NUMBER_PATTERN = re.compile(r"\b(?:NaN|Infinity)\b")

LONE_SURROGATE = "a string contains a lone surrogate, which is not valid Unicode"
NOT_A_NUMBER = "NaN and infinity are not JSON numbers; use null or a string"

_decoder = msgspec.json.Decoder()
_validator = msgspec.json.Decoder(msgspec.Raw)


def encode(value: object, *, what: str = "payload", limit: int = MAX_WRITTEN_BYTES) -> str:
    """Return ``value`` as strict JSON text. Raises InvalidJob that names ``what``, the problem and the limit.

    Dataclasses, attrs, msgspec and pydantic models, datetimes, UUIDs, decimals, enums, bytes (base64) and sets are
    written as msgspec writes them. Keys that are numbers, dates or enums become their text.
    """
    try:
        raw = _encoder.encode(value)
        if b"null" in raw:  # None, or a NaN that msgspec silently replaces
            refuse_nan(value, _write_other)
        _validator.decode(raw)  # msgspec.Raw values are copied without a check
        text = raw.decode()
        problem = find_problem(text, limit)
    except RecursionError:
        problem = f"nested deeper than the limit of {MAX_DEPTH}, or it contains itself"
    except UnicodeError:
        problem = LONE_SURROGATE
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        problem = f"cannot be written as JSON: {error}"
    else:
        if problem is None:
            return text
    raise InvalidJob(f"{what}: {problem}")


def canonical(value: object) -> bytes:
    """Return the same text for any order of the value's keys and sets. Raises InvalidJob as ``encode`` does."""
    encode(value, what="unique")
    return _sorting_encoder.encode(value)


def decode(text: str, *, limit: int = MAX_READ_BYTES) -> Any:
    """Return the value of a strict JSON text. Raises only UndecodablePayload."""
    return decode_with(_decoder, text, limit=limit)


def decode_with(decoder: msgspec.json.Decoder[Any], text: str, *, limit: int = MAX_READ_BYTES) -> Any:
    """Return the value of a strict JSON text, decoded by this decoder.

    Raises UndecodablePayload. Its cause is a ``msgspec.ValidationError`` if the text is valid but not of that type.
    """
    if (problem := find_problem(text, limit)) is not None:
        raise UndecodablePayload(problem)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise UndecodablePayload(_plain(str(error))) from error
    except TypeError as error:  # the type has a list or an object as a set element or a key
        reason = f"{error} in a set, or as a key of a dict"
        raise UndecodablePayload(reason) from msgspec.ValidationError(reason)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise UndecodablePayload(_explain(text, error)) from error


def validate(text: str, *, limit: int = MAX_WRITTEN_BYTES) -> None:
    """Raise UndecodablePayload unless ``text`` is strict JSON as a whole."""
    decode_with(_decoder, text, limit=limit)


def find_problem(text: str, limit: int) -> str | None:
    """Return the reason to refuse a text, or ``None``. Exact for grammatical JSON."""
    is_short = len(text) <= MAX_DEPTH and len(text) * 4 <= limit
    if is_short and "\\" not in text:  # such a text can only have a large exponent
        return _examine(_STRING_PATTERN.sub('""', text)) if _EXPONENT_PATTERN.search(text) else None
    if len(text) * 4 > limit:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > limit:
            return f"{size} bytes, the limit is {limit}; keep the data in a file or a table, and pass its path or id"
    if "\\u0000" in text and _NUL_PATTERN.search(text):
        return "a string contains NUL (\\u0000), which PostgreSQL cannot store"
    if (
        text.count("[") + text.count("{") > MAX_DEPTH
        or (len(text) > MAX_DIGITS and _LONG_NUMBER_PATTERN.search(text))
        or _LOWER_EXPONENT_PATTERN.search(text)
        or _UPPER_EXPONENT_PATTERN.search(text)
    ):
        return _examine(_STRING_PATTERN.sub('""', text))
    return None


def is_deepest(text: str) -> bool:
    """Return whether a text is nested to the limit, so that it would exceed it inside another value."""
    has_many_brackets = text.count("[") + text.count("{") >= MAX_DEPTH
    return has_many_brackets and _is_deeper(_STRING_PATTERN.sub('""', text), MAX_DEPTH - 1)


def _is_deeper(text_without_strings: str, limit: int) -> bool:
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text_without_strings):
        depth += 1 if bracket in "[{" else -1
        if depth > limit:
            return True
    return False


def _examine(text_without_strings: str) -> str | None:
    """Return the first problem with depth, digits or exponents in a text whose strings have been emptied."""
    if _is_deeper(text_without_strings, MAX_DEPTH):
        return f"nested deeper than the limit of {MAX_DEPTH}"
    for number in _NUMBER_PATTERN.finditer(text_without_strings):
        digits, exponent = number.groups()
        if len(digits) > MAX_DIGITS:
            return f"a number of {len(digits)} digits, the limit is {MAX_DIGITS}"
        # The length comes first: Python refuses int() of a million digits.
        if exponent and (len(exponent) > 3 or int(exponent) > MAX_EXPONENT):
            return f"a number with exponent {exponent[:12]}, the limit is {MAX_EXPONENT} in either direction"
    return None


def _explain(text: str, error: Exception) -> str:
    """Return the reason for a decoding error, also where the decoder's own message would mislead."""
    if not text.strip():
        return "empty, which is not JSON"
    if isinstance(error, UnicodeError) or _LONE_SURROGATE_PATTERN.search(_SURROGATE_PAIR_PATTERN.sub("", text)):
        return LONE_SURROGATE
    if _NOT_A_NUMBER_PATTERN.search(_STRING_PATTERN.sub('""', text)):
        return f"JSON is malformed: {NOT_A_NUMBER}"
    return _plain(str(error) or type(error).__name__)


def refuse_nan(value: object, write_other: Callable[[Any], object] | None = None) -> None:
    """Raise ValueError for NaN and infinity, which msgspec writes as ``null``. ``write_other`` is the enc_hook."""
    try:
        json.dumps(msgspec.to_builtins(value, enc_hook=write_other, str_keys=True), allow_nan=False)
    except ValueError:
        raise ValueError(NOT_A_NUMBER) from None


def _plain(message: str) -> str:
    return message.replace("`", "'")


def _write_other(value: Any) -> object:
    """Encode a pydantic model, which msgspec cannot. Pydantic is never imported here."""
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):  # a key: msgspec writes a tuple value as a list
        raise TypeError("a key of a dict is a tuple; convert it to text")
    raise TypeError(f"{a_type(value)} has no JSON form; use its id, its text or a dict")


_encoder = msgspec.json.Encoder(enc_hook=_write_other)
_sorting_encoder = msgspec.json.Encoder(enc_hook=_write_other, order="sorted")


PLAIN_SCALARS = frozenset({str, int, float, bool, type(None)})
_STR_ONLY = frozenset({str})
_JSON_TYPES = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a dict"}


class TypeLoss(msgspec.Struct, frozen=True):
    """A value that is read back as another type."""

    path: str
    """Its path within the whole value, such as ``.lines[0].amount``; empty for the whole value."""
    value: object
    decoded_type: str
    """The type as which it is read back, such as ``text``."""
    is_key: bool = False
    """True if it is a key of the dict at ``path``."""

    def __str__(self) -> str:
        subject = a_type(self.value)
        if self.is_key:
            subject = f"its key {str(self.value)[:40]}, {subject},"
        return f"{subject} would arrive as {self.decoded_type}"


def is_plain(value: object) -> bool:
    """Return whether JSON has a type for every value in it. Call ``encode`` first, which limits the depth."""
    kind = type(value)
    values: Iterable[object]
    if isinstance(value, dict):
        values = value.values()
        if kind is not dict or not _STR_ONLY.issuperset(map(type, value)):
            return False
    elif kind is list or kind is tuple:
        values = cast("Iterable[object]", value)
    else:
        return kind in PLAIN_SCALARS
    return PLAIN_SCALARS.issuperset(map(type, values)) or all(map(is_plain, values))


def encode_plain(value: object, *, what: str = "payload", limit: int = MAX_WRITTEN_BYTES) -> str:
    """Return a value without annotations as strict JSON text.

    Raises InvalidJob as ``encode`` does, and for a part that would be read back as another type.
    """
    text = encode(value, what=what, limit=limit)
    if not is_plain(value) and (loss := find_loss(value, decode(text, limit=2 * limit))) is not None:
        raise InvalidJob(f"{what}{loss.path}: {loss}; use {loss.decoded_type}")
    return text


def find_loss(value: object, decoded: object, *, is_typed: bool = False) -> TypeLoss | None:
    """Return the first value in ``value`` whose counterpart in ``decoded`` has another type.

    With ``is_typed``, an annotation gives the type of each part, so an equal value suffices: a StrEnum for a ``str``.
    """
    return next(_losses(value, decoded, "", is_typed), None)


def _losses(value: Any, decoded: Any, path: str, is_typed: bool) -> Iterator[TypeLoss]:
    kind = type(value)
    if kind in PLAIN_SCALARS or (is_typed and value == decoded):
        return
    if kind is dict:
        yield from _losses_in_dict(value, decoded, path, is_typed)
    elif kind is list or kind is tuple:
        if isinstance(decoded, list | tuple):  # otherwise the annotation has converted it, to a set or a model
            for index, (item, other) in enumerate(zip(value, decoded, strict=False)):
                yield from _losses(item, other, f"{path}[{index}]", is_typed)
    elif kind is not type(decoded):
        yield TypeLoss(path, value, _JSON_TYPES.get(type(decoded)) or a_type(decoded))
    elif isinstance(value, set | frozenset):
        yield from (TypeLoss(path, item, "another type") for item in value if item not in decoded)
    else:
        for name in _field_names(kind):
            yield from _losses(getattr(value, name), getattr(decoded, name), f"{path}.{name}", is_typed)


def _losses_in_dict(value: dict[Any, Any], decoded: Any, path: str, is_typed: bool) -> Iterator[TypeLoss]:
    if isinstance(decoded, dict):
        keys = {key: key for key in decoded}
        for key, item in value.items():
            if key in keys and (is_typed or type(keys[key]) is type(key)):
                yield from _losses(item, decoded[key], f"{path}.{key}", is_typed)
            elif type(key) is not str:  # a text key may be absent: a TypedDict drops unknown keys
                yield TypeLoss(path, key, "text", is_key=True)
    else:  # the dict was converted to a model
        for name, item in value.items():
            if isinstance(name, str) and hasattr(decoded, name):
                yield from _losses(item, getattr(decoded, name), f"{path}.{name}", is_typed)


def _field_names(kind: Any) -> Iterable[str]:
    """Return the fields of a dataclass, a named tuple, or an attrs, msgspec or pydantic model; else none."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    names = (getattr(kind, name, ()) for name in ("_fields", "__struct_fields__", "model_fields"))
    return next(filter(None, names), ())
