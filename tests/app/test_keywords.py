"""Keywords stand in TypedDicts for type checkers; what they take is what the options of the structs take."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from stowhand.app.options import StoreKeywords, WorkerKeywords
from stowhand.app.settings.settings import WorkerSettings
from stowhand.cron.sources import CronSources
from stowhand.jobs.durations import Duration
from stowhand.protocols.options import BackoffOption, Names, Option, Seconds, Size, WorkerOptions, options_of
from stowhand.protocols.store import StoreOptions
from stowhand.runner.options import RunnerOptions

RUNNERS_OWN = {
    "connection_string",
    "pg_pool",
    "traces",
    "task_list",
    "task_directory",
    "no_handle_signals",
    "logger",
} | {*("events", "crontab", "crontab_file", "parsed_cron_items")}


def parts(hint: Any) -> set[Any]:
    return {*get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}


def taken(struct: type, option: Option) -> set[Any]:
    """What is declared, and what is read as that: a phrase as a duration, any names, a wait by its name."""
    types = parts(get_type_hints(struct)[option.field])
    match option:
        case Seconds():
            types |= parts(Duration)
        case Size():
            types |= {str}
        case BackoffOption():
            types |= {str}
        case Names():
            types = {Iterable[str] if one == tuple[str, ...] else one for one in types} | {NoneType}
    if option.field == "synchronous":
        types = {Literal["FULL", "NORMAL"]}
    return types | ({NoneType} if option.field == "preset" else set())


@pytest.mark.parametrize(
    ("keywords", "structs", "own"),
    [
        (StoreKeywords, (StoreOptions, WorkerSettings), set()),
        (WorkerKeywords, (WorkerOptions,), {*CronSources.__annotations__, "exclude_tasks"}),
        (RunnerOptions, (StoreOptions, WorkerOptions), RUNNERS_OWN),
    ],
)
def test_a_keyword_takes_what_its_option_takes(keywords: type, structs: tuple[type, ...], own: set[str]) -> None:
    options = {
        name: (struct, option)
        for struct in structs
        for option in options_of(struct).values()
        for name in (option.field, option.name)
    }
    written = get_type_hints(keywords)
    assert written.keys() - own <= options.keys()
    for name in written.keys() - own:
        assert parts(written[name]) == taken(*options[name]), name


def test_every_option_of_the_structs_is_a_keyword() -> None:
    assert options_of(StoreOptions).keys() | {"preset"} == StoreKeywords.__annotations__.keys()
    assert WorkerKeywords.__annotations__.keys() == options_of(
        WorkerOptions
    ).keys() | CronSources.__annotations__.keys() | {"exclude_tasks"}
