"""A site holds a folder for each version, a list of them for the menu of its pages, and a first page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

LIST = "versions.json"
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>Stowhand</title>
<meta http-equiv="refresh" content="0; url={folder}/index.html">
<a href="{folder}/index.html">Stowhand {title}</a>
"""


def folder_of(version: str) -> str:
    """Patches of one minor version have the same pages: 1.2.3 is ``1.2``."""
    return ".".join(version.split(".")[:2])


def publish(built: Path, output: Path, version: str) -> Path:
    """Put a built site beside those of other versions, in the place of an older build of its own; its folder."""
    folder = folder_of(version)
    target = output / folder
    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target)
    listed = output / LIST
    known = json.loads(listed.read_text()) if listed.exists() else []
    entries = {entry["version"]: entry["title"] for entry in known} | {folder: version}
    newest_first = sorted(entries, key=_numbers, reverse=True)
    newest = newest_first[0]
    shown = [
        {"version": one, "title": entries[one], "aliases": ["latest"] if one == newest else []} for one in newest_first
    ]
    listed.write_text(json.dumps(shown, indent=2) + "\n")
    (output / "index.html").write_text(_REDIRECT.format(folder=newest, title=entries[newest]))
    for name in ("llms.txt", "llms-full.txt"):
        if (output / newest / name).exists():
            text = (output / newest / name).read_text()
            (output / name).write_text(text.replace("](", f"]({newest}/") if name == "llms.txt" else text)
    return target


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
