"""Writes of many rows of which the database may refuse some. They find the refused rows, or that the store is at fault.

An error code does not show what caused an error: a trigger or a policy may raise any of them for one row. So every
error is handled in the same way, unless it concerns the whole call (a lost connection):

    repeat   repeat the whole call once
    control  if it fails again, call without rows to check whether the statement works at all
    halves   if it works, write the halves separately, until each failing row is alone
    alone    retry rows that fail alone after a pause, since their error may be temporary (a deadlock)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from stowhand.clock import Clock

T = TypeVar("T")
R = TypeVar("R")
Write = Callable[[Sequence[T]], Awaitable[Sequence[R]]]
Attempt = Callable[[Sequence[T]], Awaitable[Sequence[R] | Exception]]

RETRY_PAUSES_SECONDS: tuple[float, ...] = (0.05, 0.1, 0.15)
"""Pauses before each further attempt of rows that failed alone."""


class WriteResult(NamedTuple, Generic[T, R]):
    """The result of a write of many rows."""

    rows: list[R]
    """The answers for all rows that were not refused."""
    refused: list[tuple[T, Exception]]
    """Rows that fail alone, each with its error."""


async def write_each(
    items: Sequence[T],
    write: Write[T, R],
    clock: Clock,
    concerns_call: Callable[[Exception], bool],
    pauses: Sequence[float] = RETRY_PAUSES_SECONDS,
) -> WriteResult[T, R]:
    """Write all items in as few calls as possible.

    ``write`` writes all of its items (possibly none) or, if it raises, nothing. Raise an error that ``concerns_call``,
    and the last error of the whole call if a call without items fails too. If all of several items are refused, the
    caller decides whether the store is at fault.
    """

    async def attempt(part: Sequence[T]) -> Sequence[R] | Exception:
        try:
            return await write(part)
        except Exception as error:
            if concerns_call(error):
                raise
            return error

    answer = await attempt(items)
    if isinstance(answer, Exception):
        answer = await attempt(items)
    if not isinstance(answer, Exception):
        return WriteResult(list(answer), [])
    if isinstance(await attempt(()), Exception):
        raise answer
    result = WriteResult[T, R]([], [(items[0], answer)]) if len(items) == 1 else await _write_halves(items, attempt)
    for pause in pauses:
        if result.refused:
            await clock.sleep(pause)
            await _try_alone(result, attempt)
    return result


async def _try_alone(result: WriteResult[T, R], attempt: Attempt[T, R]) -> None:
    for item, _ in result.refused[:]:
        answer = await attempt((item,))
        if not isinstance(answer, Exception):
            result.rows.extend(answer)
            result.refused[:] = [refusal for refusal in result.refused if refusal[0] is not item]


async def _write_halves(items: Sequence[T], attempt: Attempt[T, R]) -> WriteResult[T, R]:
    result = WriteResult[T, R]([], [])
    parts = _halves(items)
    while parts:
        part = parts.pop()
        answer = await attempt(part)
        if not isinstance(answer, Exception):
            result.rows.extend(answer)
        elif len(part) == 1:
            result.refused.append((part[0], answer))
        else:
            parts += _halves(part)
    return result


def _halves(items: Sequence[T]) -> list[Sequence[T]]:
    middle = len(items) // 2
    return [items[middle:], items[:middle]]
