"""Settings: one table, several sources, a fixed order, and every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stowhand.app.settings.resolver import read_settings, resolve_store_url, unknown_variables
from stowhand.app.settings.settings import SETTINGS, StoreSettings, WorkerSettings
from stowhand.errors import ConfigurationError
from stowhand.jobs.durations import format_duration, parse_duration
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import StoreOptions
from stowhand.retry import SERVICE_BACKOFF
from stowhand.stores.url import store_url


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Read settings of an empty folder and an empty environment, unless a test fills them."""

    def read(flags: Mapping[str, Any] | None = None, **environ: str) -> WorkerSettings:
        return read_settings(flags, environ=environ, folder=tmp_path)

    return read


def problems(tmp_path: Path, flags: Mapping[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(flags, environ=environ, folder=tmp_path)
    return str(caught.value)


def test_without_anything_a_worker_uses_the_documented_defaults(read: Any) -> None:
    settings = read()
    assert settings.store.url == "sqlite:///stowhand.db"
    assert (settings.worker.concurrency, settings.processes) == (4, 1)
    assert (settings.worker.lease, settings.worker.grace) == (30.0, 25.0)
    assert settings.worker.poll_interval is None
    assert settings.store.options.history == 86_400.0
    assert settings.store.options.prepared_statements
    assert settings.store.options.pool_size == 9


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    in_python = {
        "pool",
        "pinned",
        "read_only",
        "read_timeout",
        "name",
        "tasks",
        "heartbeat_interval",
        "look_ahead",
    }
    in_python.add("sweep_interval")
    parts = {"store", "options", "worker", "timings"}
    fields = {*StoreSettings.__struct_fields__, *WorkerSettings.__struct_fields__} - parts
    optional = {*StoreOptions.__struct_fields__, *WorkerOptions.__struct_fields__} - in_python
    assert sorted((*fields, *optional)) == sorted(option.field for option in SETTINGS.values())


def test_the_defaults_of_the_table_are_those_of_the_structs(read: Any) -> None:
    settings = read()
    store = StoreSettings(connection=settings.store.connection, options=StoreOptions(pool_size=9))
    assert settings == WorkerSettings(store=store)


def test_a_flag_beats_the_environment_which_beats_the_file(read: Any, tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("concurrency = 2\n")
    assert read().worker.concurrency == 2
    assert read(STOWHAND_CONCURRENCY="3").worker.concurrency == 3
    assert read({"concurrency": "5"}, STOWHAND_CONCURRENCY="3").worker.concurrency == 5


def test_the_own_file_beats_the_projects_file_which_is_then_named_as_ignored(read: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.stowhand]\nconcurrency = 7\n")
    assert read().worker.concurrency == 7
    (tmp_path / "stowhand.toml").write_text("processes = 2\n")
    assert (read().worker.concurrency, read().processes) == (4, 2)


def test_a_file_may_spell_names_with_dashes_and_use_its_own_types(read: Any, tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text(
        "poll-interval = 500\nlease = 2.5\nno_prepared_statements = true\nhistory = 'none'\n"
    )
    settings = read()
    assert (settings.worker.poll_interval, settings.worker.lease) == (0.5, 2.5)
    assert not settings.store.options.prepared_statements
    assert settings.store.options.history is None


def test_a_preset_gives_defaults_that_anything_said_beats(read: Any) -> None:
    settings = read({"preset": "service"}, STOWHAND_MAX_ATTEMPTS="9")
    worker = settings.worker
    assert (worker.poll_interval, worker.timeout, worker.backoff) == (5.0, 300.0, SERVICE_BACKOFF)
    assert settings.store.options.max_attempts == 9


def test_with_the_preset_service_the_grace_is_the_timeout_in_effect_unless_it_is_said(read: Any) -> None:
    lines = [{}, {"timeout": "90s"}, {"grace": "12s"}]
    assert [read({"preset": "service", **more}).worker.grace for more in lines] == [300.0, 90.0, 12.0]
    assert read({"timeout": "90s"}).worker.grace == 25.0


def test_a_preset_that_does_not_exist_is_one_problem_among_others(tmp_path: Path) -> None:
    output = problems(tmp_path, {"preset": "sevice", "concurrency": "0"})
    assert "--preset: got 'sevice'" in output
    assert "--concurrency: got 0" in output


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("concurency = 3\nlease = [1]\n")
    lines = problems(tmp_path, {"concurrency": "-1", "connection": "jobs.db"}, STOWHAND_PROCESSES="many").splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "stowhand.toml",
        "stowhand.toml",
        "--concurrency",
        "STOWHAND_PROCESSES",
        "--connection",
    ]
    assert "did you mean 'concurrency'?" in lines[0]


@pytest.mark.parametrize("jobs", ["0", "-3", "1.5", "", "NaN", "99999999"])
def test_a_number_of_jobs_that_cannot_be_is_refused(tmp_path: Path, jobs: str) -> None:
    assert "--concurrency" in problems(tmp_path, {"concurrency": jobs})


def test_a_broken_file_is_a_problem_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("jobs = \n")
    assert "stowhand.toml" in problems(tmp_path)
    assert "line 1" in problems(tmp_path)


def test_a_lease_shorter_than_a_second_is_refused(tmp_path: Path) -> None:
    assert "at least 1 s" in problems(tmp_path, {"lease": "500ms"})


def test_a_worker_has_three_beats_in_its_lease(read: Any) -> None:
    options = read({"lease": "6", "concurrency": "3", "once": True}).worker_options(("hello",), "worker-1")
    assert options.every_beat * 3 <= options.lease == 6.0
    assert (options.concurrency, options.once, options.tasks, options.name) == (3, True, ("hello",), "worker-1")


def test_a_pool_too_small_for_a_worker_is_refused_with_the_arithmetic(tmp_path: Path, read: Any) -> None:
    output = problems(tmp_path, {"connection": "my_db", "max_pool_size": "5"})
    assert "--max-pool-size 5: " in output
    assert "5 + 1 = 6; use 6 or more" in output
    assert read({"connection": "my_db", "max_pool_size": "6"}).store.options.pool_size == 6
    assert read({"max_pool_size": "4"}).store.options.pool_size == 4, "SQLite has no pool"


def test_without_a_size_the_pool_fits_the_slots_and_one_that_does_not_is_said_with_the_sum(read: Any) -> None:
    fitting = read({"connection": "my_db", "concurrency": "60"})
    assert (fitting.pool_size, fitting.store.options.pool_size, fitting.pool_shortage) == (65, 65, None)
    short = read({"connection": "my_db", "concurrency": "60", "max_pool_size": "10"}).pool_shortage
    assert "60 + 5 = 65, so tasks have 5 for 60 jobs" in short
    assert read({"concurrency": "60", "max_pool_size": "10"}).pool_shortage is None, "SQLite has no pool"


def test_tasks_and_an_app_from_the_same_source_contradict_each_other(tmp_path: Path) -> None:
    assert "--tasks and --app are both given" in problems(tmp_path, {"tasks": "t", "app": "a:b"})


def test_tasks_from_a_stronger_source_silence_a_weaker_app(read: Any) -> None:
    settings = read({"tasks": "t"}, STOWHAND_APP="a:b")
    assert (settings.tasks, settings.app) == ("t", None)


def test_settings_survive_the_way_to_another_process(read: Any) -> None:
    settings = read({"connection": "postgresql://u:p@h/d", "once": True, "lease": "1m"})
    assert WorkerSettings.from_json(settings.to_json()) == settings


def test_an_empty_variable_is_ignored(read: Any) -> None:
    assert read(STOWHAND_CONCURRENCY="", DATABASE_URL="", PGDATABASE="").store.url == "sqlite:///stowhand.db"


def test_a_misspelt_variable_is_recognised() -> None:
    result = unknown_variables({"STOWHAND_JOB": "1", "STOWHAND_DEBUG": "1", "HOME": "/", "STOWHAND_XYZZY": ""})
    assert result == [
        ("STOWHAND_JOB", "the variable STOWHAND_JOB is not a setting; did you mean 'STOWHAND_CONCURRENCY'?"),
        ("STOWHAND_XYZZY", "the variable STOWHAND_XYZZY is not a setting"),
    ]


def test_every_documented_variable_is_known_and_so_is_what_others_set() -> None:
    kubernetes = {
        "STOWHAND_SERVICE_HOST": "10.0.0.1",
        "STOWHAND_SERVICE_PORT_HTTP": "8470",
        "STOWHAND_PORT": "tcp://10.0.0.1:8470",
        "STOWHAND_PORT_8470_TCP_ADDR": "10.0.0.1",
    }
    ours = dict.fromkeys(("STOWHAND_TOKENS", "STOWHAND_WORKERS", "STOWHAND_FORBIDDEN_FLAG"), "x")
    assert unknown_variables({**kubernetes, **ours, "STOWHAND_TASK_IDENTIFIER": "send"}) == []


def test_a_setting_has_its_other_names_in_the_environment_and_in_the_file_too(read: Any, tmp_path: Path) -> None:
    assert read(STOWHAND_WORKERS="3").worker.concurrency == 3
    assert read(STOWHAND_WORKERS="3", STOWHAND_CONCURRENCY="2").worker.concurrency == 2
    (tmp_path / "stowhand.toml").write_text("workers = 7\ntokens = 'here.json'\n")
    assert (read().worker.concurrency, read().tokens) == (7, "here.json")
    (tmp_path / "stowhand.toml").write_text("workers = 7\njobs = 7\n")
    assert "is another name of concurrency, which is given too" in problems(tmp_path)


def test_the_order_of_connections(tmp_path: Path) -> None:
    environ = {
        "STOWHAND_CONNECTION": "sqlite:///variable.db",
        "DATABASE_URL": "postgres://h/url",
        "PGDATABASE": "pg",
    }
    (tmp_path / "stowhand.toml").write_text("connection = 'sqlite:///file.db'\n")

    def resolved(explicit: str | None = None) -> str:
        return resolve_store_url(explicit, environ=environ, folder=tmp_path).url

    assert resolved("sqlite:///flag.db") == "sqlite:///flag.db"
    assert resolved() == "sqlite:///variable.db"
    del environ["STOWHAND_CONNECTION"]
    assert resolved() == "sqlite:///file.db"
    (tmp_path / "stowhand.toml").unlink()
    assert resolved() == "postgresql://h/url"
    del environ["DATABASE_URL"]
    assert resolved() == "postgresql://"
    del environ["PGDATABASE"]
    assert resolved() == "sqlite:///stowhand.db"


def test_a_database_url_of_another_database_is_ignored_with_a_note(tmp_path: Path) -> None:
    store = resolve_store_url(environ={"DATABASE_URL": "mysql://u:secret@h/d"}, folder=tmp_path)
    assert store.url == "sqlite:///stowhand.db"
    assert "DATABASE_URL" in store.note
    assert "secret" not in store.note


@pytest.mark.parametrize("given", ["me:hunter2@h/d", "sqlite:///a.db", "mysql://h/d"])
def test_what_cannot_be_listened_to_is_refused_without_its_password(tmp_path: Path, given: str) -> None:
    complaint = problems(tmp_path, {"listen_url": given})
    assert complaint.startswith("--listen-url: ")
    assert "hunter2" not in complaint


def test_an_error_about_database_url_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^DATABASE_URL: "):
        resolve_store_url(environ={"DATABASE_URL": "postgres://u:a@b@h/d"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("my_db", "postgresql:///my_db"),
        ("my db", "postgresql:///my%20db"),
        ("postgres:///my_db", "postgresql:///my_db"),
        ("POSTGRESQL://h/d", "postgresql://h/d"),
        ("postgres://u:p@h:5432/d?ssl=true", "postgresql://u:p@h:5432/d?sslmode=require"),
        ("postgres:///d?ssl=false", "postgresql:///d?sslmode=disable"),
        ("postgres://h/d?ssl=true&sslmode=verify-full", "postgresql://h/d?sslmode=verify-full"),
        ("postgres://h/d?application_name=a%20b&ssl=1", "postgresql://h/d?application_name=a%20b&sslmode=require"),
        ("host=h dbname=d", "postgresql:///d?host=h"),
        (r"host = /run  password = 'it\'s' dbname='a b'", "postgresql:///a%20b?host=%2Frun&password=it%27s"),
        ("dbname=d user=''", "postgresql:///d?user="),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("sqlite:////var/a.db", "sqlite:////var/a.db"),
    ],
)
def test_a_store_may_be_written_in_several_ways(given: str, meant: str) -> None:
    assert store_url(given) == meant


@pytest.mark.parametrize(
    ("given", "lesson"),
    [
        ("jobs.db", "sqlite:///jobs.db"),
        ("./jobs", "sqlite:///./jobs"),
        ("sqlite://jobs.db", "sqlite:///jobs.db"),
        ("sqlite:///", "sqlite:///stowhand.db"),
        ("mysql://h/d", "postgresql://user@host"),
        ("postgres://h/d?ssl=maybe", "sslmode"),
        ("postgres://u:a@b@h/d", "%40"),
        ("host=h password='x", "libpq"),
        ("", "empty"),
    ],
)
def test_a_store_that_cannot_be_meets_a_lesson(given: str, lesson: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        store_url(given)
    assert lesson in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        "mysql://u:hunter2@h/d",
        "postgres://u:hunter2@b@h/d",
        "postgres://u:hunter2@h:port/d",
        "host=h password=hunter2 'oops",
        "host=h password='hunter2",
        "u:hunter2@h/d",
        "postgresql:u:hunter2@h/d",
        "postgresql:/u:hunter2@h/d",
        "postgresql://u:hunter2 and more@h/d",
    ],
)
def test_no_complaint_about_a_connection_repeats_its_password(given: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        store_url(given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("phrase", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("1h 30m", 5400.0),
        ("2D", 172800.0),
    ],
)
def test_durations_are_phrases(phrase: str, seconds: float) -> None:
    assert parse_duration(phrase) == seconds


@pytest.mark.parametrize(
    "phrase", ["", "-1", "s", "5 parsecs", "1e3", "nan", "inf", "5m!", "٣s", "9999999w", "1" * 400]
)
def test_an_invalid_duration_is_refused(phrase: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|not a unit|longer than"):
        parse_duration(phrase)


@pytest.mark.parametrize("seconds", [0.25, 1.0, 30.0, 90.0, 5400.0, 86_400.0, 0.0])
def test_a_formatted_duration_is_parsed_as_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_a_broken_file_never_leads_to_the_default_store(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("connection = 'sqlite:///mine.db\n")
    with pytest.raises(ConfigurationError, match=r"stowhand\.toml"):
        resolve_store_url(environ={}, folder=tmp_path)
    assert resolve_store_url("sqlite:///a.db", environ={}, folder=tmp_path).url == "sqlite:///a.db"


def test_debugging_can_be_asked_for_by_a_variable(read: Any) -> None:
    assert read(STOWHAND_DEBUG="1").log_level == "debug"
    assert read(STOWHAND_DEBUG="0").log_level == "info"
    assert read({"log_level": "error"}, STOWHAND_DEBUG="1").log_level == "error"


def test_forbidden_flags_may_be_repeated_or_stand_in_one_text(tmp_path: Path, read: Any) -> None:
    assert read().worker.forbidden_flags == ()
    assert read({"forbidden_flags": ("a", "b,c")}).worker.forbidden_flags == ("a", "b", "c")
    assert read(STOWHAND_FORBIDDEN_FLAGS=" a, b,,a ").worker.forbidden_flags == ("a", "b")
    (tmp_path / "stowhand.toml").write_text('forbidden_flags = ["a", "b"]')
    assert read().worker.forbidden_flags == ("a", "b")
    assert "the limit is 128" in problems(tmp_path, {"forbidden_flags": ("x" * 129,)})


@pytest.mark.parametrize(("name", "word"), [("history", "none"), ("failed_retention", "handled")])
def test_a_zero_that_may_be_meant_as_for_ever_is_refused_with_the_word(tmp_path: Path, name: str, word: str) -> None:
    assert f"got 0, must be at least 1 s, or {word}" in problems(tmp_path, {name: "0"})


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("poll_interval", "0.5", "got 0.5, must be at least 0.001 s; a plain number is ms"),
        ("poll_interval", "0", "got 0, must be at least 0.001 s; a plain number is ms"),
        ("timeout", "0.0005", "got 0.0005, must be at least 0.001 s"),
        ("lease", "500ms", "got 500ms, must be at least 1 s"),
        ("history", "0.5", "got 0.5, must be at least 1 s, or none"),
        ("failed_retention", "500ms", "got 500ms, must be at least 1 s, or handled"),
        ("concurrency", "0", "got 0, must be from 1 to 10000"),
        ("concurrency", "10001", "got 10001, must be from 1 to 10000"),
        ("concurrency", "many", "'many' is not a whole number"),
        ("processes", "-1", "got -1, must be from 1 to 256"),
    ],
)
def test_what_is_beyond_the_limits_is_said_as_it_was_typed(tmp_path: Path, name: str, given: str, said: str) -> None:
    assert problems(tmp_path, {name: given}) == f"--{name.replace('_', '-')}: {said}"


def test_the_least_of_a_text_is_allowed(read: Any) -> None:
    settings = read({"poll_interval": "1", "timeout": "1ms", "lease": "1s", "history": "1", "failed_retention": "1s"})
    assert (settings.worker.poll_interval, settings.worker.timeout) == (0.001, 0.001)
    assert (settings.worker.lease, settings.store.options.history) == (1.0, 1.0)
    assert WorkerOptions(poll_interval=0.0005, timeout=0.0005).poll_interval == 0.0005  # a program's own
    assert StoreOptions(history=0).history == 0


def test_a_list_is_for_settings_that_take_several(tmp_path: Path) -> None:
    (tmp_path / "stowhand.toml").write_text("jobs = [1, 2]")
    assert "use a single value" in problems(tmp_path)


def test_what_a_task_finds_about_its_job_is_no_misspelt_setting() -> None:
    assert unknown_variables({"STOWHAND_JOB_ID": "1", "STOWHAND_JOB_KEY": "k"}) == []
    assert unknown_variables({"STOWHAND_JOBZ": "1"})


@pytest.mark.parametrize(
    "given", ["nonsense", '{"same_signl_window": 1}', '{"exit_timeout": -5}', '{"same_signal_window": 1e9}', "[]"]
)
def test_waits_of_tests_that_are_left_behind_are_refused_where_they_cannot_be_meant(tmp_path: Path, given: str) -> None:
    assert "STOWHAND_TIMINGS: " in problems(tmp_path, STOWHAND_TIMINGS=given)


def test_waits_of_tests_change_a_worker_by_a_warning_only(read: Any) -> None:
    assert read(STOWHAND_TIMINGS="").timings == read().timings
    assert read(STOWHAND_TIMINGS='{"same_signal_window": 60}').timings.same_signal_window == 60
    ((_, said),) = unknown_variables({"STOWHAND_TIMINGS": "{}"})
    assert "for Stowhand's own tests only" in said
