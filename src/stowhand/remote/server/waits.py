"""Checks of the waits of workflows that remote workers send, and of the names and values of their steps."""

from __future__ import annotations

import math

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement, Wait
from stowhand.protocols.workflows import (
    MAX_EVENT_NAME_CHARACTERS,
    MAX_STEP_NAME_CHARACTERS,
    MAX_STEPS,
    MAX_VALUE_BYTES,
)
from stowhand.remote.server.refusals import malformed
from stowhand.remote.server.tokens import Grant

MAX_CHILDREN = 10_000
"""Maximum number of children of one wait. The size of the request allows fewer large ones."""
MAX_PLACE = 2**31 - 1
MAX_WIRE_STEP_NAME_CHARACTERS = MAX_STEP_NAME_CHARACTERS + len(f"#{MAX_STEPS}")
"""A worker adds a number to a repeated name."""


def check_wait(location: str, settlement: Settlement) -> None:
    """Raise Refused for a settlement with a wait that no worker would send. ``location``: of the settlement."""
    if (settlement.wait is not None) is not (settlement.ended is AttemptOutcome.WAITING):
        raise malformed(f"{location}.wait: it is set if, and only if, the outcome is {AttemptOutcome.WAITING}")
    if settlement.wait is None:
        return
    if settlement.delay or settlement.holds_limits:
        raise malformed(f"{location}: a job that waits has no delay of its own, and holds no limits; use wait.delay")
    _check_end(f"{location}.wait", settlement.wait)
    _check_places(f"{location}.wait", settlement.wait)


def _check_end(location: str, wait: Wait) -> None:
    delay = wait.delay
    if delay is not None and not (math.isfinite(delay) and 0 <= delay <= MAX_DURATION_SECONDS):
        raise malformed(f"{location}.delay: got {delay:g} s; use 0 to {MAX_DURATION_SECONDS:g}")
    if delay is not None and wait.until is not None:
        raise malformed(f"{location}: a wait has a delay, or until, and not both")
    try:
        limits.check_details(priority=None, attempts=wait.attempts, max_attempts=None, run_at=wait.until)
    except InvalidJob as error:
        raise malformed(f"{location}.{str(error).replace('run_at', 'until', 1)}") from None
    has_end = wait.event is not None or delay is not None or wait.until is not None
    if has_end is (wait.value is not None):
        raise malformed(f"{location}: it has either the value of a step of children, or an event or a time")


def _check_places(location: str, wait: Wait) -> None:
    if wait.event is not None and not _names_event(wait.step, wait.event):
        raise malformed(f"{location}.step: it waits for an event, so its name is 'event:' and the name of the event")
    if wait.children and wait.value is None:
        raise malformed(f"{location}.value: it is missing; a step of children has one")
    if len(wait.places) != len(wait.children):
        raise malformed(f"{location}.places: {len(wait.places)} places of {len(wait.children)} children")
    if len(set(wait.places)) != len(wait.places) or not all(0 <= place <= MAX_PLACE for place in wait.places):
        raise malformed(f"{location}.places: use different numbers from 0 to {MAX_PLACE}")


def _names_event(step: str, event: str) -> bool:
    """Return whether this is the name of a step that waits for the event: stores find the step by it."""
    rest = step.removeprefix(f"event:{event}")
    return rest != step and (not rest or (rest[0] == "#" and rest[1:].isdecimal()))


def check_wait_content(grant: Grant, wait: Wait) -> None:
    """Check the values of the handler. Raises InvalidJob; Refused for a child that the token may not enqueue."""
    check_name("wait.step", wait.step, MAX_WIRE_STEP_NAME_CHARACTERS)
    if wait.event is not None:
        check_name("wait.event", wait.event, MAX_EVENT_NAME_CHARACTERS)
    if wait.value is not None:
        check_json("wait.value", wait.value)
    if len(wait.children) > MAX_CHILDREN:
        raise InvalidJob(f"wait.children: {len(wait.children)} jobs, the limit is {MAX_CHILDREN}")
    for child in wait.children:
        if child.key is not None:
            raise InvalidJob("wait.children: a child has no key, since its step already names it")
        limits.check(child)
        grant.check_enqueue(child)


def check_name(field: str, name: str, limit: int) -> None:
    """Raise InvalidJob unless this is the name of a step or an event."""
    if not 1 <= len(name) <= limit:
        raise InvalidJob(f"{field}: {len(name)} characters; use 1 to {limit}")
    if "\x00" in name:
        raise InvalidJob(f"{field}: it contains a NUL character")


def check_json(field: str, text: str) -> None:
    """Raise InvalidJob unless this is strict JSON text of a size that a step or an event may have."""
    try:
        strict_json.validate(text, limit=MAX_VALUE_BYTES)
    except UndecodablePayload as error:
        raise InvalidJob(f"{field}: {error}") from None
