"""The lists in the reference are the lists in the code."""

from __future__ import annotations

import re
import tomllib

import click
import psycopg
import pytest

from stowhand import events
from stowhand.app.app import App
from stowhand.app.options import StoreKeywords, WorkerKeywords
from stowhand.app.presets import PRESETS
from stowhand.app.settings.settings import SETTINGS
from stowhand.cli.program import root
from stowhand.cron.sources import CronSources
from stowhand.jobs import fields, limits, strict_json, text
from stowhand.jobs.job import State
from stowhand.protocols import operator, options, producer, queue_store, store
from stowhand.protocols.options import Option, WorkerOptions
from stowhand.runner.options import RunnerOptions
from stowhand.service import exit_codes
from tests.docs.pages import CONTRIBUTING, DOCS
from tests.support import settings_page
from tests.support.public_names import PUBLIC
from tests.support.sources import ROOT

REFERENCE = DOCS / "reference"
HIDDEN = {"--help", "--version", "--beside"}


def read(name: str) -> str:
    return (REFERENCE / name).read_text()


def rows(page: str) -> dict[str, list[str]]:
    """The lines of a page's tables, by the word in their first cell."""
    result = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            result[cells[0].strip("`")] = cells
    return result


def test_the_page_of_settings_is_the_table_of_settings() -> None:
    shown, there = rows(read("settings.md")), dict(commands(root, "stowhand"))
    assert shown.keys() - PRESETS.keys() >= SETTINGS.keys()
    for name, setting in SETTINGS.items():
        _, default, meaning = shown[name]
        assert setting.variables[0] == f"STOWHAND_{name.upper()}", "the page says so"
        also = re.search(r" Also ((?:`-[\w-]+`(?:, )?)+)\.", meaning)
        flags = {f"--{name.replace('_', '-')}", *(re.findall(r"`(-[\w-]+)`", also[1]) if also else ())}
        if setting.on == "settings":
            assert " No option." in meaning
        else:
            assert flags == {*setting.short, setting.flag}, name
            place = "stowhand serve" if setting.on == "serve" else "stowhand worker"
            assert flags <= options_of(there[place]), f"{place} has not all of: {flags}"
        text, _, in_python = default.partition(" (in Python ")
        assert text == (setting.unset or f"`{setting.say(setting.default)}`".replace("``", "-"))
        assert in_python in ("", f"`{setting.field}={setting.default}`)")
        assert meaning.startswith(setting.doc)
    for name, values in PRESETS.items():
        for field, value in values.items():
            (setting,) = (setting for setting in SETTINGS.values() if setting.field == field)
            written = f'"{value}"' if isinstance(value, str) else setting.say(value)
            assert f"`{setting.name} = {written}`" in shown[name][1]


def test_the_tables_of_settings_are_made_of_the_options() -> None:
    instance = settings_page.made()
    assert settings_page.MADE.findall(read("settings.md")) == [instance], "run scripts/settings-page"
    for keyword in {*StoreKeywords.__annotations__, *WorkerKeywords.__annotations__} - {*CronSources.__annotations__}:
        assert f"`{keyword}`" in instance, keyword
    for option in RunnerOptions.__annotations__:
        assert f"`{option}`" in f"{instance}{read('runner.md')}", option


def test_the_page_of_commands_names_every_command_and_option() -> None:
    page = read("cli.md")
    sections = page.split("\n## ")
    for path, command in commands(root, "stowhand"):
        assert path in page, path
        group = path.split()[1]
        output = "\n".join(part for part in sections if f"stowhand {group}" in part.partition("\n")[0])
        everywhere = {option for setting in SETTINGS.values() if setting.on == "store" for option in spellings(setting)}
        for option in options_of(command) - everywhere - HIDDEN:
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", output), f"{path} {option}"


def spellings(setting: Option) -> set[str]:
    return {setting.flag, *setting.short}


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    results = []
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        results += commands(inner, f"{path} {name}")
    return results


def options_of(command: click.Command) -> set[str]:
    return {spelt for one in command.params if isinstance(one, click.Option) for spelt in one.opts}


def test_the_page_of_commands_names_every_exit_code() -> None:
    shown = re.findall(r"^\| (\d+) \|", read("cli.md"), re.MULTILINE)
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert {int(code) for code in shown} == codes


def test_the_page_of_events_is_the_closed_list() -> None:
    kinds = {
        name: kind
        for module in (events, events, events)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    }
    shown = rows(read("events.md"))
    assert shown.keys() == kinds.keys()
    for name, kind in kinds.items():
        assert tuple(re.findall(r"`(\w+)`", shown[name][1])) == kind.__struct_fields__


def test_the_page_of_python_names_every_public_name() -> None:
    page = read("python.md")
    fields = set(WorkerOptions.__struct_fields__) | (set(store.StoreOptions.__struct_fields__) - {"pinned"})
    own_pages = ("stowhand.flows", "stowhand.runner", "stowhand.testing", "stowhand.web")
    names = {name for module in PUBLIC.keys() - own_pages for name in PUBLIC[module].split()}
    methods = {f"app.{name}" for name in vars(App) if not name.startswith("_") and hasattr(App, name)}
    for name in names | fields | methods:
        assert re.search(rf"(?<![\w.]){re.escape(name)}\b", page), name


