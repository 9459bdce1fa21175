"""No secret gets through, however the output is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowhand.commands.redaction import MAX_SECRETS, REDACTION_MARK, Redactor
from stowhand.errors import ConfigurationError


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join(stream.feed(piece) for piece in pieces) + stream.rest()


def blacked_out(data: bytes, secrets: list[bytes]) -> bytes:
    """The same, slowly: every byte of every occurrence, and one mark for each run of them."""
    black = {
        place
        for secret in secrets
        for start in range(len(data))
        if data.startswith(secret, start)
        for place in range(start, start + len(secret))
    }
    shown = bytearray()
    for place, byte in enumerate(data):
        if place not in black:
            shown.append(byte)
        elif place - 1 not in black:
            shown += REDACTION_MARK.encode()
    return bytes(shown)


secrets_of_two_letters = st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=3)


@given(secrets_of_two_letters, st.lists(st.text("abc", max_size=6).map(str.encode), max_size=12))
def test_every_byte_of_a_secret_is_redacted_wherever_reads_are_cut(secrets: list[str], pieces: list[bytes]) -> None:
    redactor = Redactor(secrets)
    expected = blacked_out(b"".join(pieces), [secret.encode() for secret in secrets])
    assert streamed(redactor, pieces) == expected
    assert redactor.text(b"".join(pieces).decode()) == expected.decode()


def test_a_secret_cut_byte_by_byte_is_found_and_the_rest_is_shown_at_once() -> None:
    stream = Redactor(["hunter-22"]).stream()
    output = b"the password is hunter-22, not hunter-21\n"
    shown = [stream.feed(output[place : place + 1]) for place in range(len(output))]
    assert b"".join(shown) == b"the password is ******, not hunter-21\n"
    assert shown[0] == b"t"


def test_overlapping_secrets_are_redacted_completely() -> None:
    assert Redactor(["abcdef", "defghi", "cdef"]).text("<abcdefghi>") == "<******>"


def test_a_key_of_several_lines_is_found_whole_and_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\nq83vEjRWeJA=\nab\n-----END KEY-----\n"
    redactor = Redactor([key])
    assert redactor.text(f"key:\n{key}done") == "key:\n******\ndone"
    assert redactor.text("  1: MIIEpAIBAAKCAQEA\r\n  2: q83vEjRWeJA=\r\n") == "  1: ******\r\n  2: ******\r\n"
    assert redactor.text("ab is not a secret") == "ab is not a secret"


def test_a_secret_is_also_found_as_the_bytes_that_a_program_is_given() -> None:
    secret = "p\udce9ch\udce9-22"  # as os.environ has what is not UTF-8
    redactor = Redactor([secret])
    assert streamed(redactor, [b"it is p\xe9ch", b"\xe9-22!"]) == b"it is ******!"
    assert redactor.text(f"it is {secret}!") == "it is ******!"
    assert Redactor(["\ud800 cannot be given"]).text("nor \ud800 cannot be given") == "nor ******"


def test_output_that_ends_in_the_middle_of_a_secret_does_not_show_its_beginning() -> None:
    stream = Redactor(["hunter-22"]).stream()
    assert stream.feed(b"password hunter-2") + stream.end() == b"password ******"
    stream = Redactor(["hunter-22"]).stream()
    assert stream.feed(b"a hun") + stream.end() == b"a hun"


def test_what_is_held_back_stays_small() -> None:
    stream = Redactor(["aaaa"]).stream()
    assert stream.feed(b"a" * 100_000) == REDACTION_MARK.encode()
    assert stream.feed(b"a" * 100_000 + b"b") == b"b"
    assert len(stream._pending) == 0


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (["long enough", ""], "secret 2 is empty or very short"),
        ([" \n abc"], "secret 1 is empty or very short"),
        ([b"bytes"], "secret 1 is a bytes"),
        ([None], "secret 1 is a NoneType"),
        ("a string", "use a list of secrets"),
        (["x" * 100_000], "the limit is 65536"),
        ([f"secret {number}" for number in range(MAX_SECRETS + 1)], "more than 1000 secrets"),
    ],
)
def test_what_cannot_be_a_secret_is_refused_without_showing_one(secrets: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        Redactor(secrets)
    assert "long enough" not in str(refused.value)
    assert "abc" not in str(refused.value)
