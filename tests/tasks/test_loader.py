"""``module:name`` on a command line: found, or explained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.tasks.loader import load_object

MODULES = {
    "shop_jobs.py": (
        "from stowhand import App\napp = App('sqlite:///x.db')\nnumber = 3\nclass Holder:\n    inner = app\n"
    ),
    "shop_fails.py": "1/0",
    "shop_imports.py": "import shop_not_there",
    "shop_without.py": "number = 3",
    "shop_pack/__init__.py": "",
    "shop_pack/jobs.py": "from stowhand import App\nother = App('sqlite:///x.db')\n",
}


@pytest.fixture(autouse=True)
def in_a_folder_with_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


@pytest.mark.parametrize("where", ["shop_jobs:app", "shop_jobs", "shop_jobs:Holder.inner", "shop_pack.jobs:other"])
def test_an_app_is_found_from_the_current_folder(where: str) -> None:
    assert isinstance(load_object(where, App), App)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("shop_jbos:app", "'shop_jbos:app': no module named 'shop_jbos'; did you mean 'shop_jobs'?"),
        ("zzz:app", "'zzz:app': no module named 'zzz' in "),
        ("shop_pack.nothing:app", "'shop_pack.nothing:app': no module named 'shop_pack.nothing'"),
        ("shop_pack.job:x", "'shop_pack.job:x': no module named 'shop_pack.job'; did you mean 'shop_pack.jobs'?"),
        ("shop_pack.zzz:other", "'shop_pack.zzz:other': no module named 'shop_pack.zzz' in "),
        ("shop_jobs.app", "'shop_jobs.app': no module named 'shop_jobs.app'; did you mean 'shop_jobs:app'?"),
        ("shop_jobs:ap", "'shop_jobs:ap': shop_jobs has no 'ap'; did you mean 'app'?"),
        ("shop_jobs:number", "'shop_jobs:number': an int, not App; did you mean 'app'?"),
        ("shop_pack.jobs", "'shop_pack.jobs': shop_pack.jobs has no 'app'; did you mean 'other'?"),
        ("shop_without:app", "'shop_without:app': shop_without has no 'app'; it has no App"),
        ("shop_fails:app", "'shop_fails:app': importing shop_fails failed: ZeroDivisionError: division by zero"),
        ("shop_imports:app", "'shop_imports:app': importing shop_imports failed: No module named 'shop_not_there'"),
        ("shop_jobs.py:app", "'shop_jobs.py:app': use a module, not a file; did you mean 'shop_jobs:app'?"),
        ("./shop_jobs:app", "'./shop_jobs:app': use a module, not a file; did you mean 'shop_jobs:app'?"),
        (":app", "':app': write it as module:name"),
        (
            "shop_jobs:make_app()",
            "'shop_jobs:make_app()': a call is not allowed; write app = make_app() in",
        ),
    ],
)
def test_what_is_not_found_is_explained(where: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_object(where, App)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import shop_jobs\n\n1 / 0", "ZeroDivisionError: division by zero (shop_pack/deep.py, line 3)"),
        ("import shop_not_there", "No module named 'shop_not_there' (shop_pack/deep.py, line 1)"),
        ("from stowhand import App\nApp(schema=3)", "schema: got an int; use text (shop_pack/deep.py, line 2)"),
        ("def 1()", "SyntaxError: invalid syntax (shop_pack/deep.py, line 1)"),
        ("import json\njson.loads('x')", "(shop_pack/deep.py, line 2)"),
    ],
)
def test_the_file_and_the_line_are_named_of_what_fails(tmp_path: Path, text: str, said: str) -> None:
    """The module that is asked for imports many, and many packages have one of the same name."""
    (tmp_path / "shop_pack" / "deep.py").write_text(text)
    (tmp_path / "shop_all.py").write_text("import shop_pack.deep\n")
    with pytest.raises(ConfigurationError) as caught:
        load_object("shop_all:app", App)
    assert str(caught.value).endswith(said)
