"""Exit codes. The same numbers for every command and every store; the docs list them."""

from __future__ import annotations

from stowhand.errors import ConfigurationError, DuplicateTask, InvalidJob, SchemaError, StoreUnreachable, UnknownTask

OK = 0
"""Done; also ``--once`` when drained, whatever the outcomes."""
FAILURE = 1
"""The command was understood and could not be carried out."""
USAGE = 2
"""A mistake in what was typed or configured: an unknown option, a bad value, no such task."""
STORE_UNREACHABLE = 3
SCHEMA_UNSUITABLE = 4
"""Nothing is installed, or it is too old or too new."""
REPLACE = 5
"""``stowhand worker`` must be started anew: as many threads as it may run jobs at once cannot be ended."""
INTERRUPTED = 130
"""Ctrl-C, as a shell counts it: 128 + SIGINT."""
BROKEN_PIPE = 141
"""The reader of the output is gone: 128 + SIGPIPE."""


def exit_code(error: BaseException) -> int:
    """The code for an error that ends a command."""
    match error:
        case ConfigurationError() | InvalidJob() | UnknownTask() | DuplicateTask():
            return USAGE
        case StoreUnreachable():
            return STORE_UNREACHABLE
        case SchemaError():
            return SCHEMA_UNSUITABLE
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            return BROKEN_PIPE
        case _:
            return FAILURE
