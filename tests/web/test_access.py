"""Visitor may come in, how, and for how long; and that no other site comes in with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import DashboardChanged, Events, InvalidTokensSent
from stowhand.protocols.queue_store import QueueStore
from stowhand.remote.server.authenticator import MAX_WRONG_TOKENS_PER_MINUTE, Authenticator, Proxies
from stowhand.remote.server.tokens import TokenFile
from stowhand.testing import FakeClock, MemoryStore
from stowhand.web.access import Access
from stowhand.web.board import Board
from stowhand.web.live import MAX_QUIET_SECONDS, LiveStreams
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Request, Right, Visitor
from stowhand.web.visitors import LINK_LIFE_SECONDS, SESSION_LIFE_SECONDS, SignIn, SignInLink, Visitors
from tests.remote.server.tokens import make_token, revoke
from tests.web.browser import Browser, Page

EVERYTHING = frozenset(Right)
FOREIGN: dict[str, Any] = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


class Door:
    """A dashboard whose pages are never asked for: who is let in is seen by ``who``."""

    def __init__(self, tokens: Path, *, link: bool = False, **entrance: Any) -> None:
        self.clock, self.events = FakeClock(), Events()
        self.wrong: list[InvalidTokensSent] = []
        self.events.on(InvalidTokensSent, self.wrong.append)
        self.audit: list[DashboardChanged] = []
        self.events.on(DashboardChanged, self.audit.append)
        self.shown: list[str] = []
        self.tokens = tokens
        instance = SignInLink(self.shown.append, self.clock) if link else None
        gate = Authenticator(TokenFile(tokens), self.events, self.clock)
        self.access = Access(Visitors(gate, SignIn(**entrance), instance, self.clock, self.events))
        if instance is not None:
            instance.make()
        store = MemoryStore()

        async def opened() -> QueueStore:
            await store.open()
            return store

        self.board = Board(Reader(opened), self.access)

    def browser(self, **place: Any) -> Browser:
        return Browser(self.board, **place)

    async def who(self, **headers: Any) -> Visitor:
        """Visitor the sender of these headers is; they are let in."""
        sent = {"host": "127.0.0.1:8080"} | {name.replace("_", "-"): value for name, value in headers.items()}
        peer = sent.pop("peer", "127.0.0.1") or ""
        asked, refused = await self.access.admit(
            Request(headers={name: value for name, value in sent.items() if value is not None}, peer=peer)
        )
        assert refused is None, refused
        return asked.visitor


Opening = Callable[..., Door]


@pytest.fixture
def door(tmp_path: Path) -> Opening:
    return lambda **options: Door(tmp_path / "keys" / "tokens.json", **options)


# -- on this machine -------------------------------------------------------------------------------


async def test_a_local_program_can_read_everything_but_change_nothing(door: Opening) -> None:
    assert (await door().who()).rights == {Right.LOOK, Right.PAYLOADS}
    assert (await door(hide_payloads=True).who()).rights == {Right.LOOK}


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8080"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
        {"host": ""},
        {"host": None},
        {"x_forwarded_for": "10.0.0.1"},
        {"forwarded": "for=10.0.0.1"},
        {"via": "1.1 proxy"},
        {"x_forwarded_host": "jobs.example.com"},
    ],
)
async def test_without_identification_an_unknown_host_name_and_a_proxy_are_refused(
    door: Opening, headers: dict[str, str | None]
) -> None:
    page = await door().browser().open("/", 403, **headers)
    assert "<table" not in page.html
    assert "Host" not in page.headers


@pytest.mark.parametrize("host", ["localhost:8480", "LOCALHOST", "127.0.0.1", "[::1]:8480", "127.0.0.1:65535"])
async def test_loopback_host_names_are_accepted(door: Opening, host: str) -> None:
    await door().browser(host=host).open("/")


async def test_a_form_without_rights_is_refused_and_there_is_no_login(door: Opening) -> None:
    browser = door().browser()
    await browser.open("/login", 404)
    assert (await browser.ask("/login", {"secret": ["x"]})).status == 403


# -- the one-time link -----------------------------------------------------------------------------


async def signed_in(door: Door) -> Browser:
    browser = door.browser()
    page = await browser.open(door.shown[-1])
    await browser.follow(await browser.send(page.form("/login")))
    return browser


async def test_with_actions_nothing_is_shown_before_the_link_is_used(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    page = await browser.open("/jobs?state=failed", 401)
    assert page.headers["www-authenticate"] == "Bearer"
    (path,) = instance.shown
    page = await browser.open(path)
    after = await browser.send(page.form("/login"))
    assert (await instance.who(cookie=_cookies(browser))) == Visitor("link", EVERYTHING)
    page = await browser.follow(after)
    assert "Sign out" in page.html


async def test_opening_the_link_does_not_use_it(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    (path,) = instance.shown
    for method in ("GET", "HEAD", "GET"):
        assert (await instance.browser().ask(path, method=method)).status == 200
    first, second = instance.browser(), instance.browser()
    forms = [(await browser.open(path)).form("/login") for browser in (first, second)]
    assert (await first.send(forms[0])).status == 303
    late = Page(await second.send(forms[1]))
    assert late.status == 401
    assert "already used or has expired" in late.html
    await second.open("/", 401)


async def test_a_link_expires_after_ten_minutes(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    form = (await browser.open(instance.shown[0])).form("/login")
    await instance.clock.advance(LINK_LIFE_SECONDS)
    assert (await browser.send(form)).status == 401


async def test_a_new_link_is_shown_to_the_owner_and_not_on_the_page(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    await instance.clock.advance(LINK_LIFE_SECONDS)
    form = (await browser.open("/", 401)).form("/login/link")
    page = await browser.follow(await browser.send(form))
    assert len(instance.shown) == 2
    assert instance.shown[1].partition("=")[2] not in page.html
    await browser.send(page.form("/login/link"))
    assert len(instance.shown) == 2, "one that was not used is not replaced at once"
    old = await browser.open(instance.shown[0])
    assert (await browser.send(old.form("/login"))).status == 401
    assert (await signed_in(instance)).cookies


async def test_guessed_codes_are_rate_limited(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    form = (await browser.open("/login?code=guessed")).form("/login")
    statuses = [
        (await browser.send(form, secret=f"c{number}")).status for number in range(MAX_WRONG_TOKENS_PER_MINUTE + 1)
    ]
    assert statuses == [401] * MAX_WRONG_TOKENS_PER_MINUTE + [429]
    assert len(instance.wrong) == 1
    assert (await signed_in(instance)).cookies, "the right one passes"


async def test_without_tokens_a_pasted_token_is_refused(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    form = (await browser.open("/", 401)).form("/login/link")
    form.action = "/login"
    for secret in ("", "anything", "stow_0_x"):
        assert (await browser.send(form, secret=secret)).status == 401
    await browser.open("/", 401, authorization="Bearer anything")
    await browser.open("/", 401, authorization="Bearer ")


async def test_a_session_ends_by_expiry_by_signing_out_and_with_the_process(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = await signed_in(instance)
    other = door(link=True, allow_actions=True).browser()
    other.cookies = dict(browser.cookies)
    await other.open("/", 401)
    stolen = dict(browser.cookies)
    page = await browser.open("/")
    assert (await browser.send(page.form("/logout"))).status == 303
    assert not [name for name in browser.cookies if "session" in name]
    browser.cookies = stolen
    await browser.open("/", 401)
    await instance.clock.advance(LINK_LIFE_SECONDS)
    form = (await browser.open("/", 401)).form("/login/link")
    await browser.send(form)
    browser = await signed_in(instance)
    await browser.open("/")
    await instance.clock.advance(SESSION_LIFE_SECONDS)
    await browser.open("/", 401)


async def test_signing_in_again_replaces_the_session(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser, before = await signed_in(instance), instance.browser()
    before.cookies = dict(browser.cookies)
    await browser.send((await browser.open("/login")).form("/login/link"))
    await browser.send((await browser.open(instance.shown[-1])).form("/login"))
    await browser.open("/")
    await before.open("/", 401)


async def test_a_session_cookie_set_by_another_party_is_not_adopted(door: Opening) -> None:
    """Whoever plants a cookie before the login does not know the one after it."""
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    browser.cookies = {"stowhand-session-8080": "x" * 43, "stowhand-visit-8080": "y" * 43}
    form = (await browser.open(instance.shown[0])).form("/login")
    await browser.send(form)
    assert browser.cookies["stowhand-session-8080"] not in ("x" * 43, "y" * 43)


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "rights"),
    [
        (("read",), {Right.LOOK}),
        (("payload",), {Right.PAYLOADS}),
        (("act",), {Right.ACT}),
        (("add",), {Right.ADD}),
        (("claim", "enqueue"), set()),
        (("claim", "enqueue", "read", "payload", "act", "add"), EVERYTHING),
    ],
)
async def test_each_scope_gives_one_right(door: Opening, scopes: tuple[str, ...], rights: set[Right]) -> None:
    instance = door(allow_actions=True)
    token = make_token(instance.tokens, "ann", *scopes)
    who = await instance.who(authorization=f"Bearer {token}")
    assert who == Visitor(f"ann ({token.split('_')[1]})", frozenset(rights))
    plain = door()
    assert (await plain.who(authorization=f"Bearer {token}")).rights == rights - {Right.ACT, Right.ADD}
    hiding = door(allow_actions=True, hide_payloads=True)
    assert (await hiding.who(authorization=f"Bearer {token}")).rights == rights - {Right.PAYLOADS}


async def test_a_token_signs_in_and_leads_to_the_requested_page(door: Opening) -> None:
    instance = door(allow_actions=True)
    token = make_token(instance.tokens, "ann", "read", "act")
    browser = instance.browser(host="jobs.example.com", peer="10.0.0.7")
    page = await browser.open("/jobs?state=failed", 401)
    reply = await browser.send(page.form("/login"), secret=f" {token} ")
    assert dict(reply.headers)["location"] == "/jobs?state=failed"
    page = await browser.follow(reply)
    assert "ann (" in page.html
    assert token not in page.html
    revoke(instance.tokens, "ann")
    await browser.open("/", 401)


async def test_the_sign_in_page_is_not_an_error(door: Opening) -> None:
    """And leads to no page that would ask for it again."""
    instance = door()
    make_token(instance.tokens, "ann", "read")
    browser = instance.browser(host="jobs.example.com", peer="10.0.0.7")
    page = await browser.open("/", 401)
    assert ('class="alert"' in page.html, "<nav" in page.html) == (True, False)
    page = Page(await browser.send(page.form("/login"), secret="wrong"))
    assert 'class="alert bad" role="alert"' in page.html


async def test_a_live_page_ends_when_its_token_is_revoked(door: Opening) -> None:
    instance = door()
    token = make_token(instance.tokens, "ann", "read")
    live = LiveStreams(instance.board.answer, instance.board._reader, instance.clock)
    headers = {"host": "jobs.example.com", "authorization": f"Bearer {token}"}
    reply = await live.stream(Request(path="/jobs", headers=headers, peer="10.0.0.7"))
    assert not isinstance(reply.body, bytes)
    stream = aiter(reply.body)
    assert b"data-region" in await anext(stream)
    revoke(instance.tokens, "ann")
    following = asyncio.ensure_future(anext(stream))
    await instance.clock.advance(MAX_QUIET_SECONDS + 1)
    with pytest.raises(StopAsyncIteration):
        await following


async def test_a_token_without_rights_on_the_dashboard_does_not_sign_in(door: Opening) -> None:
    instance = door()
    worker = make_token(instance.tokens, "builder", "claim")
    limited = make_token(instance.tokens, "some", "read", tasks=("hello",))
    browser = instance.browser()
    form = (await browser.open("/", 401)).form("/login")
    for token, words in ((worker, "gives no right on this dashboard"), (limited, "some tasks, queues or serial keys")):
        page = Page(await browser.send(form, secret=token))
        assert (page.status, words in page.html) == (403, True)
    await browser.open("/", 403, authorization=f"Bearer {limited}")
    await browser.open("/", 403, authorization=f"Bearer {worker}")


async def test_wrong_tokens_are_rate_limited_on_every_path(door: Opening) -> None:
    instance = door()
    good = make_token(instance.tokens, "ann", "read")
    browser = instance.browser(peer="10.0.0.7")
    form = (await browser.open("/", 401)).form("/login")
    for number in range(MAX_WRONG_TOKENS_PER_MINUTE // 2):
        await browser.open("/", 401, authorization=f"Bearer stow_{number}_x")
        assert (await browser.send(form, secret=f"stow_{number}_x")).status == 401
    stopped = await browser.send(form, secret="stow_0_x")
    assert (stopped.status, dict(stopped.headers)["retry-after"]) == (429, "60")
    page = await browser.open("/", 429, authorization="Bearer nonsense")
    assert "too many wrong tokens from this address; wait a minute" in page.html
    assert [event.address for event in instance.wrong] == ["10.0.0.7"]
    await browser.open("/", authorization=f"Bearer {good}")
    await instance.clock.advance(61)
    await browser.open("/", 401, authorization="Bearer nonsense")


async def test_the_audit_names_successful_and_refused_sign_ins(door: Opening) -> None:
    made, linked = door(), door(link=True, allow_actions=True)
    await signed_in(linked)
    token = make_token(made.tokens, "ann", "read")
    browser = made.browser(peer="10.0.0.7")
    form = (await browser.open("/", 401)).form("/login")
    for secret in (*["stow_0_x"] * (MAX_WRONG_TOKENS_PER_MINUTE + 5), token):
        await browser.send(form, secret=secret)
    refused = DashboardChanged("sign in", "", ("token",), ("refused",), "10.0.0.7")
    assert made.audit[:-1] == [refused] * MAX_WRONG_TOKENS_PER_MINUTE, "whom the brake stops does not fill the log"
    assert made.audit[-1].user.startswith("ann (")
    assert linked.audit == [DashboardChanged("sign in", "link", ("link",), ("done",), "127.0.0.1")]


async def test_a_token_file_made_later_requires_tokens_and_ends_links(door: Opening) -> None:
    made, linked = door(), door(link=True, allow_actions=True)
    browser = await signed_in(linked)
    await made.who()
    make_token(made.tokens, "ann", "read")
    await made.browser().open("/", 401)
    await browser.open("/", 401)


# -- behind a proxy --------------------------------------------------------------------------------

PROXY = {"trust_header": "X-Forwarded-User", "public_url": "https://jobs.example.com"}


async def test_only_a_trusted_proxy_names_the_visitor(door: Opening) -> None:
    instance = door(**PROXY, proxies=Proxies(["10.0.0.0/8"]), allow_actions=True)
    message = {"x_forwarded_user": "ann@example.com", "host": "jobs.example.com"}
    assert await instance.who(peer="10.1.2.3", **message) == Visitor("ann@example.com", EVERYTHING)
    for peer in ("127.0.0.1", "11.0.0.1", "", "::ffff:11.0.0.1"):
        page = await instance.browser(peer=peer, host="jobs.example.com").open(
            "/", 403, x_forwarded_user="ann@example.com"
        )
        assert "available only through its proxy" in page.html
    spoofed = instance.browser(peer="11.0.0.1", host="jobs.example.com")
    await spoofed.open("/", 403, x_forwarded_user="ann", x_forwarded_for="10.1.2.3", forwarded="for=10.1.2.3")


@pytest.mark.parametrize("name", ["", " ", None, "ann, bob", "a" * 129, "ann\x1b[2J", "ann\u202ebob"])
async def test_a_proxy_that_names_no_single_visitor_is_refused(door: Opening, name: str | None) -> None:
    instance = door(**PROXY, proxies=Proxies(["10.0.0.0/8"]))
    browser = instance.browser(peer="10.0.0.1", host="jobs.example.com")
    page = await browser.open("/", 403, x_forwarded_user=name)
    assert "does not name the visitor in X-Forwarded-User" in page.html


async def test_behind_a_local_proxy_a_page_of_another_site_has_no_rights(door: Opening) -> None:
    """Its name may lead to this address, and then its scripts may send any header."""
    instance = door(**PROXY, proxies=Proxies(["127.0.0.1"]))
    await instance.browser(host="evil.example:8080").open("/", 403, x_forwarded_user="ann")
    await instance.browser(host="jobs.example.com").open("/", x_forwarded_user="ann")


async def test_behind_a_proxy_a_token_works_and_the_rate_limit_counts_the_client(door: Opening) -> None:
    instance = door(**PROXY, proxies=Proxies(["10.0.0.0/8"]))
    token = make_token(instance.tokens, "ci", "read")
    browser = instance.browser(peer="11.0.0.1", host="jobs.example.com")
    await browser.open("/", authorization=f"Bearer {token}")
    await browser.open("/", 401)
    behind = instance.browser(peer="10.0.0.1", host="jobs.example.com")
    for _ in range(MAX_WRONG_TOKENS_PER_MINUTE):
        await behind.open("/", 401, authorization="Bearer stow_0_x", x_forwarded_for="8.8.8.8")
    assert [event.address for event in instance.wrong] == ["8.8.8.8"]


def test_a_trusted_header_without_a_proxy_is_refused_at_the_start() -> None:
    halves: tuple[dict[str, Any], ...] = ({"public_url": "https://a.example"}, {"proxies": Proxies(["10.0.0.0/8"])})
    for lacking in halves:
        with pytest.raises(ConfigurationError, match="name the proxy that sends it"):
            SignIn(trust_header="X-User", **lacking)
    for url in ("jobs.example.com", "ftp://a", "https://", "https://a?b=c"):
        with pytest.raises(ConfigurationError, match="--public-url"):
            SignIn(public_url=url)


# -- mounted ---------------------------------------------------------------------------------------


async def test_a_mounted_dashboard_trusts_only_its_application(door: Opening) -> None:
    instance = Browser(Board(door().board._reader))
    await instance.open("/", 403)
    token = make_token(door().tokens, "ann", "read")
    await instance.open("/", 403, authorization=f"Bearer {token}")
    instance.visitor = Visitor("ann", frozenset({Right.LOOK}))
    await instance.open("/", host="any.example")
    await instance.open("/login", 404)


# -- other sites -----------------------------------------------------------------------------------


async def test_a_post_of_another_site_changes_nothing(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = await signed_in(instance)
    form = (await browser.open("/")).form("/logout")
    options = {name: [value] for name, value in form.fields}
    for token in ("", "0" * 64, options["token"][0][:-1], options["token"][0].upper() + "é"):
        assert (await browser.ask("/logout", options | {"token": [token]})).status == 403
    assert (await browser.ask("/logout", {"x": ["y"]})).status == 403
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:8081"},
        {"origin": "http://127.0.0.1:8080.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ):
        assert (await browser.ask("/logout", options, **headers)).status == 403
    await browser.open("/")
    older = {"sec_fetch_site": None, "origin": None}
    assert (await browser.ask("/logout", options, **older)).status == 303


async def test_a_form_is_valid_only_for_its_visitor(door: Opening) -> None:
    instance = door(allow_actions=True)
    tokens = [make_token(instance.tokens, name, "read") for name in ("ann", "bob")]
    forms = []
    for token in tokens:
        browser = instance.browser()
        await browser.send((await browser.open("/", 401)).form("/login"), secret=token)
        forms.append((browser, (await browser.open("/")).form("/logout")))
    (ann, hers), (bob, his) = forms
    assert (await ann.send(his)).status == (await bob.send(hers)).status == 403


async def test_a_program_posts_with_only_its_token(door: Opening) -> None:
    """No other site can make a browser send that header; a wrong one is not a way around the form's token."""
    instance = door(allow_actions=True)
    token = make_token(instance.tokens, "ci", "act")
    program = instance.browser(host="jobs.example.com", peer="10.0.0.1")
    options: dict[str, Any] = {"origin": None, "sec_fetch_site": None}
    assert (await program.ask("/logout", {"x": ["y"]}, authorization=f"Bearer {token}", **options)).status == 303
    assert (await program.ask("/logout", {"x": ["y"]}, authorization="Bearer stow_0_x", **options)).status == 401
    assert (await program.ask("/logout", {"x": ["y"]}, authorization=f"Basic {token}", **options)).status == 401
    site: dict[str, Any] = {"sec_fetch_site": "cross-site"}
    assert (await program.ask("/logout", {"x": ["y"]}, authorization=f"Bearer {token}", **site)).status == 403