def test_the_page_of_installing_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert rows((DOCS / "how-to" / "install.md").read_text()).keys() == extras.keys()
    assert extras["all"] == [f"stowhand[{','.join(name for name in extras if name != 'all')}]"]


def test_the_page_of_limits_has_the_limits() -> None:
    page = read("limits.md")
    for number in (
        limits.MAX_TASK_CHARACTERS,
        limits.MAX_SERIAL_CHARACTERS,
        limits.MAX_KEY_CHARACTERS,
        limits.MAX_FLAGS,
        limits.MAX_FLAG_CHARACTERS,
        fields.MAX_INT32,
        strict_json.MAX_WRITTEN_BYTES,
        strict_json.MAX_DEPTH,
        strict_json.MAX_DIGITS,
        strict_json.MAX_EXPONENT,
        text.MAX_ERROR_BYTES // 1024,
        options.NAME_LIMIT,
    ):
        assert re.search(rf"\b{number}\b", page), number


def test_every_promise_has_a_proof_or_is_named_as_unproven() -> None:
    promises = (DOCS / "explanation" / "promises.md").read_text()
    promised = re.findall(r"^\| (I\d+) \|", promises, re.MULTILINE)
    assert promised
    assert promised == re.findall(r"^\| (I\d+) \|", (CONTRIBUTING / "proofs.md").read_text(), re.MULTILINE)
    unproven = re.findall(r"\bI\d+\b", promises.partition("not yet proven")[2].partition("\n\n")[0])
    assert unproven
    assert not set(promised) & set(unproven)


def test_the_page_of_states_names_every_state() -> None:
    assert {state.value for state in State} <= rows(read("states.md")).keys()


def test_the_page_of_stores_names_every_method_and_option() -> None:
    page = (DOCS / "reference" / "stores.md").read_text()
    for name in methods_of_the_seams():
        assert f"`{name}`" in page, name
    assert set(store.StoreOptions.__struct_fields__) <= rows(page).keys()


def methods_of_the_seams() -> set[str]:
    seams = (store.Store, store.Heartbeats, producer.Producer, queue_store.Inspector, queue_store.Administrator)
    others = (queue_store.Timetable, queue_store.Schema, queue_store.QueueStore, operator.Operator)
    return {name for seam in (*seams, *others) for name in vars(seam) if not name.startswith("_")}


def installed(url: str) -> psycopg.Connection:
    app = App(url)
    app.sync.install()
    app.sync.close()
    return psycopg.connect(url)


def test_the_page_of_sql_shows_the_real_add_job(postgres_url: str) -> None:
    shown = re.search(r"^stowhand\.add_job\(\n(.*?)^\)", read("sql.md"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    arguments = re.findall(r"^ {2}(\w+)\s+([\w\[\]]+)", shown[1], re.MULTILINE)
    with installed(postgres_url) as connection:
        row = connection.execute(
            "select proargnames, array(select format_type(t, null) from unnest(proargtypes) with ordinality u(t, n)"
            " order by n) from pg_proc where proname = 'add_job' and pronargdefaults = 10"
            " and 'json'::regtype = any(proargtypes)"
        ).fetchone()
    assert row is not None
    spelt = {"int": "integer", "timestamptz": "timestamp with time zone"}
    assert [name for name, _ in arguments] == row[0]
    assert [spelt.get(kind, kind) for _, kind in arguments] == row[1]


def test_the_page_of_sql_shows_the_real_columns_of_jobs(postgres_url: str) -> None:
    view = read("sql.md").partition("## The view `jobs`")[2].partition("```")[0].split("graphile-worker's columns.")
    shown = [name for part in view for name in re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", part, re.DOTALL)))]
    with installed(postgres_url) as connection:
        columns = [column.name for column in connection.execute("select * from stowhand.jobs").description or ()]
    assert shown[: len(columns)] == columns


def test_the_page_of_sql_shows_the_real_error_codes(postgres_url: str) -> None:
    mistakes = {
        "GWBID": "repeat('x', 129)",
        "GWBQN": "'x', queue_name := repeat('q', 129)",
        "GWBJK": "'x', job_key := repeat('k', 513)",
        "GWBMA": "'x', max_attempts := 0",
        "GWBKM": "'x', job_key := 'k', job_key_mode := 'nonsense'",
        "22023": "'x', flags := array[null]",
        "22P05": """'x', '{"a": "\\u0000"}'""",
        "22P02": "'x', '{'",
        "54000": "'x', to_json(repeat('x', 1048577))",
    }
    page = read("sql.md")
    with installed(postgres_url) as connection:
        connection.autocommit = True
        for code, arguments in mistakes.items():
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(f"select stowhand.add_job({arguments})")
            assert caught.value.sqlstate == code, arguments
            assert f"`{code}`" in page


def test_the_examples_of_the_page_of_sql_run(postgres_url: str) -> None:
    blocks = re.findall(r"^```sql\n(select .*?)^```", read("sql.md"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    declared = '{"rate": 5, "rate_seconds": 1, "burst": 1}'
    with installed(postgres_url) as connection:
        connection.execute("insert into stowhand.limits (name, declared) values ('partner-api', %s)", [declared])
        for block in blocks:
            connection.execute(block.encode())
