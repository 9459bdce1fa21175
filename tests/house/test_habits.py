"""House rule: what CONTRIBUTING says is done by programs, and files for a public host say the same as the pages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.releasing.readiness import obstacles, section
from tests.support.sources import ROOT


def test_the_matrix_of_a_public_host_matches_the_page() -> None:
    jobs = load(".github/workflows/test.yml")["jobs"]
    servers = jobs["redis"]["strategy"]["matrix"]["server"]
    assert {
        "Python": jobs["suite"]["strategy"]["matrix"]["python"],
        "PostgreSQL": jobs["postgres"]["strategy"]["matrix"]["postgres"],
        "Redis": [name.partition(":")[2] for name in servers if name.startswith("redis:")],
        "Valkey": [name.partition(":")[2] for name in servers if name.startswith("valkey/")],
    } == listed_on_the_page()


def test_a_public_host_runs_only_existing_programs() -> None:
    steps = [
        step for job in load(".github/workflows/test.yml")["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert steps
    for step in steps:
        program, *folders = step["run"].split()
        assert os.access(ROOT / program, os.X_OK), program
        assert all((ROOT / folder).is_dir() for folder in folders), folders


def test_the_matrix_starts_with_the_oldest_supported_python() -> None:
    required = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert listed_on_the_page()["Python"][0] == required[1]


def test_the_check_of_a_commit_is_part_of_the_full_check() -> None:
    hooks = {hook["id"]: hook for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    whole = (ROOT / "scripts" / "test").read_text()
    for name in ("ruff-check", "ruff-format", "mypy", "lint-imports"):
        program = hooks[name]["entry"].removeprefix(".venv/bin/").removesuffix(" --fix")
        assert program.split()[0] in whole, name
    assert os.access(ROOT / hooks["commit-message"]["entry"], os.X_OK)


@pytest.mark.parametrize("name", ["ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/wish.yml", "dependabot.yml"])
def test_the_files_of_a_public_host_are_valid(name: str) -> None:
    assert load(f".github/{name}")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("flows: follow the child by its new name\n\nThe old one is gone.\n", []),
        ("tests/web: tab through every control\n\nOne was unreachable.\n", []),
        ("# a comment\nflows: follow the child\n\nThe old one is gone.\n", []),
        ("fixup! flows: follow the child\n", []),
        ("flows: follow the child\n", ["the body gives the reason"]),
        ("follow the child\n\nWhy.\n", ['the form "area: summary"']),
        ("Flows: follow the child\n\nWhy.\n", ['the form "area: summary"']),
        ("flows:follow the child\n\nWhy.\n", ['the form "area: summary"']),
        ("flows: Follow the child\n\nWhy.\n", ["starts in lower case"]),
        ("flows: added a child.\n\nWhy.\n", ["in the imperative", "without a full stop"]),
        ("flows: following a child\n\nWhy.\n", ["in the imperative"]),
        ("flows: follow the child\nat once\n", ["the second line is empty", "the body gives the reason"]),
        (f"flows: follow {'x' * 60}\n\nWhy.\n", ["the maximum is 72"]),
    ],
)
def test_the_message_of_a_commit_is_checked(tmp_path: Path, message: str, said: list[str]) -> None:
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([ROOT / "scripts" / "commit-message", file], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == bool(said)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


def test_a_clone_that_is_not_ready_for_a_release_lists_all_obstacles(tmp_path: Path) -> None:
    clone(tmp_path, declared="1.2.2", heading="1.2.3 (unreleased)", repository="")
    (tmp_path / "new").touch()
    subprocess.run(["git", "tag", "v1.2.3"], cwd=tmp_path, check=True)
    assert obstacles(tmp_path, "1.2.3") == [
        "pyproject.toml says 1.2.2, not 1.2.3",
        "pyproject.toml has no address of the repository: links of the README would lead nowhere in a package index",
        "the heading of CHANGELOG.md has no date: 1.2.3 (unreleased); 1.2.3 (YYYY-MM-DD) is wanted",
        "1 files are not committed, first new",
        "the tag v1.2.3 is there already",
    ]
    first, _, third, *_ = obstacles(tmp_path, "1.2")
    assert [first, third] == [
        "a version has three numbers: 1.2",
        "the first section of CHANGELOG.md is not 1.2",
    ]


def test_a_clone_that_is_ready_for_a_release_has_no_obstacles(tmp_path: Path) -> None:
    clone(tmp_path, declared="1.2.3", heading="1.2.3 (2026-11-23)")
    assert obstacles(tmp_path, "1.2.3") == []
    assert section(tmp_path, "1.2.3") == "* What you notice."


def clone(folder: Path, *, declared: str, heading: str, repository: str = "https://example.com/stowhand") -> None:
    (folder / "pyproject.toml").write_text(
        f'[project]\nversion = "{declared}"\n[tool.hatch.metadata.hooks.custom]\n'
        f'repository = "{repository}"\ndocumentation = "https://docs.example.com"\n'
    )
    (folder / "CHANGELOG.md").write_text(f"# Changes\n\n## {heading}\n\n* What you notice.\n\n## 1.2.2 (2026-01-01)\n")
    author = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "Begin"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def listed_on_the_page() -> dict[str, list[str]]:
    """The table of what a public host runs."""
    page = (ROOT / "docs" / "reference" / "versions.md").read_text()
    table = page.partition("## What a public host runs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ([\d., ]+) \|", table, re.MULTILINE)
    return {name: versions.split(", ") for name, versions in rows}
