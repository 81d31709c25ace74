"""web.fetch against servers that lie, stall, lead away and pack bombs; through the whole pipeline (NET-01)."""

import asyncio
import contextlib
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509

from soong.orchestrator.direct.bootstrap import open_tools
from soong.shared.permissions.policy import NetworkMode, NetworkPolicy, Policy
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.shared.permissions.rules import reads_untrusted
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.web import document, fetch
from soong.shared.toolsets.web.document import MAX_BODY_BYTES
from soong.shared.toolsets.web.fetch import WebTools
from tests.loopback import listening
from tests.security.test_network import certificate as certificate_of
from tests.unit.tools.parts import error_of
from tests.unit.toolsets.web_scene import HOST, allowing, answer, redirect, serving_web

MB = 1024 * 1024


@pytest.mark.spec("NET-01.a", "PER-09.d")
@pytest.mark.parametrize(
    "where",
    [
        *("http://169.254.169.254/latest/meta-data/", "http://other.example.org:{port}/"),
        *("http://127.0.0.1:{port}/secret", "http://2130706433:{port}/secret"),
        *("http://[::ffff:127.0.0.1]:{port}/secret", "http://localhost:{port}/secret"),
        *("http://site.example.org@other.example.org:{port}/", "//other.example.org:{port}/"),
        *("http://\u0455ite.example.org:{port}/", "https://site.example.org.other.example.org/", "http://["),
        *("gopher://site.example.org:{port}/", "file:///etc/passwd"),
    ],
    ids=ascii,
)
async def test_a_redirect_to_another_host_is_refused_before_it_is_asked(where: str) -> None:
    async with serving_web() as web:
        web.answers["/"] = redirect(where.format(port=web.port).encode().decode("latin-1"))

        failure = await web.failure("/")

        assert failure.type is ErrorType.NETWORK_DENIED
        assert web.heard == ["/"]


@pytest.mark.spec("NET-01.a", "PER-09.d")
async def test_a_redirect_is_followed_to_a_host_that_the_policy_allows_unasked_and_to_no_listed_one() -> None:
    async with serving_web() as web:
        network = NetworkPolicy(NetworkMode.ALLOWLIST, (HOST, "listed.example.org"), ("cdn.example.org",))
        web.gate.policy = Policy(network=network)
        web.names |= {"cdn.example.org": ["127.0.0.1"], "listed.example.org": ["127.0.0.1"]}
        web.answers |= {
            "/a": redirect(web.url("/text", "cdn.example.org")),
            "/b": redirect(web.url("/text", "listed.example.org")),
            "/text": answer("from elsewhere"),
        }

        assert await web.text("/a") == "from elsewhere"
        assert (await web.failure("/b")).type is ErrorType.NETWORK_DENIED
        assert web.heard == ["/a", "/text", "/b"]


@pytest.mark.spec("NET-01.a", "PER-09.a", "PER-09.c")
@pytest.mark.parametrize(
    "network", [NetworkPolicy(NetworkMode.OFF), NetworkPolicy(NetworkMode.ALLOWLIST, ("other.example.org",))], ids=str
)
async def test_a_host_that_the_policy_refuses_is_never_resolved(network: NetworkPolicy) -> None:
    async with serving_web({"/": answer("x")}) as web:
        web.gate.policy = Policy(network=network)

        assert (await web.failure("/")).type is ErrorType.NETWORK_DENIED
        assert web.heard == []


@pytest.mark.spec("NET-01.a")
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254", "0.0.0.0"])
async def test_a_name_that_the_policy_does_not_write_out_leads_to_no_private_address(address: str) -> None:
    """The host was allowed, by a person or by `*.example.org`: that is no word about machines nearby."""
    async with serving_web({"/": answer("secret")}) as web:
        web.gate.policy = allowing("*.example.org")
        web.names[HOST] = ["93.184.215.14", address]

        failure = await web.failure("/")

        assert failure.type is ErrorType.NETWORK_DENIED
        assert web.heard == []


@pytest.mark.spec("NET-01.a")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://site.example.org/",
        "ftp://site.example.org/x",
        "javascript:alert(1)",
        "data:text/plain,x",
        "http://user:password@site.example.org/",
        "http://site.example.org\\@evil.example.org/",
        "http://site.example.org /",
        "http:///nothing",
        "http://site.example.org:99999/",
        "http://[::1%eth0]/",
        "http://[::1/",
        "http://site.exa\tmple.org/",
        "http://site.example.org\n.evil.test/",
        "http://\u2100.test/",
        "site.example.org",
        "//site.example.org/",
        "http://" + "a" * 9000,
        "",
    ],
    ids=lambda url: url[:40],
)
async def test_what_is_no_plain_url_is_refused_and_nobody_is_asked(url: str) -> None:
    async with serving_web() as web:
        result = await web.bench.call("web.fetch", {"url": url})

        assert error_of(result).type in (ErrorType.NETWORK_DENIED, ErrorType.INVALID_INPUT)
        assert web.gate.asked == []


