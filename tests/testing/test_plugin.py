"""The pytest plugin as a project has it: what the ini file says, and what a run without the fixture pays."""

from __future__ import annotations

import os

import pytest

import stowhand.testing.jobs  # noqa: F401 - here once: a run in this process takes out again what it has imported

APP = """
from stowhand import App
app = App("sqlite:///shop.db")
count = 3

@app.task
async def send(to: str) -> None: ...
"""
TEST = """
def test_one(jobs):
    from shop import app, send
    app.sync.enqueue(send, "x")
    assert jobs.drain().counts == {"ok": 1}
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=APP, test_shop=TEST)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey", *arguments)


def told(result: pytest.RunResult) -> str:
    """What a test that was refused shows: one sentence, and none of our frames."""
    result.assert_outcomes(errors=1)
    shown = result.stdout.str()
    assert not [words for words in ("plugin.py", "During handling", "direct cause") if words in shown], shown
    return shown


def test_the_app_is_found_by_the_ini_file(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nstowhand_app = shop:app")
    run(project).assert_outcomes(passed=1)
    assert not (project.path / "shop.db").exists()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "stowhand_app is not set; write stowhand_app ="),
        ("stowhand_app = shop:ap", "stowhand_app: 'shop:ap': shop has no 'ap'; did you mean 'app'?; write"),
        ("stowhand_app = shop:count", "an int, not App; did you mean 'app'?"),
        ("stowhand_app = shopp:app", "no module named 'shopp'; did you mean 'shop'?"),
        ("stowhand_app = ./shop.py", "use a module, not a file"),
        (
            "stowhand_app = broken:app",
            "failed: ZeroDivisionError: division by zero (broken.py, line 3)\n",
        ),
        ("stowhand_app = cut:app", "importing cut failed: SyntaxError: invalid syntax (cut.py, line 1)\n"),
    ],
)
def test_a_wrong_one_names_the_file_the_option_and_what_to_write(
    project: pytest.Pytester, named: str, said: str
) -> None:
    file = project.makeini(f"[pytest]\n{named}")
    project.makepyfile(broken="import json\n\n1 / 0", cut="def 1()")
    shown = told(run(project))
    assert str(file) in shown
    assert said in shown


def test_a_fixture_of_that_name_holds_for_its_folder(project: pytest.Pytester) -> None:
    project.makeconftest("import pytest, shop\n@pytest.fixture\ndef stowhand_app(): return shop.app")
    project.mkdir("sub").joinpath("conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef stowhand_app(): return 'shop:app'"
    )
    (project.path / "sub" / "test_sub.py").write_text("def test_sub(jobs): ...")
    result = run(project)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the fixture 'stowhand_app' returned a str; return an App*"])


def test_it_costs_nothing_where_it_is_not_used(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile("def test_nothing(): ...")
    pytester.makeconftest(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith('stowhand'))\n"
        "    assert ours == ['stowhand', 'stowhand.lazy_names', 'stowhand.testing', 'stowhand.testing.plugin'], ours\n"
        "    costly = {'asyncio', 'psycopg', 'sqlite3', 'msgspec', 'click'} & set(sys.modules)\n"
        "    assert not costly, costly\n"
    )
    # The other plugins of this environment import much of that by themselves; so does what measures coverage.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "stowhand.testing.plugin")
    assert result.ret == 0, result.stderr.str()
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("store='postgre'", "stowhand(store='postgre'): unknown store; use memory, sqlite, postgres"),
        ("stroe='postgres'", "stowhand(stroe='postgres'): write stowhand(store='memory', now=None)"),
        ("'postgres'", "stowhand('postgres'): write stowhand(store='memory', now=None)"),
        ("store=3", "stowhand(store=3): unknown store; use memory, sqlite, postgres"),
        ("now='noon'", "stowhand(now='noon'): use a datetime, or a text such as '2030-01-01T12:00'"),
        ("store='postgres'", 'needs a server; set stowhand_postgres = "postgresql://…" there, or set DATABASE_URL'),
    ],
)
def test_a_wrong_mark_says_what_to_write(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mark: str, said: str
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    project.makeini("[pytest]\nstowhand_app = shop:app")
    project.makepyfile(test_shop=f"import pytest\n@pytest.mark.stowhand({mark})\ndef test_one(jobs): ...")
    assert said in told(run(project, "--strict-markers"))


def test_a_server_that_does_not_answer_is_named_without_its_password(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://ada:hush@127.0.0.1:1/shop")
    project.makeini("[pytest]\nstowhand_app = shop:app")
    project.makepyfile(test_shop="import pytest\n@pytest.mark.stowhand(store='postgres')\ndef test_one(jobs): ...")
    shown = told(run(project))
    assert "stowhand(store='postgres'): postgresql://ada@127.0.0.1:1/shop: " in shown
    assert "Connection refused" in shown


@pytest.mark.rare
def test_processes_of_a_distributed_run_do_not_disturb_each_other(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\nstowhand_app = shop:app")
    marks = "import pytest\n@pytest.mark.parametrize('n', range(8))\n@pytest.mark.stowhand(store='sqlite')\n"
    project.makepyfile(test_shop=marks + TEST.lstrip().replace("(jobs)", "(jobs, n)"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ("-p", "stowhand.testing.plugin", "-p", "xdist.plugin")
    project.runpytest_subprocess("-p", "no:cacheprovider", *plugins, "-n", "2").assert_outcomes(passed=8)
