"""A page that is followed in several terminals and in a browser.

    <!-- file: web.py -->          the next fenced block is this file
    <!-- end of: settings.py -->   the next fenced block is added to this file
    <!-- terminal: 2 -->           the next block is typed (`$ command`, `^C`) and printed in this terminal
    <!-- terminal: 3 or 4 -->      the same, in either of the two: the page names the first
    <!-- browser -->               the next paragraph has a URL to open, bold links and buttons to press, and what is
                                   typed into a form as code

A line `...` means any lines.
A command of terminal 1 ends before the next step. Those of other terminals go on, and their lines are waited for.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import shlex
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, Request, build_opener

from tests.docs.pages import alike, environment
from tests.support import subprocesses

PATIENCE = 60.0
COLUMNS = 200
ANY = "..."
_PER_REQUEST = ('"POST /', "[web(audit)]")
"""In lines that uvicorn and the dashboard print for each request; the page leaves them out."""
_LINK = re.compile(r"http://\S+/login\?code=\S+")
_STEP = re.compile(
    r"^<!-- (file|end of|terminal|browser)(?:: (.+?))? -->\n(?:```\w*\n(.*?)^```$|(.*?)\n\n)", re.MULTILINE | re.DOTALL
)
_BUTTON = re.compile(r"<button([^>]*)>(.*?)</button>", re.DOTALL)
_WORKER = re.compile(r"worker-[\w.-]+-(\d+)-[0-9a-f]{12}")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_DIFFERS = (
    (re.compile(r"^\d\d:\d\d:\d\d(\.\d+)? (?=\[)"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?Z?"), "TIME"),
    (re.compile(r"\d\.\d{2,3}s\b"), "TOOK"),
    (re.compile(r"process \[\d+\]"), "PROCESS"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"code=\S+"), "CODE"),
    (re.compile(r"(?<= )[\w.-]+:\d+(?= )"), "PROCESS"),
)


class Step(NamedTuple):
    """A marked block of a page."""

    kind: str
    where: str
    text: str


def read_steps(page: str) -> Iterator[Step]:
    """The marked blocks, in their order."""
    for kind, where, block, paragraph in _STEP.findall(page):
        yield Step(kind, where, block or paragraph)


class Terminal:
    """A window of ``COLUMNS`` columns in which one command after the other is run."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._processes: list[subprocesses.Popen] = []
        self._readers: list[threading.Thread] = []
        self._printed = bytearray()
        self._taken: list[str] = []

    def start(self, command: str) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        name, *words = shlex.split(command)
        program = [subprocesses.STOWHAND, *words] if name == "stowhand" else ["bash", "-c", command]
        process = subprocesses.Popen(
            program, cwd=self._folder, env=self._environ, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        self._processes.append(process)
        self._printed += b"\n"  # curl ends without one
        self._readers.append(threading.Thread(target=self._read, args=(master,), name="terminal"))
        self._readers[-1].start()

    def _read(self, master: int) -> None:
        with suppress(OSError):  # the last program that has the terminal open has ended
            while text := os.read(master, 65536):
                self._printed += text
        os.close(master)

    def end(self, number: int | None = None) -> None:
        """Wait for the end of the last command, which may get a signal before."""
        if number is not None:
            self._processes[-1].send_signal(number)
        self._processes[-1].wait(PATIENCE)
        self._readers[-1].join(PATIENCE)

    def succeeded(self) -> bool:
        """Whether the last command, which has ended, had the exit code 0."""
        return self._processes[-1].returncode == 0

    def close(self) -> None:
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.kill()  # unless it has ended
            process.wait(PATIENCE)
            reader.join(PATIENCE)

    def text(self) -> str:
        """All that was printed."""
        return _COLORS.sub("", self._printed.decode(errors="replace")).replace("\r", "")

    def new_lines(self) -> list[str]:
        """The lines, from all commands, that were not taken."""
        printed = [line for line in self.text().split("\n") if line.strip()]
        lines = [line for line in printed if not any(mark in line for mark in _PER_REQUEST)]
        for line in self._taken:
            lines.remove(line)
        return lines

    def take(self, line: str) -> None:
        self._taken.append(line)


class Reader:
    """Follows a page. ``replacements``: texts of the page that are others here."""

    def __init__(self, folder: Path, replacements: Mapping[str, str]) -> None:
        self._folder, self._replacements = folder, replacements
        self._terminals: dict[str, Terminal] = {}
        self._names: dict[str, str] = {}
        self._browser = build_opener(HTTPCookieProcessor())
        self._url = ""

    def follow(self, step: Step) -> None:
        text = self._here(step.text)
        match step.kind:
            case "file":
                (self._folder / step.where).write_text(text)
            case "end of":
                with (self._folder / step.where).open("a") as file:
                    file.write(text)
            case "browser":
                for url in re.findall(r"http://\S+", text):
                    self._open(url)
                for name in re.findall(r"\*\*(.+?)\*\*", text):
                    self._press(name, re.findall(r"`(.+?)`", text))
            case _:
                self._type(step.where.split(" or "), text)

    def run(self, command: str) -> None:
        """Run a command to its end, whatever it prints."""
        self._start("1", command)
        self._compare(command, [ANY])

    def lines_left_out(self) -> list[str]:
        return [line for terminal in self._terminals.values() for line in terminal.new_lines()]

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def _here(self, text: str) -> str:
        for one, other in self._replacements.items():
            text = text.replace(one, other)
        return text

    def _type(self, places: list[str], text: str) -> None:
        for command, output in self._commands(text):
            if command == "^C":
                self._terminals[places[0]].end(signal.SIGINT)
            elif command:
                self._start(places[0], command)
            if places == ["1"]:
                self._compare(command, output)
            else:
                self._wait_for(output, *places)

    def _commands(self, text: str) -> Iterator[tuple[str, list[str]]]:
        """Each with its lines; those before the first are of an earlier one."""
        before, *parts = re.split(r"^(?:\$ (?=\S)|(?=\^C$))", text, flags=re.MULTILINE)
        for part in [f"\n{before}", *parts] if before else parts:
            command, _, output = part.partition("\n")
            yield command, output.splitlines()

    def _start(self, where: str, command: str) -> None:
        for name, real in self._names.items():
            command = command.replace(_pid(name), _pid(real))
        environ = environment() | {"TERM": "xterm"}
        self._terminals.setdefault(where, Terminal(self._folder, environ)).start(command)

    def _compare(self, command: str, expected: list[str]) -> None:
        terminal = self._terminals["1"]
        terminal.end()
        printed = terminal.new_lines()
        for line in printed:
            terminal.take(line)
        if ANY in expected:
            assert terminal.succeeded(), f"$ {command}\n" + "\n".join(printed)
            printed = [line for line in printed if _plain(line) in map(_plain, expected)]
            expected = [line for line in expected if line != ANY]
        assert [*map(_plain, printed)] == [*map(_plain, expected)], f"$ {command}"
        for one, other in zip(expected, printed, strict=True):
            self._meet(one, other)

    def _wait_for(self, expected: list[str], first: str, *others: str) -> None:
        deadline = time.monotonic() + PATIENCE
        for line in expected:
            if line == ANY:
                continue
            while not (result := self._find(line, first, *others)):
                new = "\n".join(self._terminals[first].new_lines())
                assert time.monotonic() < deadline, f"not printed: {line}\n\nBut: {new}"
                time.sleep(0.01)
            where, printed = result
            self._terminals[where].take(printed)
            if where != first:
                self._terminals[first], self._terminals[where] = self._terminals[where], self._terminals[first]
                self._names.clear()
            self._meet(line, printed)
        if ANY in expected:
            for line in self._terminals[first].new_lines():
                self._terminals[first].take(line)

    def _find(self, line: str, *places: str) -> tuple[str, str] | None:
        for where in places:
            for printed in self._terminals[where].new_lines():
                if _plain(printed) == _plain(line):
                    return where, printed
        return None

    def _meet(self, line: str, printed: str) -> None:
        """The workers that the page names are always the same here, too."""
        for one, other in zip(_WORKER.finditer(line), _WORKER.finditer(printed), strict=True):
            assert self._names.setdefault(one[0], other[0]) == other[0], line

    def _press(self, name: str, typed: Sequence[str]) -> None:
        if not self._url:
            printed = "".join(terminal.text() for terminal in self._terminals.values())
            self._open(_LINK.findall(printed)[-1])
        page = self._open(self._url)
        for attributes, inner in re.findall(r"<a ([^>]*)>(.*?)</a>", page, re.DOTALL):
            if _words(inner) == name:
                self._open(_attribute(attributes, "href"))
                return
        for form in re.findall(r"<form .*?</form>", page, re.DOTALL):
            buttons = [(attributes, _words(inner)) for attributes, inner in _BUTTON.findall(form)]
            buttons += [(one, _attribute(one, "value")) for one in re.findall(r'<input type="submit"[^>]*>', form)]
            for attributes, label in buttons:
                if label == name:
                    self._send(form, attributes, typed)
                    return
        raise AssertionError(f"neither a link nor a button of {self._url}: {name}")

    def _send(self, form: str, button: str, typed: Sequence[str]) -> None:
        controls = re.findall(r"<input [^>]*>", form)
        fields = {_attribute(one, "name"): _attribute(one, "value") for one in [*controls, button]}
        empty = [_attribute(one, "name") for one in controls if _attribute(one, "type") in ("text", "password")]
        fields |= dict(zip(empty, typed, strict=False))
        self._open(_attribute(form, "action") or self._url, urlencode(fields).encode())

    def _open(self, url: str, form: bytes | None = None) -> str:
        """Open, or send a form, as a browser does; the page that it leads to."""
        self._url = urljoin(self._url, url)
        headers = {"origin": urljoin(self._url, "/")[:-1], "sec-fetch-site": "same-origin"} if form else {}
        with self._browser.open(Request(self._url, form, headers), timeout=PATIENCE) as response:
            self._url = response.url
            page: str = response.read().decode()
        return page


@contextmanager
def reading(folder: Path, replacements: Mapping[str, str]) -> Iterator[Reader]:
    """A reader, whose terminals are closed at the end."""
    reader = Reader(folder, replacements)
    try:
        yield reader
    finally:
        reader.close()


def _plain(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, name in _DIFFERS:
        line = pattern.sub(name, line)
    return "".join(alike(line))


def _pid(worker: str) -> str:
    result = _WORKER.fullmatch(worker)
    assert result is not None
    return result[1]


def _words(element: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", element)).strip()


def _attribute(element: str, name: str) -> str:
    result = re.search(rf'\b{name}="([^"]*)"', element)
    return html.unescape(result[1]) if result else ""