@pytest.mark.spec("NET-01.a")
async def test_a_lookalike_is_shown_and_granted_in_the_form_that_is_sent() -> None:
    async with serving_web() as web:
        for url in (
            "http://\u0455ite.example.org/a#secret",
            "http://SITE.example.org./a",
            "http://\uff53ite.example.org/a",
        ):
            await web.bench.call("web.fetch", {"url": url})

        shown = [(call.target.scope, call.target.shown) for call in web.gate.asked]
        assert shown == [
            ("xn--ite-ehd.example.org", "http://xn--ite-ehd.example.org/a"),
            (HOST, f"http://{HOST}/a"),
            (HOST, f"http://{HOST}/a"),
        ]


@pytest.mark.spec("NET-01.b")
async def test_redirects_in_a_circle_and_from_https_down_end() -> None:
    async with serving_web({"/": redirect("/")}) as web:
        failure = await web.failure("/")

        assert failure.type is ErrorType.EXECUTION_FAILED
        assert "redirects more than 5 times" in failure.message
        assert len(web.heard) == 6


@pytest.mark.spec("NET-01.b")
async def test_a_redirect_from_https_to_http_is_refused_and_nothing_is_sent_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "api.example.org"
    certificate = certificate_of(tmp_path, x509.DNSName(name))
    machine = ssl.get_default_verify_paths()._replace(openssl_cafile=str(certificate), openssl_capath="")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: machine)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with serving_web({"/plain": answer("secret"), "/text": answer("over TLS")}) as web:
        web.gate.policy, web.names[name] = allowing(name), ["127.0.0.1"]
        async with listening(web.serve, ssl=context) as port:
            site = f"https://{name}:{port}"
            web.answers |= {"/down": redirect(web.url("/plain", name)), "/on": redirect(f"{site}/text")}

            failure = await web.failure(f"{site}/down")
            followed = await web.fetch(f"{site}/on")

    assert failure.type is ErrorType.NETWORK_DENIED
    assert "redirects from https" in failure.message
    assert followed.error is None
    assert web.heard == ["/down", "/on", "/text"]


@pytest.mark.spec("NET-01.b")
async def test_a_large_robots_txt_is_read_in_a_moment_and_does_not_hold_the_loop() -> None:
    """5,000 agents times 5,000 rules: 105,000 bytes."""
    rules = "User-agent: *\n" * 5_000 + "Allow:/\n" * 5_000 + "Disallow: /private\n"
    async with serving_web({"/robots.txt": answer(rules), "/": answer("text")}, heeds_robots=True) as web:
        begun = time.process_time()

        assert await web.text("/") == "text"

        assert time.process_time() - begun < 2.0


@pytest.mark.spec("NET-01.b")
async def test_a_small_answer_that_unpacks_to_a_huge_one_is_ended_and_costs_little_memory() -> None:
    before = psutil.Process().memory_info().rss
    bomb = zlib.compressobj(9, wbits=31)
    data = b"".join(bomb.compress(bytes(8 * MB)) for _ in range(64)) + bomb.flush()
    async with serving_web({"/": answer(data, Content_Encoding="gzip")}) as web:
        failure = await web.failure("/")

    assert failure.type is ErrorType.LIMIT_EXCEEDED
    assert psutil.Process().memory_info().rss - before < 96 * MB


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize("packing", ["br", "zstd", "gzip, gzip", "compress", "x"])
async def test_an_answer_in_a_packing_that_was_not_asked_for_is_refused(packing: str) -> None:
    async with serving_web({"/": answer(b"x", Content_Encoding=packing)}) as web:
        assert (await web.failure("/")).type is ErrorType.EXECUTION_FAILED


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()


async def _silent(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


async def _dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)


async def _headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    with contextlib.suppress(ConnectionError):
        for number in range(200_000):
            writer.write(b"X-%d: %s\r\n" % (number, b"y" * 100))
            await writer.drain()


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (_endless, ErrorType.LIMIT_EXCEEDED),
        (_silent, ErrorType.TIMEOUT),
        (_dripping, ErrorType.TIMEOUT),
        (_headers, ErrorType.SERVER_UNAVAILABLE),
    ],
    ids=["endless", "silent", "dripping", "headers"],
)
async def test_an_answer_without_an_end_has_one(
    how: Callable[[asyncio.StreamWriter], Awaitable[None]], expected: ErrorType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_WAIT", timedelta(seconds=2))
    monkeypatch.setattr(fetch, "TIME_LIMIT", timedelta(seconds=4))
    async with serving_web({"/": how}) as web:
        async with asyncio.timeout(30):
            assert (await web.failure("/")).type is expected


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize(
    "raw",
    [
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
    ids=["no-http", "negative", "short", "chunks", "nothing"],
)
async def test_a_broken_answer_is_an_error_of_the_server(raw: bytes) -> None:
    async with serving_web({"/": raw}) as web:
        failure = await web.failure("/")

        assert failure.type is ErrorType.SERVER_UNAVAILABLE
        assert "Traceback" not in failure.message


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize(
    "page",
    ["<div>" * 200_000, "<!--" * 300_000, "<p>x" * 1_000_000, "<a " + "x=1 " * 900_000],
    ids=["deep", "comments", "many", "attributes"],
)
async def test_a_page_that_is_built_to_take_long_ends_in_time(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "CONVERSION", timedelta(seconds=1))
    async with serving_web({"/": answer(page, "text/html")}) as web:
        async with asyncio.timeout(30):
            result = await web.fetch("/")

        assert result.error is None or result.error.type is ErrorType.LIMIT_EXCEEDED


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"\x89PNG\r\n\x1a\n\0\0", "image/png"), (b"%PDF-1.7", "application/pdf"), (b"a\0b", "text/plain"),
     (b"MZ\0", ""), (b"x", "application/octet-stream"), (b"PK", "application/zip")],
    ids=str,
)  # fmt: skip
async def test_what_is_no_text_is_refused(body: bytes, kind: str) -> None:
    async with serving_web({"/": answer(body, kind)}) as web:
        failure = await web.failure("/")

        assert failure.type is ErrorType.BINARY_FILE
        assert f"{len(body)} bytes" in failure.message


