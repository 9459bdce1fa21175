"""The files of a release: built from the commit, and examined. (scripts/release --check also installs them.)"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from hatch_build import AddressHook, with_absolute_links
from scripts.releasing.artifacts import build, faults
from tests.docs.pages import ROOT

VERSION = "0.1.0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is built from a commit, and this is not a clone")
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
    result = faults(ROOT, wrong, sdist, "0.2.0")
    assert [line.partition(":")[0] for line in result] == [
        "metadata",
        "the wheel lacks stowhand/py.typed",
        "the wheel has stowhand/left_over.py, which is not committed",
    ]
    assert "MIT" not in result[0]


README = "[![A](docs/a.webp)](docs/index.md), [a page](docs/b.md#part), [a host](https://example.com/x), [above](#top)"
ADDRESS = "https://example.com/stowhand"


def test_links_and_pictures_of_the_readme_become_absolute() -> None:
    assert with_absolute_links(README, ADDRESS, "1.2.3") == (
        f"[![A]({ADDRESS}/raw/v1.2.3/docs/a.webp)]({ADDRESS}/blob/v1.2.3/docs/index.md),"
        f" [a page]({ADDRESS}/blob/v1.2.3/docs/b.md#part), [a host](https://example.com/x), [above](#top)"
    )


def test_a_package_with_addresses_has_project_urls_and_absolute_links(tmp_path: Path) -> None:
    hook = AddressHook(str(ROOT), {"repository": f"{ADDRESS}/", "documentation": "https://docs.example.com"})
    metadata: dict[str, Any] = {"version": "1.2.3"}
    hook.update(metadata)
    assert metadata["urls"] == {
        "Documentation": "https://docs.example.com",
        "Repository": ADDRESS,
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }
    assert "](docs/" not in metadata["readme"]["text"]
    assert f"({ADDRESS}/blob/v1.2.3/docs/tutorial/index.md)" in metadata["readme"]["text"]


def test_a_package_without_addresses_has_no_project_urls() -> None:
    hook = AddressHook(str(ROOT), {"repository": "", "documentation": ""})
    metadata: dict[str, Any] = {"version": "1.2.3"}
    hook.update(metadata)
    assert (metadata["urls"], metadata["readme"]["text"]) == ({}, (ROOT / "README.md").read_text())
