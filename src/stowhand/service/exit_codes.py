"""Exit codes: the same for every command and every store. The docs list them."""

from __future__ import annotations

from stowhand.errors import ConfigurationError, DuplicateTask, InvalidJob, SchemaError, StoreUnreachable, UnknownTask

OK = 0
"""Success; also ``--once`` when drained, with any outcomes."""
FAILURE = 1
"""The command is valid, but could not be carried out."""
USAGE = 2
"""A mistake in the command or the settings: an unknown option, a bad value, an unknown task."""
STORE_UNREACHABLE = 3
SCHEMA_UNSUITABLE = 4
"""The schema is missing, too old or too new."""
REPLACE = 5
"""``stowhand worker`` must be restarted: it cannot end the threads of as many jobs as it may run at once."""
INTERRUPTED = 130
"""Ctrl-C, as a shell counts it: 128 + SIGINT."""
BROKEN_PIPE = 141
"""The reader of the output has closed it: 128 + SIGPIPE."""


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ends a command."""
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