@pytest.mark.spec("NET-01.b")
async def test_a_text_of_the_longest_length_is_taken_and_one_byte_more_is_not() -> None:
    async with serving_web({"/": answer(b"x" * MAX_BODY_BYTES), "/more": answer(b"x" * (MAX_BODY_BYTES + 1))}) as web:
        assert (await web.fetch("/")).error is None
        assert (await web.failure("/more")).type is ErrorType.LIMIT_EXCEEDED


@pytest.mark.spec("NET-01.c")
def test_what_it_reads_was_written_by_strangers() -> None:
    (tool,) = WebTools().tools()

    assert reads_untrusted(tool)
    assert tool.reaches_out


@pytest.mark.spec("NET-01")
async def test_nothing_goes_out_but_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving_web({"/": answer("x", Set_Cookie="a=b"), "/?q=1": answer("y")}) as web:
        await web.text("/")
        await web.text("/?q=1")

        sent = {line.partition(":")[0].lower() for head in web.heads for line in head.splitlines()[1:] if line}
        assert sent == {"host", "accept", "accept-encoding", "connection", "user-agent"}


@pytest.mark.spec("NET-01", "PER-09.b", "PER-09.c")
async def test_a_direct_call_asks_for_its_host_and_a_person_opens_no_private_address(tmp_path: Path) -> None:
    asked: list[PermissionRequest] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(Choice.ALLOW_ONCE)

    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.toml").write_text("[network]\nrobots = false\n")
    options: dict[str, Any] = {"project": tmp_path, "agent_home": tmp_path / "home"}
    async with serving_web({"/": answer("hello")}) as web:
        url = f"http://127.0.0.1:{web.port}/"
        async with open_tools(permission_callback=allow, **options) as session:
            refused = await session.call("web.fetch", {"url": url})
        async with open_tools(allow=["web.fetch:host:127.0.0.1"], **options) as session:
            allowed = await session.call("web.fetch", {"url": url})

    assert [request.tool for request in asked] == ["web.fetch"]
    assert error_of(refused).type is ErrorType.NETWORK_DENIED
    assert "private address" in error_of(refused).message
    assert allowed.error is None, allowed.error
    assert "hello" in str(allowed.content)
    assert web.heard == ["/"]


async def _text_of(body: bytes, kind: str, **headers: str) -> str:
    async with serving_web({"/": answer(body, kind, **headers)}) as web:
        return await web.text("/")


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("grün".encode(), "text/plain; charset=utf-8", "grün"),
        ("grün".encode("latin-1"), "text/plain; charset=iso-8859-1", "grün"),
        ("grün".encode("utf-16"), "text/plain", "grün"),
        ("grün".encode(), "text/plain; charset=none-such", "grün"),
        ("grün".encode(), "text/plain; charset=rot13", "grün"),
        ("grün".encode(), "text/plain; charset=hex", "grün"),
        (b"+ADw-script+AD4-", "text/plain; charset=utf-7", "+ADw-script+AD4-"),
        ("grün".encode("latin-1"), "text/plain; charset=utf-8", "gr\ufffdn"),
        ("<meta charset=windows-1252><p>grün".encode("windows-1252"), "text/html", "grün"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"a\x1b[31mb\x1b]0;t\x07", "text/plain", "ab"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_charset_is_what_the_answer_says_and_never_a_codec_of_another_kind(
    body: bytes, kind: str, expected: str
) -> None:
    assert await _text_of(body, kind) == expected


@pytest.mark.spec("NET-01.b")
@pytest.mark.parametrize("packing", ["gzip", "deflate", "raw"])
async def test_a_packed_answer_is_unpacked(packing: str) -> None:
    wbits = {"gzip": 31, "deflate": 15, "raw": -15}[packing]
    squeezed = zlib.compressobj(wbits=wbits)
    data = squeezed.compress(b"hello " * 1000) + squeezed.flush()
    name = "gzip" if packing == "gzip" else "deflate"

    assert (await _text_of(data, "text/plain", Content_Encoding=name)).startswith("hello hello")
