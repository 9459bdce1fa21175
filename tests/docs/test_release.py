"""What a release would hold: built from the commit, and looked into. (Installing it is scripts/release --dry-run.)"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.releasing.artifacts import build, faults
from tests.docs.pages import ROOT

VERSION = "0.1.0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is built from a commit, and this is no clone")
    return build(ROOT, tmp_path_factory.mktemp("release"))


def test_wheel_and_sdist_contain_the_committed_files(built: tuple[Path, Path]) -> None:
    assert faults(ROOT, *built, VERSION) == []


def test_an_invalid_wheel_is_noticed(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    wrong = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(wrong, "w") as packed:
        for name in whole.namelist():
            if name != "stowhand/py.typed":
                packed.writestr(
                    name, whole.read(name).replace(b"\nLicense-Expression: MIT\n", b"\nLicense-Expression: ?\n")
                )
        packed.writestr("stowhand/left_over.py", "")
    found = faults(ROOT, wrong, sdist, "0.2.0")
    assert [line.partition(":")[0] for line in found] == [
        "metadata",
        "the wheel lacks stowhand/py.typed",
        "the wheel has stowhand/left_over.py, which is not committed",
    ]
    assert "MIT" not in found[0]
