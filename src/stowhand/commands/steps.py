"""One step of an attempt, and its entry in the execution log, which is updated while the step runs.

async with step(ctx, "clone", ["git", "clone", url], redact=[token]) as entry:
    entry.write("looking for the repository\\n")
    entry.exit_code = 0
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from typing import Any, TypeVar

from stowhand.clock import Cancelable, Clock, SystemClock, wall_clock
from stowhand.commands.destinations import JobLoggerLog, log_of
from stowhand.commands.output import Output
from stowhand.commands.redaction import Redactor
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.execution_log import ExecutionLogEntry, bounded
from stowhand.jobs.outcomes import MAX_SEARCHED_ERROR_BYTES, describe
from stowhand.protocols.attempt import Attempt, control_of

T = TypeVar("T")

UPDATE_INTERVAL_SECONDS = 1.0
"""Minimum time between two updates of an entry."""
END_TIMEOUT_SECONDS = 30.0
"""Maximum time that the end of a stopped step waits for a store that does not answer."""
STOPPING_TIMEOUT_SECONDS = 1.5
"""The same if the worker stops, which waits no longer for its handlers."""
RETRY_DELAYS_SECONDS = (0.1, 0.2, 0.5, 1.0)
"""Delays between attempts to reach the store; the last one is repeated."""

_STOP_REASONS = {
    "timeout": "the attempt timed out",
    "canceled": "its job was canceled",
    "lost": "its lease was lost",
    "returned": "the worker stops",
}


@asynccontextmanager
async def step(
    ctx: Attempt[Any],
    key: str,
    command: Sequence[str] = (),
    *,
    redact: Iterable[str] | Redactor = (),
    clock: Clock | None = None,
) -> AsyncIterator[Step]:
    """Add a step of a handler to the execution log. Call it on the worker's loop only.

    The exit code is 0, or 1 if the block raises, unless the block sets one. If the store does not answer, the start and
    the end of the step wait as long as the attempt may run, so that finished work is not repeated. A failed update in
    between is logged as a warning.

    Args:
        ctx: The attempt.
        key: Name of the step in the log.
        command: Words of a command, for the log.
        redact: Secrets to remove from the output.
        clock: The clock of a test.

    Raises:
        LogRefused: The lease is lost.
        ConfigurationError: The command is one string, or a secret is invalid.

    """
    if isinstance(command, str | bytes):
        raise ConfigurationError(f"step {key}: its command is one string; use a list of words")
    redactor = redact if isinstance(redact, Redactor) else Redactor(redact)
    words = tuple(redactor.text(word) for word in command)
    current_step = Step(ctx, redactor.text(key), words, redactor, clock or SystemClock())
    try:
        await current_step.begin()
        yield current_step
    except BaseException as error:
        current_step.record_error(error)
        await current_step.end_after(error)
        raise
    if current_step.exit_code is None:
        current_step.exit_code = 0
    await current_step.end()


class Step:
    """A running step: its output and its exit code."""

    def __init__(self, ctx: Attempt[Any], key: str, command: tuple[str, ...], redactor: Redactor, clock: Clock) -> None:
        self.exit_code: int | None = None
        self.output = Output(redactor, self._on_output)
        self._ctx = ctx
        self._key = key
        self._command = command
        self._clock = clock
        self._log = log_of(ctx)
        if isinstance(self._log, JobLoggerLog):
            self.output.attach(self._log)
        self._start_time = (clock.pinned() or wall_clock()).astimezone(UTC)
        self._started_at = clock.monotonic()
        self._number = 0
        self._next_update_at = 0.0
        """Earliest time of the next update, by the monotonic clock."""
        self._has_changed = self._is_failing = self._is_over = False
        self._timer: Cancelable | None = None
        self._writing: asyncio.Task[None] | None = None
        self._deadline = math.inf

    def write(self, text: str | bytes) -> None:
        """Add to the output, which is redacted. If it exceeds the log's limit, its end is kept."""
        self.output.feed(text.encode("utf-8", "replace") if isinstance(text, str) else text)

    async def begin(self) -> None:
        """Add the entry. If the reply is lost, the log may contain a second entry without an end."""
        await self._shield(self._add())

    def record_error(self, error: BaseException) -> None:
        """Add the error that ended the step, or the reason for its stop, to the output."""
        if isinstance(error, asyncio.CancelledError):
            self.output.add_line(f"[stopped: {_STOP_REASONS.get(self._ctx.cancel_reason or '', 'it was cancelled')}]")
            return
        self.exit_code = 1 if self.exit_code is None else self.exit_code
        self.output.add_line(f"[{_first_line(error)}]")

    async def end_after(self, error: BaseException) -> None:
        """End the step after an error. Errors of the log are only logged, so that the first error is raised."""
        if not self._number:
            return  # the step has no entry
        timeout_seconds = {"lost": 0.0, "returned": STOPPING_TIMEOUT_SECONDS}.get(
            self._ctx.cancel_reason or "", END_TIMEOUT_SECONDS
        )
        try:
            await self.end(timeout_seconds)
        except Exception as log_error:  # noqa: BLE001 - boundary: the error that ended the step is the one to raise
            if not control_of(self._ctx).lost:  # without a lease the entry cannot be stored
                self._warn("its log entry could not be stored", log_error)

    async def end(self, timeout_seconds: float = math.inf) -> None:
        """Store the final state, after an update that is being written."""
        self.output.end()
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = self._clock.monotonic() + timeout_seconds
        await self._shield(self._store_last(self._entry(ended=True)))

    # -- storing ---------------------------------------------------------------------------------

    def _entry(self, *, ended: bool = False) -> ExecutionLogEntry:
        duration_ms = round((self._clock.monotonic() - self._started_at) * 1000)
        return bounded(
            ExecutionLogEntry(
                key=self._key,
                command=self._command,
                start_time=self._start_time,
                exit_code=self.exit_code if ended else None,
                out=self.output.text,
                duration_ms=duration_ms if ended else None,
            )
        )

    def _on_output(self) -> None:
        """Schedule an update, at the earliest time that ``UPDATE_INTERVAL_SECONDS`` allows."""
        self._has_changed = True
        if self._timer is None and self._writing is None and self._number and not self._is_over:
            self._timer = self._clock.call_later(max(self._next_update_at - self._clock.monotonic(), 0.0), self._send)

    def _send(self) -> None:
        self._timer = None
        self._has_changed = False
        self._writing = asyncio.ensure_future(self._update())

    async def _update(self) -> None:
        try:
            await self._log.update_execution_log_entry(self._number, self._entry())
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - boundary: logged; the next update contains this one
            if not self._is_failing:
                self._warn("its log entry could not be updated", error)
            self._is_failing = True
        self._writing = None
        self._next_update_at = self._clock.monotonic() + UPDATE_INTERVAL_SECONDS
        if self._has_changed:
            self._on_output()

    async def _add(self) -> None:
        self._number = await self._persist(lambda: self._log.add_execution_log_entry(self._entry()))
        self._next_update_at = self._clock.monotonic() + UPDATE_INTERVAL_SECONDS

    async def _store_last(self, final: ExecutionLogEntry) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])  # otherwise it could overwrite the final state
        await self._persist(lambda: self._log.update_execution_log_entry(self._number, final))

    async def _shield(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Finish storing despite a cancellation, within ``STOPPING_TIMEOUT_SECONDS``. A second one stops it."""
        task = asyncio.ensure_future(coroutine)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    task.cancel()
                    raise
                cancelled = error
                self._deadline = min(self._deadline, self._clock.monotonic() + STOPPING_TIMEOUT_SECONDS)
        if cancelled is None:
            task.result()
            return
        if (log_error := task.exception()) is not None and not control_of(self._ctx).lost:
            self._warn("its log entry could not be stored", log_error)
        raise cancelled

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call while the store does not answer, until the deadline, which a stopped step has."""
        pauses = iter(RETRY_DELAYS_SECONDS)
        while True:
            try:
                return await call()
            except StoreUnreachable:
                if self._clock.monotonic() >= self._deadline:
                    raise
            await self._clock.sleep(next(pauses, RETRY_DELAYS_SECONDS[-1]))

    def _warn(self, problem: str, error: BaseException) -> None:
        self._ctx.logger.warning(f"{self._key}: {problem}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return describe(error, MAX_SEARCHED_ERROR_BYTES).partition("\n")[0]
