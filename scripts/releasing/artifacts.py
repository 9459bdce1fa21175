"""Wheel and sdist: made from what is committed, and looked into."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.version import Version

_PACKAGE = "src/stowhand/"


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """Build both from the commit, so that nothing slips in that only this clone has; wheel and sdist."""
    tree, output = folder / "tree", folder / "dist"
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tree, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
    subprocess.run(command, cwd=tree, capture_output=True, check=True)
    (wheel,) = output.glob("*.whl")
    (sdist,) = output.glob("*.tar.gz")
    return wheel, sdist


def faults(root: Path, wheel: Path, sdist: Path, version: str) -> list[str]:
    """What is missing in them, too much, or said wrongly in their metadata."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=root, stdout=subprocess.PIPE, check=True
    )
    committed = set(listed.stdout.decode().splitlines())
    package = {name.removeprefix("src/") for name in committed if name.startswith(_PACKAGE)}
    problems: list[str] = []
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        problems += _of_the_metadata(packed.read(about), version)
        held = {name for name in names if ".dist-info/" not in name}
        if not any(name.endswith("/licenses/LICENSE") for name in names):
            problems.append("the wheel has no licence")
    problems += [f"the wheel lacks {name}" for name in sorted(package - held)]
    problems += [f"the wheel has {name}, which is not committed" for name in sorted(held - package)]
    with tarfile.open(sdist) as packed_source:
        inside = {name.partition("/")[2] for name in packed_source.getnames()}
    wanted = committed - {".gitignore", ".git-blame-ignore-revs"}
    problems += [f"the sdist lacks {name}" for name in sorted(wanted - inside)]
    return problems


def _of_the_metadata(raw: bytes, version: str) -> list[str]:
    """Strictly, as a package index reads it."""
    try:
        found = Metadata.from_email(raw, validate=True)
    except ExceptionGroup as group:
        return [f"metadata: {error}" for error in group.exceptions]
    problems = []
    if found.version != Version(version):
        problems.append(f"metadata: the version is {found.version}")
    if found.description_content_type != "text/markdown" or not found.description:
        problems.append("metadata: the README is not the description, as Markdown")
    return problems
