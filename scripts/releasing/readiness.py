"""What must hold in a clone before it may be released."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from packaging.version import InvalidVersion, Version


def obstacles(root: Path, version: str) -> list[str]:
    """Everything that stands in the way, at once; empty if the clone is ready."""
    return [
        *_of_the_version(root, version),
        *_of_the_addresses(root),
        *_of_the_changelog(root, version),
        *_of_the_repository(root, version),
    ]


def section(root: Path, version: str) -> str:
    """What the changelog says about a version, without its heading."""
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def _of_the_version(root: Path, version: str) -> list[str]:
    try:
        if str(Version(version)) != version or len(Version(version).release) != 3:
            return [f"a version has three numbers: {version}"]
    except InvalidVersion:
        return [f"not a version: {version}"]
    with (root / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["version"]
    return [] if declared == version else [f"pyproject.toml says {declared}, not {version}"]


def _of_the_addresses(root: Path) -> list[str]:
    with (root / "pyproject.toml").open("rb") as file:
        addresses = tomllib.load(file)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return [
        f"pyproject.toml has no address of the {name}: links of the README would lead nowhere in a package index"
        for name in ("repository", "documentation")
        if not addresses[name]
    ]


def _of_the_changelog(root: Path, version: str) -> list[str]:
    headings = re.findall(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not headings or headings[0].split()[0] != version:
        return [f"the first section of CHANGELOG.md is not {version}"]
    problems = []
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", headings[0]):
        problems.append(f"the heading of CHANGELOG.md has no date: {headings[0]}; {version} (YYYY-MM-DD) is wanted")
    if not section(root, version):
        problems.append(f"CHANGELOG.md says nothing about {version}")
    return problems


def _of_the_repository(root: Path, version: str) -> list[str]:
    problems = []
    changed = _git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    if changed:
        problems.append(f"{len(changed)} files are not committed, first {changed[0][3:]}")
    if _git(root, "tag", "--list", f"v{version}"):
        problems.append(f"the tag v{version} is there already")
    return problems


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
