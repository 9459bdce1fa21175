"""Batches: jobs whose payload is an array, processed element by element.

The task returns a list with one entry per element, like ``asyncio.gather(…, return_exceptions=True)``. An exception, a
``Retry`` or a ``Fail`` in it marks the element as failed. The job is retried with the failed elements only.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import Cancel, Fail, Retry, Snooze
from stowhand.jobs.outcomes import describe, from_returned, is_final
from stowhand.protocols.store import Claim
from stowhand.worker.policy import Policy, with_wait

MAX_MESSAGES_IN_TITLE = 3
"""Messages on the first line of the error, which is what lists and logs show."""
MAX_MESSAGES_LISTED = 100
_elements = msgspec.json.Decoder(list[msgspec.Raw])


async def judge_batch(claim: Claim[Job], policy: Policy, returned: list[object], warn: Callable[[str], None]) -> object:
    """Return the outcome of a batch if elements failed, else the list that its task returned.

    Awaitables in the list are awaited concurrently. ``warn`` is called if its length differs from the payload's.
    """
    payload = claim.record.payload_text
    if not payload.lstrip().startswith("["):
        return returned
    results = await _await_all(returned)
    elements = _elements.decode(payload)
    if len(results) != len(elements):
        warn(
            f"returned a list of {len(results)} for a payload of {len(elements)} elements, so the failed elements are"
            " unknown; the job counts as completed"
        )
        return results
    failed = {
        number: result
        for number, result in enumerate(results)
        if isinstance(result, BaseException) and not isinstance(result, Snooze | Cancel)
    }
    if not failed:
        return results
    payload_left = b"[" + b",".join(bytes(elements[number]) for number in failed) + b"]"
    message = _describe(failed, len(elements))
    if all(_is_final(result, policy) for result in failed.values()):
        return Fail(message, payload=payload_left.decode())
    errors = [result for result in failed.values() if not isinstance(result, Retry | Fail)]
    group = BaseExceptionGroup(f"{len(errors)} elements failed", errors) if errors else None
    return with_wait(Retry(message, payload=payload_left.decode()), group, claim, policy)


def _is_final(failed: BaseException, policy: Policy) -> bool:
    if isinstance(failed, Retry | Fail):
        return isinstance(failed, Fail)
    return is_final(failed) or (policy.gives_up is not None and policy.gives_up(failed) is not None)


async def _await_all(returned: list[object]) -> list[object]:
    if not any(inspect.isawaitable(result) for result in returned):
        return returned
    return await asyncio.gather(*map(awaited, returned), return_exceptions=True)


async def awaited(result: object) -> object:
    """Await the result of a plain function that returned an awaitable, as a decorated async function does."""
    return await result if inspect.isawaitable(result) else result


def _describe(failed: Mapping[int, BaseException], count: int) -> str:
    """Return the messages of all failed elements, and the traceback of the first."""
    messages = {
        number: _message(error).partition("\n")[0]
        for number, error in itertools.islice(failed.items(), MAX_MESSAGES_LISTED)
    }
    title = f"{len(failed)} of {count} elements failed: {_joined(list(messages.values()))}"
    lines = [f"element {number + 1}: {message}" for number, message in messages.items()]
    if len(failed) > MAX_MESSAGES_LISTED:
        lines.append(f"and {len(failed) - MAX_MESSAGES_LISTED} more")
    _, _, trace = _message(next(iter(failed.values()))).partition("\n")
    return "\n".join([title, *lines, trace]).rstrip()


def _message(failed: BaseException) -> str:
    if not isinstance(failed, Retry | Fail):
        return describe(failed)
    outcome = from_returned(failed)  # makes its text safe to store
    assert isinstance(outcome, Retry | Fail)
    return outcome.error


def _joined(messages: Sequence[str]) -> str:
    distinct_messages = list(dict.fromkeys(messages))
    more = ", …" if len(distinct_messages) > MAX_MESSAGES_IN_TITLE else ""
    return ", ".join(distinct_messages[:MAX_MESSAGES_IN_TITLE]) + more
