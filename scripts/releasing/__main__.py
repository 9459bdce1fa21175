"""Make a release: ``python -m scripts.releasing VERSION [--check]``."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.releasing import artifacts, trial
from scripts.releasing.readiness import obstacles, section

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Return 1 if anything is wrong; then there is no tag and no file in ``dist``."""
    parser = argparse.ArgumentParser(prog="scripts/release", description="Make a release of what is committed.")
    parser.add_argument("version", help="three numbers, as in pyproject.toml and in the first section of CHANGELOG.md")
    parser.add_argument("--check", action="store_true", help="do everything except the tag and the files in dist")
    options = parser.parse_args()
    problems = obstacles(ROOT, options.version)
    for line in problems:
        print(f"not ready: {line}", file=sys.stderr)
    if problems and not options.check:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = _build_and_try(Path(folder), options.version)
        except trial.Unfit as error:
            print(error, file=sys.stderr)
            return 1
        if options.check:
            print("check only: nothing was tagged")
            return 1 if problems else 0
        dist = ROOT / "dist" / options.version
        shutil.copytree(built, dist)
    _tag(options.version)
    print(f"now: git push origin v{options.version}, upload {dist}, and publish the site (scripts/docs)")
    return 0


def _build_and_try(folder: Path, version: str) -> Path:
    wheel, sdist = artifacts.build(ROOT, folder)
    if faults := artifacts.faults(ROOT, wheel, sdist, version):
        raise trial.Unfit("\n".join(faults))
    readme = (ROOT / "README.md").read_text()
    for artifact in (wheel, sdist):
        bare = folder / f"bare-{artifact.suffix[1:]}"
        bare.mkdir()
        trial.run(artifact, bare, version, readme)
        print(f"{artifact.name}: installed in an empty environment; the example of the README ran")
    return wheel.parent


def _tag(version: str) -> None:
    message = f"Stowhand {version}\n\n{section(ROOT, version)}\n"
    subprocess.run(
        ["git", "tag", "--annotate", f"v{version}", "--file", "-"], cwd=ROOT, input=message, text=True, check=True
    )


if __name__ == "__main__":
    sys.exit(main())
