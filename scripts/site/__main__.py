"""Build the site, strictly: ``python -m scripts.site [--output FOLDER] [--address URL] [--serve PORT]``."""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from scripts.site import llms, previews
from scripts.site.check import problems
from scripts.site.navigation import Unreachable, as_toml, navigation, pages_of
from scripts.site.pages import PICTURES, ROOT, BrokenLinks, collect
from scripts.site.versions import folder_of, publish

SETTINGS = Path(__file__).parent / "zensical.toml"
STYLE = Path(__file__).parent / "site.css"


def main() -> int:
    """Exit code 1 if anything is wrong; then nothing is published."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the site of the documentation.")
    parser.add_argument("--output", type=Path, default=ROOT / ".state" / "site", help="the folder of all versions")
    parser.add_argument("--serve", type=int, metavar="PORT", help="then show it on this port of this machine")
    parser.add_argument("--address", default=_documentation(), help="public address of the folder of all versions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as stage:
        try:
            problems = build(Path(stage), given.address.rstrip("/"))
        except (BrokenLinks, Unreachable) as error:
            problems = [f"{type(error).__doc__}".partition(";")[0] + f":\n{error}"]
        if problems:
            print("\n".join(problems), file=sys.stderr)
            return 1
        target = publish(Path(stage) / "site", given.output, _project()["version"])
    print(target)
    if given.serve is not None:
        _serve(given.output, given.serve)
    return 0


def build(stage: Path, documentation: str) -> list[str]:
    """Build the pages of this clone as a site in ``stage/site``. Return its problems.

    ``documentation``: public address of the folder of all versions; empty if there is none.
    """
    project = _project()
    address = f"{documentation}/{folder_of(project['version'])}/" if documentation else ""
    pages = collect()
    entries = navigation(pages.values())
    site = stage / "site"
    for page in pages.values():
        file = stage / "pages" / page.place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page.for_zensical)
    shutil.copytree(ROOT / PICTURES, stage / "pages" / PICTURES.name)
    shutil.copy(STYLE, stage / "pages" / STYLE.name)
    name, description = project["name"].title(), project["description"]
    head = f"site_name = {json.dumps(name)}\nsite_description = {json.dumps(description)}\nnav = {as_toml(entries)}\n"
    if address:
        head += f"site_url = {json.dumps(address)}\n"
    (stage / "zensical.toml").write_text(SETTINGS.read_text().replace("[project]\n", f"[project]\n{head}", 1))
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=stage, env=os.environ | {"NO_COLOR": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if built.returncode:
        return [built.stdout]
    if address:
        for page in pages_of(entries):
            previews.add(site / page.place.with_suffix(".html"), page, description, address)
    for page in pages_of(entries):  # beside each page its Markdown, which llms.txt lists
        (site / page.place).write_text(page.text)
    (site / "llms.txt").write_text(llms.listing(name, description, entries))
    (site / "llms-full.txt").write_text(llms.full(entries))
    return problems(site)


def _project() -> dict[str, str]:
    project: dict[str, str] = _pyproject()["project"]
    return project


def _documentation() -> str:
    """Return the address that pyproject.toml has; empty if there is none."""
    address: str = _pyproject()["tool"]["hatch"]["metadata"]["hooks"]["custom"]["documentation"]
    return address


def _pyproject() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def _serve(folder: Path, port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    sys.exit(main())