async def test_another_site_may_link_to_a_page_but_not_embed_it(door: Opening) -> None:
    browser = door().browser()
    await browser.open("/jobs", **FOREIGN)
    for other in (
        FOREIGN | {"sec_fetch_dest": "iframe"},
        FOREIGN | {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"},
        FOREIGN | {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
    ):
        await browser.open("/jobs", 403, **other)


async def test_following_an_external_link_keeps_the_session(door: Opening) -> None:
    """The strict cookie does not come along: the page asks to go on, and throws nothing away."""
    instance = door(link=True, allow_actions=True)
    browser = await signed_in(instance)
    kept = dict(browser.cookies)
    page = await browser.open("/jobs?state=failed", 401, cookie=None, **FOREIGN)
    assert "/jobs?state=failed" in page.links
    assert {name: value for name, value in browser.cookies.items() if "session" in name} == {
        name: value for name, value in kept.items() if "session" in name
    }
    await browser.open("/jobs?state=failed")


async def test_every_reply_has_the_security_headers(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = await signed_in(instance)
    stranger = instance.browser()
    for reply in (
        await browser.ask("/"),
        await browser.ask("/nowhere"),
        await browser.ask("/assets/board.css"),
        await browser.ask("/", method="DELETE"),
        await stranger.ask("/"),
        await stranger.ask("/login", {"x": ["y"]}),
    ):
        headers = dict(reply.headers)
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} <= set(policy)
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control")]
        if headers.get("content-type", "").startswith("text/html"):
            assert headers["cache-control"] == "no-store"


async def test_cookies_are_protected_from_scripts_other_sites_and_other_ports(door: Opening) -> None:
    instance = door(link=True, allow_actions=True)
    browser = instance.browser()
    reply = await browser.send((await browser.open(instance.shown[0])).form("/login"))
    (session,) = _set(reply)
    assert session.split("=")[0] == "stowhand-session-8080"
    assert session.endswith("; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200")
    behind = door(public_url="https://jobs.example.com/queue", allow_actions=True)
    token = make_token(behind.tokens, "ann", "read")
    browser = behind.browser(host="jobs.example.com")
    browser.prefix = "/queue"
    reply = await browser.send((await browser.open("/queue/", 401)).form("/queue/login"), secret=token)
    (session,) = _set(reply)
    assert session.startswith("__Host-stowhand-session=")
    assert session.endswith("; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200; Secure")
    shouting = door(public_url="HTTPS://jobs.example.com", allow_actions=True).browser(host="jobs.example.com")
    reply = await shouting.send((await shouting.open("/", 401)).form("/login"), secret=token)
    assert _set(reply)[0].endswith("; Secure")
    plain = door(allow_actions=True).browser(host="jobs.example.com")
    plain.prefix = "/queue"
    reply = await plain.send((await plain.open("/queue/", 401)).form("/queue/login"), secret=token)
    assert "; Path=/queue; " in _set(reply)[0]


async def test_a_visitor_who_only_looks_gets_no_cookie(door: Opening) -> None:
    browser = door().browser()
    await browser.open("/")
    assert not browser.cookies


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/../elsewhere",
        "/%2e%2e/elsewhere",
        "/jobs\r\nset-cookie: a=b",
        "/jobs?a=\nb",
        "/jobs#x\u202e",
        "javascript:alert(1)",
        "jobs",
        "/.//evil.example",
        "/jobs//evil",
    ],
)
async def test_a_login_redirects_only_to_own_pages(door: Opening, back: str) -> None:
    instance = door()
    token = make_token(instance.tokens, "ann", "read")
    browser = instance.browser()
    form = (await browser.open("/", 401)).form("/login")
    reply = await browser.send(form, secret=token, back=back)
    assert dict(reply.headers)["location"] == "/"


async def test_a_message_is_shown_on_one_page_only(door: Opening) -> None:
    """What becomes of a form is told once; a cookie that nobody of us wrote is not shown."""
    access = door().access
    asked, _ = await access.admit(Request(headers={"host": "localhost"}, peer="::1"))
    reply = access.protect(asked, Reply(status=303, messages=("Retried: 1 <b>", "x" * 5000)))
    (cookie,) = _set(reply)
    assert len(cookie) < 4096
    name, _, rest = cookie.partition("=")
    value = rest.partition(";")[0]
    browser = door().browser(host="localhost")
    browser.cookies = {name: value}
    page = await browser.open("/")
    assert "Retried: 1 &lt;b&gt;" in page.html
    assert not browser.cookies
    browser.cookies = {name: "%3Cb%3Enot ours"}
    assert "&lt;b&gt;not ours" in (await browser.open("/")).html


def _cookies(browser: Browser) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def _set(reply: Reply) -> list[str]:
    return [value for name, value in reply.headers if name == "set-cookie"]
