"""``module:name`` on a command line: found, or explained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.tasks.loading import load_object

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
def in_a_folder_with_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


@pytest.mark.parametrize("where", ["shop_jobs:app", "shop_jobs", "shop_jobs:Holder.inner", "shop_pack.jobs:other"])
def test_an_app_is_found_from_the_current_folder(where: str) -> None:
    assert isinstance(load_object(where, App), App)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("shop_jbos:app", "'shop_jbos:app': no module named 'shop_jbos'; did you mean 'shop_jobs'?"),
        ("zzz:app", "'zzz:app': no module named 'zzz' in "),
        ("shop_pack.nothing:app", "'shop_pack.nothing:app': no module named 'shop_pack.nothing'"),
        ("shop_jobs:ap", "'shop_jobs:ap': shop_jobs has no 'ap'; did you mean 'app'?"),
        ("shop_jobs:number", "'shop_jobs:number': an int, not App; did you mean 'app'?"),
        ("shop_pack.jobs", "'shop_pack.jobs': shop_pack.jobs has no 'app'; did you mean 'other'?"),
        ("shop_without:app", "'shop_without:app': shop_without has no 'app'; it has no App at all"),
        ("shop_fails:app", "'shop_fails:app': importing shop_fails failed: ZeroDivisionError: division by zero"),
        ("shop_imports:app", "'shop_imports:app': importing shop_imports failed: No module named 'shop_not_there'"),
        ("shop_jobs.py:app", "'shop_jobs.py:app': no module named 'shop_jobs.py'"),
        ("./shop_jobs:app", "'./shop_jobs:app': write it as module:name, as in myproject.jobs:app"),
        (":app", "':app': write it as module:name"),
    ],
)
def test_what_is_not_found_is_explained(where: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_object(where, App)
    assert str(caught.value).startswith(complaint)
