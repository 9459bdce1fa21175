"""Addresses of Redis: what is understood, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.flows.redis.address import check_hash_tag, read_address

FORMS = {
    "plain": ("redis://h", "server", (("h", 6379),), 0, "redis://h:6379/0"),
    "port and number": ("redis://h:7000/3", "server", (("h", 7000),), 3, "redis://h:7000/3"),
    "number as option": ("redis://h?db=4", "server", (("h", 6379),), 4, "redis://h:6379/4"),
    "IPv6": ("redis://[::1]:7/0", "server", (("::1", 7),), 0, "redis://[::1]:7/0"),
    "no host": ("redis://", "server", (("localhost", 6379),), 0, "redis://localhost:6379/0"),
    "TLS": ("rediss://h/1", "server", (("h", 6379),), 1, "rediss://h:6379/1"),
    "another's name": ("valkeys://h/1", "server", (("h", 6379),), 1, "rediss://h:6379/1"),
    "another's options": ("redis://h/1?socket_timeout=3", "server", (("h", 6379),), 1, "redis://h:6379/1"),
    "socket": ("unix:///a/b.sock?db=2", "socket", (), 2, "unix:///a/b.sock?db=2"),
    "long socket": ("redis+unix:///a/b%20c.sock", "socket", (), 0, "unix:///a/b c.sock?db=0"),
    "sentinels": (
        "redis+sentinel://a:1,b/svc/2",
        "sentinel",
        (("a", 1), ("b", 26379)),
        2,
        "redis+sentinel://a:1,b:26379/svc/2",
    ),
    "cluster": ("rediss+cluster://a:1,b", "cluster", (("a", 1), ("b", 6379)), 0, "rediss+cluster://a:1,b:6379"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_an_address_is_read(form: str) -> None:
    url, kind, hosts, db, shown = FORMS[form]
    address = read_address(url)
    assert (address.kind, address.hosts, address.db, str(address)) == (kind, hosts, db, shown)
    assert address.tls is shown.startswith("rediss")


SECRETIVE = {
    "server": "redis://me:s%40cret@h/0",
    "password alone": "redis://:s%40cret@h",
    "as options": "unix:///x.sock?username=me&password=s%40cret",
    "sentinels": "redis+sentinel://:s%40cret@h/svc?sentinel_username=you&sentinel_password=s%40cret",
    "cluster": "redis+cluster://me:s%40cret@h",
}


@pytest.mark.parametrize("form", SECRETIVE)
def test_a_secret_is_used_and_never_shown(form: str) -> None:
    address = read_address(SECRETIVE[form])
    assert address.password == "s@cret"
    for text in (str(address), repr(address), address.shown, address.scrub("it said s@cret!")):
        assert "cret" not in text
    assert address.clustered is (form == "cluster")


WRONG = {
    "no scheme": ("h:6379", "it looks like"),
    "another scheme": ("http://h", "it looks like"),
    "port": ("redis://h:s3cret", "it looks like"),
    "slash in the password": ("redis://:s3/cret@h", "it looks like"),
    "digits and a slash in the password": ("redis://:3/s3cret@h", "not a number"),
    "hash in the password": ("redis://:3#s3cret@h", "it looks like"),
    "question mark in the password": ("redis://:3?s3cret=@h", "unknown option after the '?'"),
    "number": ("redis://h/s3cret", "not a number"),
    "no socket": ("unix://?db=0", "no socket"),
    "no service": ("redis+sentinel://h", "no service"),
    "number in a cluster": ("redis+cluster://h/1", "one database"),
    "TLS option without TLS": ("redis://h?ssl_ca_certs=x", "use the scheme rediss"),
    "sentinel's login without sentinels": ("redis://h?sentinel_password=s3cret", "unknown option after the '?'"),
}


@pytest.mark.parametrize("form", WRONG)
def test_a_wrong_address_is_refused_and_not_repeated(form: str) -> None:
    url, words = WRONG[form]
    with pytest.raises(ConfigurationError) as caught:
        read_address(url)
    assert words in str(caught.value)
    assert "s3" not in str(caught.value)


def test_options_of_tls_are_taken_as_the_driver_calls_them() -> None:
    url = "rediss://h?ssl_ca_certs=/ca.pem&ssl_cert_reqs=CERT_NONE&ssl_check_hostname=false"
    assert read_address(url).tls_options == {
        "ssl_ca_certs": "/ca.pem",
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": False,
    }


def test_a_cluster_needs_a_hash_tag() -> None:
    cluster = read_address("redis+cluster://h")
    with pytest.raises(ConfigurationError, match="hash_tag"):
        check_hash_tag(cluster, None)
    check_hash_tag(cluster, "orders")
    check_hash_tag(read_address("redis://h"), None)
