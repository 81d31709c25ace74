"""The artifact store, over a folder and over an S3 server: bytes by their digest, and only those."""

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from soong.shared.core import timing
from soong.shared.core.errors import ForgedError, InvalidConfigError, NotFoundError, UnavailableError, UsageError
from soong.shared.core.settings import load_settings
from soong.shared.storage.artifact_store import open_artifact_store
from soong.shared.storage.artifacts import ArtifactFiles, FolderArtifacts
from soong.shared.storage.s3_artifacts import REMOVING, S3Artifacts, parse_bucket
from tests.s3_server import CREDENTIALS, s3_server

pytestmark = pytest.mark.spec("EVT-04.a", "EVT-04.b")


class ArtifactSite(Protocol):
    """A store, and what somebody with the same rights on its files does to them."""

    @property
    def store(self) -> ArtifactFiles: ...

    def exchange(self, digest: str, data: bytes) -> None: ...

    def plant(self, name: str) -> None: ...

    def age(self, digest: str) -> float:
        """Make the artifact old, or let time pass; return a moment after it was written."""
        ...


class FolderSite:
    def __init__(self, home: Path) -> None:
        store = open_artifact_store(load_settings(agent_home=home))
        assert isinstance(store, FolderArtifacts)
        self.store = store
        self.home = home

    def exchange(self, digest: str, data: bytes) -> None:
        self.store.path_of(digest).write_bytes(data)

    def plant(self, name: str) -> None:
        path = self.home / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"planted")

    def age(self, digest: str) -> float:
        os.utime(self.store.path_of(digest), (1, 1))
        return time.time() - 60


