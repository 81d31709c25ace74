"""The web console as it is served: its files, their policy, and the way from a code to a token."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from soong.orchestrator.http.console_files import console_files
from soong.shared.permissions.access.token import Right, digest_of, make_token
from tests.integration.http.scene import ADA, HttpHarness, code_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04.d")]

ROOT = Path(__file__).parents[3]
SECRET = "s" * 43
MAX_ZIPPED_BYTES = 170 * 1024


async def code_for(scene: HttpHarness, *rights: Right, lives_s: int = 60) -> str:
    """Make a code as `soong console` does."""
    now_us = scene.bench.clock.now_us()
    token, text = make_token(ADA, rights or (Right.RUN, Right.APPROVE), now_us=now_us, sign_in_by_us=now_us + lives_s)
    await scene.bench.store.access.add_token(token)
    return text


async def test_the_page_and_its_files_load_nothing_from_elsewhere(scene: HttpHarness) -> None:
    browser = scene.with_token("")

    page = await browser.get("/")
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    files = [await browser.get(name) for name in named]

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert named
    assert all(name.startswith("/console/") for name in named)
    assert [file.status_code for file in files] == [200] * len(named)
    for one in (page, *files):
        policy = one.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]+src=)|<style|\son\w+=", page.text)


async def test_a_file_that_has_not_changed_is_not_sent_again(scene: HttpHarness) -> None:
    browser = scene.with_token("")
    first = await browser.get("/console/console.js")

    again = await browser.get("/console/console.js", headers={"If-None-Match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "sources.json", "..%2fapp.py", "%2e%2e"])
async def test_nothing_else_is_sent(scene: HttpHarness, name: str) -> None:
    assert (await scene.with_token("").get(f"/console/{name}")).status_code in {403, 404}


async def test_the_page_is_small(scene: HttpHarness) -> None:
    import gzip

    sizes = [len(gzip.compress(file.data, 9)) for file in console_files().values()]

    assert sum(sizes) <= MAX_ZIPPED_BYTES


async def test_the_files_are_built_from_the_sources_that_are_there() -> None:
    """`make console` builds them; here without Node.js."""
    folder = ROOT / "console"
    sources = [
        *sorted((folder / "src").rglob("*"), key=str),
        *(folder / name for name in ("index.html", "package-lock.json")),
    ]
    digest = hashlib.sha256()
    for path in [*(one for one in sources if one.is_file()), folder / "vite.config.ts"]:
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")

    built = json.loads((ROOT / "orchestrator" / "http" / "console" / "sources.json").read_text())

    assert built == {"sha256": digest.hexdigest()}, "the console is stale; run `make console`"


async def test_a_link_in_a_mail_opens_the_page_and_nothing_else(scene: HttpHarness) -> None:
    mail = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    browser = scene.with_token("", **mail)

    assert (await browser.get("/")).status_code == 200
    assert code_of(await browser.get("/api")) == "origin_not_allowed"
    assert code_of(await browser.get("/", headers={"Sec-Fetch-Mode": "no-cors"})) == "origin_not_allowed"


async def test_a_code_becomes_a_token_that_no_message_carried(scene: HttpHarness) -> None:
    code = await code_for(scene)
    browser = scene.with_token("")

    told = await browser.post("/v1/sign-in", json={"code": code, "digest": digest_of(SECRET)})
    signed_in = scene.with_token(f"soong_{told.json()['token']}_{SECRET}")

    assert told.json()["principal"] == ADA
    assert SECRET not in told.text
    assert (await signed_in.get("/v1/me")).json()["rights"] == ["read", "run", "approve"]


async def test_a_code_opens_nothing_twice_and_is_no_token(scene: HttpHarness) -> None:
    code = await code_for(scene)
    browser = scene.with_token("")
    as_token = await scene.with_token(code).get("/v1/me")

    first = await browser.post("/v1/sign-in", json={"code": code, "digest": digest_of(SECRET)})
    second = await browser.post("/v1/sign-in", json={"code": code, "digest": digest_of("t" * 43)})

    assert code_of(as_token) == "unauthenticated"
    assert first.status_code == 200
    assert code_of(second) == "unauthenticated"
    assert "soong console" in second.json()["detail"]


async def test_a_late_code_and_a_page_of_another_origin_are_refused(scene: HttpHarness) -> None:
    code = await code_for(scene, lives_s=0)

    late = await scene.with_token("").post("/v1/sign-in", json={"code": code, "digest": digest_of(SECRET)})

    assert code_of(late) == "unauthenticated"

    code = await code_for(scene)
    evil = scene.with_token("", Origin="https://evil.example")

    refused = await evil.post("/v1/sign-in", json={"code": code, "digest": digest_of(SECRET)})

    assert code_of(refused) == "origin_not_allowed"
