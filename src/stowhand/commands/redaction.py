"""Redaction of secrets in output, regardless of how the output is divided into pieces.

A secret is searched as UTF-8 and in the encoding of this locale, in which programs receive it. A secret of several
lines is also searched line by line, because programs indent, number and wrap lines. Encoded forms (base64, percent
encoding, JSON escapes) are not searched: pass them as secrets too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from stowhand.errors import ConfigurationError, a_type

REDACTION_MARK = "******"
MIN_SECRET_CHARACTERS = 4
"""Minimum length of a secret. Shorter ones occur in ordinary words, whose redaction would reveal the secret."""
MIN_LINE_CHARACTERS = 8
"""Minimum length of a line of a longer secret that is searched separately."""
MAX_SECRETS = 1000
"""Maximum number of secrets of one job."""
MAX_SECRET_BYTES = 64 * 1024
_MARK_BYTES = REDACTION_MARK.encode()


class Redactor:
    """The secrets to remove from texts. Raises ConfigurationError, whose message never contains a secret."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        if isinstance(secrets, str | bytes):
            raise ConfigurationError("redact: got a string; use a list of secrets: redact=[token]")
        pieces: set[bytes] = set()
        for number, secret in enumerate(secrets, 1):
            pieces.update(_pieces(secret, number))
        self._secrets = sorted(pieces, key=len, reverse=True)
        self._max_secret_bytes = len(self._secrets[0]) if self._secrets else 0

    def text(self, text: str) -> str:
        """Return ``text`` with its secrets redacted."""
        if not self._secrets:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        stream = self.stream()
        return (stream.feed(raw) + stream.rest()).decode("utf-8", "replace")

    def stream(self) -> Stream:
        """Return a redactor for output that arrives in pieces."""
        return Stream(self)

    def find_secrets(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of each secret, including overlapping ones."""
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                yield start, start + len(secret)
                start = data.find(secret, start + 1)

    def partial_secret_start(self, data: bytes) -> int:
        """Return the first position from which ``data`` may be an incomplete secret; its length if there is none."""
        first = max(len(data) - self._max_secret_bytes + 1, 0)
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
    """Redactor of one output. It holds back the possible beginning of a secret until more output arrives."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = b""
        self._covered_bytes = 0
        """Number of held bytes that belong to a secret whose mark has been returned."""
        self._ends_with_mark = False
        """Whether the returned output ends with a mark."""

    def feed(self, data: bytes) -> bytes:
        """Add output; return the part that can be shown."""
        data = self._pending + data
        return self._show(data, self._redactor.partial_secret_start(data))

    def end(self) -> bytes:
        """End the output, and return the rest. It may be cut within a secret, so a possible beginning is redacted."""
        if len(self._pending) < MIN_SECRET_CHARACTERS:
            return self.rest()
        self._pending = b""
        self._covered_bytes = 0
        return b"" if self._ends_with_mark else _MARK_BYTES

    def rest(self) -> bytes:
        """End a complete output, and return the rest."""
        return self._show(self._pending, len(self._pending))

    def _show(self, data: bytes, end_of_shown: int) -> bytes:
        shown, done = [], self._covered_bytes
        for start, end in sorted(self._redactor.find_secrets(data)):
            if start > done:
                if start >= end_of_shown:
                    break
                shown.append(data[done:start])
                self._ends_with_mark = False
            if not self._ends_with_mark:
                shown.append(_MARK_BYTES)
                self._ends_with_mark = True
            done = max(done, end)
        if done < end_of_shown:
            shown.append(data[done:end_of_shown])
            self._ends_with_mark = False
        self._pending, self._covered_bytes = data[end_of_shown:], max(done - end_of_shown, 0)
        return b"".join(shown)


def _pieces(secret: object, number: int) -> Iterator[bytes]:
    if not isinstance(secret, str):
        raise ConfigurationError(f"redact: secret {number} is {a_type(secret)}; use strings")
    if len(secret.strip()) < MIN_SECRET_CHARACTERS:
        raise ConfigurationError(
            f"redact: secret {number} is empty or very short; use at least {MIN_SECRET_CHARACTERS} characters,"
            " or leave it out"
        )
    if number > MAX_SECRETS:
        raise ConfigurationError(f"redact: more than {MAX_SECRETS} secrets")
    if (size := len(secret.strip().encode("utf-8", "surrogatepass"))) > MAX_SECRET_BYTES:
        raise ConfigurationError(f"redact: secret {number} has {size} bytes, the limit is {MAX_SECRET_BYTES}")
    lines = [line.strip() for line in secret.splitlines()]
    for text in (secret.strip(), *(line for line in lines if len(lines) > 1 and len(line) >= MIN_LINE_CHARACTERS)):
        yield text.encode("utf-8", "surrogatepass")
        with suppress(UnicodeEncodeError):  # a text that the locale cannot encode cannot be passed to a program
            yield os.fsencode(text)