class S3Site:
    def __init__(self, home: Path) -> None:
        self.url = f"s3://bucket-{uuid.uuid4().hex}/soong/artifacts"
        store = open_artifact_store(load_settings(agent_home=home, artifacts_url=self.url))
        assert isinstance(store, S3Artifacts)
        self.store = store
        self.client: Any = store._opened()
        self.client.create_bucket(Bucket=store.bucket.name)

    def exchange(self, digest: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.store.bucket.name, Key=self.store._key_of(digest), Body=data)

    def plant(self, name: str) -> None:
        self.client.put_object(Bucket=self.store.bucket.name, Key=f"{self.store.bucket.prefix}{name}", Body=b"planted")

    def age(self, digest: str) -> float:
        return time.time() + 60  # the server sets its own times


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture(params=["folder", "s3"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactSite:
    if request.param == "folder":
        return FolderSite(tmp_path)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", request.getfixturevalue("address"))
    return S3Site(tmp_path)


async def test_bytes_come_back_by_their_digest(site: ArtifactSite) -> None:
    ref = await site.store.put(b"a report", "text/markdown", "report.md")

    assert ref.digest == hashlib.sha256(b"a report").hexdigest()
    assert (ref.size_bytes, ref.media_type, ref.name) == (8, "text/markdown", "report.md")
    assert await site.store.get(ref.digest) == b"a report"


@pytest.mark.parametrize("digest", ["0" * 64, "../../etc/passwd", "", "ABC"], ids=["absent", "path", "empty", "short"])
async def test_what_is_not_a_stored_digest_is_not_found(site: ArtifactSite, digest: str) -> None:
    with pytest.raises(NotFoundError):
        await site.store.get(digest)


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("data", [b"theirs", b""], ids=["exchanged", "emptied"])
async def test_other_bytes_are_never_returned_and_storing_again_puts_them_right(
    site: ArtifactSite, data: bytes
) -> None:
    ref = await site.store.put(b"ours")
    site.exchange(ref.digest, data)

    with pytest.raises(ForgedError, match="holds other bytes"):
        await site.store.get(ref.digest)
    await site.store.put(b"ours")

    assert await site.store.get(ref.digest) == b"ours"


async def test_more_than_is_ever_read_is_not_stored(site: ArtifactSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("artifacts", "s3_artifacts"):
        monkeypatch.setattr(f"soong.shared.storage.{module}.MAX_ARTIFACT_BYTES", 3)

    with pytest.raises(UsageError, match="expected at most 3"):
        await site.store.put(b"four")


async def test_equal_bytes_are_listed_once_and_what_is_not_an_artifact_is_not(site: ArtifactSite) -> None:
    one, _, two = [await site.store.put(data) for data in (b"same", b"same", b"other")]
    for name in ("notes.txt", "ab/short", "ab/cd/ef", ".removing/x"):
        site.plant(name)

    listed = {artifact.digest: artifact.size_bytes for artifact in site.store.stored()}

    assert listed == {one.digest: 4, two.digest: 5}


@pytest.mark.spec("OPS-10.c")
async def test_only_what_was_not_written_since_is_removed(site: ArtifactSite) -> None:
    ref, kept = await site.store.put(b"old"), await site.store.put(b"used")
    moment = site.age(ref.digest)

    assert site.store.remove(kept.digest, unused_since_s=1) is None
    assert site.store.remove("0" * 64, unused_since_s=moment) is None
    assert site.store.remove(ref.digest, unused_since_s=moment) == 3

    with pytest.raises(NotFoundError):
        await site.store.get(ref.digest)
    assert [one.digest for one in site.store.stored()] == [kept.digest]


@pytest.mark.spec("OPS-10.d")
@pytest.mark.parametrize("looks_late", [False, True], ids=["sees-the-mark", "looks-when-it-is-gone"])
async def test_a_collection_that_removes_what_is_written_meanwhile_leaves_it_written(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, looks_late: bool
) -> None:
    """The writer comes between the collector's look and its removal: the worst moment."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
        monkeypatch.setenv(name, value)
    site = S3Site(tmp_path)
    ref = await site.store.put(b"both")
    writer = threading.Thread(target=site.store._write, args=(ref.digest, b"both"))
    put, look, delete = S3Artifacts._put, S3Artifacts._mark_age_s, S3Artifacts._delete
    has_written, has_looked, may_look = threading.Event(), threading.Event(), threading.Event()

    def put_and_tell(self: S3Artifacts, digest: str, data: bytes) -> None:
        put(self, digest, data)
        has_written.set()

    def look_and_tell(self: S3Artifacts, digest: str) -> float | None:
        assert may_look.wait(30)
        age_s = look(self, digest)
        has_looked.set()
        return age_s

    def write_first(self: S3Artifacts, key: str) -> None:
        if not writer.ident:
            writer.start()
            assert (has_written if looks_late else has_looked).wait(30)
        delete(self, key)

    monkeypatch.setattr(S3Artifacts, "_put", put_and_tell)
    monkeypatch.setattr(S3Artifacts, "_mark_age_s", look_and_tell)
    monkeypatch.setattr(S3Artifacts, "_delete", write_first)
    if not looks_late:
        may_look.set()
    site.store.remove(ref.digest, unused_since_s=time.time() + 60)
    may_look.set()
    writer.join(30)

    assert await site.store.get(ref.digest) == b"both"


@pytest.mark.spec("OPS-10.d")
async def test_the_mark_of_a_collection_that_was_killed_holds_up_no_write_and_goes(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
        monkeypatch.setenv(name, value)
    site = S3Site(tmp_path)
    digest = hashlib.sha256(b"left").hexdigest()
    site.plant(f"{REMOVING}/{digest}")
    ages: list[float | None] = []
    look, sleeps = S3Artifacts._mark_age_s, list[float]()

    def older(self: S3Artifacts, digest: str) -> float | None:
        age_s = look(self, digest)
        ages.append(age_s)
        return None if age_s is None else age_s + timing.PATIENCE_S

    monkeypatch.setattr(S3Artifacts, "_mark_age_s", older)
    monkeypatch.setattr(time, "sleep", sleeps.append)
    await site.store.put(b"left")
    await site.store.put(b"left")

    first, second = ages
    assert first is not None
    assert 0 <= first < timing.PATIENCE_S
    assert (second, sleeps) == (None, [])
    assert await site.store.get(digest) == b"left"


async def test_a_store_that_is_away_or_refuses_is_said_without_keys(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**CREDENTIALS, "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    away = open_artifact_store(load_settings(agent_home=tmp_path, artifacts_url="s3://bucket-of-nobody"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    refuses = open_artifact_store(load_settings(agent_home=tmp_path, artifacts_url="s3://bucket-of-nobody"))

    for store in (away, refuses):
        with pytest.raises(UnavailableError, match="the artifact store 'bucket-of-nobody'") as raised:
            await store.put(b"x")
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "bucket",
        "https://b.s3.amazonaws.com/x",
        "s3://",
        "s3://A_B",
        "s3://b/../c",
        "s3://key:secret@bucket",
        "s3://b?x=1",
    ],
)
def test_what_names_no_bucket_is_refused_without_showing_a_key(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="SOONG_ARTIFACTS_URL") as raised:
        parse_bucket(url)

    assert "secret" not in str(raised.value)


async def test_what_is_made_for_the_store_is_made_off_the_event_loop_and_stored_as_it_is(site: ArtifactSite) -> None:
    made_by: list[int] = []

    def make() -> bytes:
        made_by.append(threading.get_ident())
        return b"made"

    ref = await site.store.put_made(make, "text/plain", "made.txt")

    assert await site.store.get(ref.digest) == b"made"
    assert (ref.digest, ref.size_bytes, ref.name) == (hashlib.sha256(b"made").hexdigest(), 4, "made.txt")
    assert made_by != [threading.get_ident()]


async def test_what_cannot_be_made_for_the_store_is_raised_and_nothing_is_stored(site: ArtifactSite) -> None:
    def make() -> bytes:
        raise PermissionError("not yours")

    with pytest.raises(PermissionError, match="not yours"):
        await site.store.put_made(make, "text/plain", "made.txt")

    assert list(site.store.stored()) == []
