"""What a process says when it ends. The same numbers for every command and every store; the docs list them."""

from __future__ import annotations

from stowhand.errors import ConfigurationError, DuplicateTask, InvalidJob, SchemaError, StoreUnreachable, UnknownTask

OK = 0
"""Done; also ``--once`` when drained, whatever the outcomes."""
FAILURE = 1
"""It was understood and could not be done."""
USAGE = 2
"""What was typed or configured cannot be: an unknown option, a bad value, no such task."""
STORE_UNREACHABLE = 3
SCHEMA_UNSUITABLE = 4
"""Nothing is installed, or it is too old or too new."""
INTERRUPTED = 130
"""Ctrl-C, as a shell counts it: 128 + SIGINT."""
BROKEN_PIPE = 141
"""Whoever read the output has gone: 128 + SIGPIPE."""


def exit_code(error: BaseException) -> int:
    """The number for an error that ends a command."""
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
