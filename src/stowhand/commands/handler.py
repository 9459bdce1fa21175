"""A handler that runs the commands of a job, one after another.

Each command has an entry in the execution log, with its output (stdout and stderr merged, secrets redacted), exit code
and duration. The first failed command ends the attempt. The error contains its exit code and last lines.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from stowhand.clock import Clock, SystemClock
from stowhand.commands.command import Command, inherited, read_folder, read_seconds, read_variables
from stowhand.commands.redaction import Redactor
from stowhand.commands.steps import Step, step
from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.durations import Duration
from stowhand.jobs.execution_log import MAX_LOG_ENTRIES
from stowhand.jobs.lifecycle import Fail, Outcome, RaisableOutcome, Retry
from stowhand.jobs.outcomes import MAX_SEARCHED_ERROR_BYTES, from_error
from stowhand.jobs.text import clean
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.tasks.program import ProgramProtocol, describe_exit, describe_start_error, run_program

R = TypeVar("R")
Commands = Callable[[R], Iterable[Command] | Awaitable[Iterable[Command]]]

MAX_STOPPING_GRACE_SECONDS = 3.0
"""Maximum time between TERM and KILL if the worker stops, which waits only a little longer itself."""
MAX_LOST_GRACE_SECONDS = 0.5
"""Maximum time between TERM and KILL if the lease is lost: another worker may have started the job."""
NOT_FOUND_EXIT_CODE = 127
NOT_STARTED_EXIT_CODE = 126
"""Exit codes of a shell for a command that was not found, or could not be started."""


class CommandHandler(Generic[R]):
    """Handler that runs the commands that ``commands(record)`` returns. The function may be async.

    ``redact``        secrets, or a function that returns a record's secrets; see ``redaction.py``
    ``timeout``       seconds (or timedelta) for each command without its own timeout; the whole attempt is limited by
                      the worker's ``timeout``
    ``cwd``, ``env``  folder and variables of every command. From the worker's environment a command inherits only
                      ``command.INHERITED_VARIABLES`` and ``LC_*``
    ``grace``         seconds between TERM and KILL for a command's process group
    ``fatal_codes``   exit codes that fail the record permanently; others are retried while attempts are left

    Raises ConfigurationError.
    """

    def __init__(
        self,
        commands: Commands[R],
        *,
        redact: Iterable[str] | Callable[[R], Iterable[str]] = (),
        timeout: Duration | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        grace: Duration = 5.0,
        fatal_codes: Collection[int] = (),
        clock: Clock | None = None,
    ) -> None:
        if not callable(commands):
            raise ConfigurationError("commands: use a function that returns a list of Command for a record")
        self._commands, self._clock = commands, clock or SystemClock()
        self._redact: Callable[[R], Redactor]
        if callable(redact):
            secrets = redact
            self._redact = lambda record: Redactor(secrets(record))
        else:
            redactor = Redactor(redact)
            self._redact = lambda record: redactor
        self._timeout = read_seconds("timeout", timeout)
        self._grace = read_seconds("grace", grace, is_zero_allowed=True) or 0.0
        self._cwd, self._env = read_folder("cwd", cwd), read_variables("env", env)
        self._fatal_codes = frozenset(fatal_codes)
        if not all(type(code) is int and 0 < code < 256 for code in self._fatal_codes):
            raise ConfigurationError(f"fatal_codes: {sorted(map(str, self._fatal_codes))}; use exit codes, 1 to 255")

    async def handle(self, ctx: Attempt[R], record: R) -> Outcome | None:
        """Run the commands. Return ``None`` if all exited with code 0. Errors contain no secrets."""
        redactor = self._redact(record)
        try:
            for command in await self._read(record):
                async with step(ctx, command.key, command.words, redact=redactor, clock=self._clock) as entry:
                    error_text = await self._run(ctx, command, entry)
                if error_text is not None:
                    return self._failure(redactor.text(error_text), entry)
        except Exception as error:
            outcome = from_error(error, MAX_SEARCHED_ERROR_BYTES)
            if isinstance(outcome, Retry | Fail) and (safe := redactor.text(outcome.error)) != outcome.error:
                return outcome.__replace__(error=clean(safe))
            if isinstance(error, RaisableOutcome):
                return outcome
            raise
        return None

    async def _read(self, record: R) -> list[Command]:
        result: Any = self._commands(record)
        commands = list(await result if inspect.isawaitable(result) else result)
        for command in commands:
            if not isinstance(command, Command):
                raise ConfigurationError(f"commands: {a_type(command)} among them; use Command(key, argv)")
        if len(commands) > MAX_LOG_ENTRIES:
            raise ConfigurationError(f"commands: {len(commands)} of them, the limit is {MAX_LOG_ENTRIES}")
        return commands

    async def _run(self, ctx: Attempt[R], command: Command, entry: Step) -> str | None:
        """Run one command. Return an error text, or ``None`` if it succeeded."""
        words, cwd = command.words, read_folder("cwd", command.cwd) or self._cwd
        limit = read_seconds("timeout", command.timeout) or self._timeout
        env = inherited(os.environ) | self._env | dict(command.env or {})
        protocol = ProgramProtocol(entry.output)
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                await run_program(
                    words, command.input, env, protocol, lambda: self._kill_delay(ctx), cwd, may_leave=False
                )
        except (OSError, ValueError) as error:
            if not scope.expired():
                is_found = not isinstance(error, FileNotFoundError) or error.filename == cwd
                entry.exit_code = NOT_STARTED_EXIT_CODE if is_found else NOT_FOUND_EXIT_CODE
                reason = _start_error(words[0], cwd, error)
                entry.output.add_line(f"[could not be started: {reason}]")
                return f"{command.key} could not be started: {reason}"
        finally:
            if protocol.code is not None:
                entry.exit_code = protocol.code if protocol.code >= 0 else 128 - protocol.code
        if scope.expired():
            exit_text = "cannot be killed" if protocol.code is None else describe_exit(protocol.code)
            entry.output.add_line(f"[took longer than {limit:g} s and {exit_text}]")
            return f"{command.key} took longer than {limit:g} s and {exit_text}"
        assert protocol.code is not None
        if protocol.code < 0:
            entry.output.add_line(f"[{describe_exit(protocol.code)}]")
        return None if protocol.code == 0 else f"{command.key} {describe_exit(protocol.code)}"

    def _kill_delay(self, ctx: Attempt[R]) -> float:
        """Return the seconds between TERM and KILL."""
        if control_of(ctx).lost:
            return min(self._grace, MAX_LOST_GRACE_SECONDS)
        return min(self._grace, MAX_STOPPING_GRACE_SECONDS) if ctx.cancel_reason == "returned" else self._grace

    def _failure(self, error_text: str, entry: Step) -> Retry | Fail:
        lines = [line for line in entry.output.last_lines if not _is_own_line(line, error_text)]
        text = "\n".join([error_text, *lines])
        return Fail(text) if entry.exit_code in self._fatal_codes else Retry(text)


def _is_own_line(line: str, error_text: str) -> bool:
    """Return whether a line of the log entry repeats the error text."""
    return line.startswith("[") and error_text.endswith(line[1:-1])


def _start_error(word: str, cwd: str | None, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and cwd is not None and error.filename == cwd:
        return f"its folder {cwd}: {error.strerror}"
    if "/" not in word and isinstance(error, FileNotFoundError):
        return f"{word}: command not found in PATH"
    if isinstance(error, PermissionError):
        return f"{word}: not executable ({error.strerror})"
    return f"{word}: {describe_start_error(os.path.join(cwd or '', word), error)}"  # noqa: PTH118 - a word, not yet a path
