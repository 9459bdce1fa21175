"""Secrets are blacked out on their way into a log, however the output is cut into pieces.

A secret is looked for as the bytes of its UTF-8, and as those that a program is given in this locale. One of several
lines is also looked for line by line, because programs indent, number and reflow what they print. What is encoded
(base64, percent signs, JSON escapes) is another text: give that form as a secret too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from stowhand.errors import ConfigurationError, a_type

REDACTION_MARK = "******"
MIN_SECRET_CHARACTERS = 4
"""Characters. Shorter ones stand in ordinary words, and blacking those out would show where the secret is."""
MIN_LINE_CHARACTERS = 8
"""Characters of a line of a longer secret that is looked for by itself."""
MAX_SECRETS = 1000
"""Secrets of one job."""
MAX_SECRET_BYTES = 64 * 1024
"""Bytes of one secret."""
_MARK_BYTES = REDACTION_MARK.encode()


class Redactor:
    """Secrets to remove from texts. Raises ConfigurationError, which never shows a secret."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        if isinstance(secrets, str | bytes):
            raise ConfigurationError("redact: a string given; give a list of secrets: redact=[token]")
        pieces: set[bytes] = set()
        for number, secret in enumerate(secrets, 1):
            pieces.update(_pieces(secret, number))
        self._secrets = sorted(pieces, key=len, reverse=True)
        self._longest = len(self._secrets[0]) if self._secrets else 0

    def text(self, text: str) -> str:
        """``text`` without any of them."""
        if not self._secrets:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        stream = self.stream()
        return (stream.feed(raw) + stream.rest()).decode("utf-8", "replace")

    def stream(self) -> Stream:
        """Return a redactor of output that comes in pieces."""
        return Stream(self)

    def find_secrets(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the places of secrets, overlapping ones too."""
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                yield start, start + len(secret)
                start = data.find(secret, start + 1)

    def partial_secret_start(self, data: bytes) -> int:
        """Return where the longest end of ``data`` begins that may begin a secret; its length if there is none."""
        first = max(len(data) - self._longest + 1, 0)
        best = len(data)
        for secret in self._secrets:
            start = data.find(secret[:1], max(first, len(data) - len(secret) + 1))
            while 0 <= start < best:
                if secret.startswith(data[start:]):
                    best = start
                    break
                start = data.find(secret[:1], start + 1)
        return best


class Stream:
    """Redactor of one output. Holds back what may begin a secret until more arrives."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = b""
        self._covered = 0
        """Held bytes that belong to a mark that has been written."""
        self._ends_with_mark = False
        """A mark is the last that was shown."""

    def feed(self, data: bytes) -> bytes:
        """Add output. Returns what may be shown."""
        data = self._pending + data
        return self._show(data, self._redactor.partial_secret_start(data))

    def end(self) -> bytes:
        """End the output, which may have been cut within a secret: the beginning of one counts as one."""
        if len(self._pending) < MIN_SECRET_CHARACTERS:
            return self.rest()
        self._pending = b""
        self._covered = 0
        return b"" if self._ends_with_mark else _MARK_BYTES

    def rest(self) -> bytes:
        """End the output, which is complete."""
        return self._show(self._pending, len(self._pending))

    def _show(self, data: bytes, upto: int) -> bytes:
        shown, done = [], self._covered
        for start, end in sorted(self._redactor.find_secrets(data)):
            if start > done:
                if start >= upto:
                    break
                shown.append(data[done:start])
                self._ends_with_mark = False
            if not self._ends_with_mark:
                shown.append(_MARK_BYTES)
                self._ends_with_mark = True
            done = max(done, end)
        if done < upto:
            shown.append(data[done:upto])
            self._ends_with_mark = False
        self._pending, self._covered = data[upto:], max(done - upto, 0)
        return b"".join(shown)


def _pieces(secret: object, number: int) -> Iterator[bytes]:
    if not isinstance(secret, str):
        raise ConfigurationError(f"redact: secret {number} is {a_type(secret)}; give strings")
    if len(secret.strip()) < MIN_SECRET_CHARACTERS:
        raise ConfigurationError(
            f"redact: secret {number} is empty or very short; give at least {MIN_SECRET_CHARACTERS} characters,"
            " or leave it out"
        )
    if number > MAX_SECRETS:
        raise ConfigurationError(f"redact: more than {MAX_SECRETS} secrets")
    if (size := len(secret.strip().encode("utf-8", "surrogatepass"))) > MAX_SECRET_BYTES:
        raise ConfigurationError(f"redact: secret {number} has {size} bytes, the limit is {MAX_SECRET_BYTES}")
    lines = [line.strip() for line in secret.splitlines()]
    for text in (secret.strip(), *(line for line in lines if len(lines) > 1 and len(line) >= MIN_LINE_CHARACTERS)):
        yield text.encode("utf-8", "surrogatepass")
        with suppress(UnicodeEncodeError):  # then no program can be given it
            yield os.fsencode(text)
