"""Artifacts by content in an S3-compatible store (EVT-04): the key of the bytes is their SHA-256.

Every worker writes the bucket, so a key proves nothing: the bytes are held to it at each read. Credentials, endpoint
and region are the standard ``AWS_*`` variables and files, which botocore reads. Only this module imports it, when it
is used first.
"""

import asyncio
import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UnavailableError
from soong.shared.core.installation import install_line
from soong.shared.core.value import Value
from soong.shared.engine.tasks.retention import StoredArtifact
from soong.shared.storage.artifacts import MAX_ARTIFACT_BYTES, ArtifactFiles

T = TypeVar("T")

SCHEME: Final = "s3"
REMOVING: Final = ".removing"
"""The folder of the marks of removals: see :meth:`S3Artifacts.remove`."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9_.=-]+/)*", re.ASCII)
_ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_DENIED: Final = frozenset({"403", "AccessDenied"})


class Bucket(Value):
    """The place of the artifacts. ``prefix`` is empty or ends with a slash."""

    name: str
    prefix: str = ""


def parse_bucket(url: str) -> Bucket:
    """Read ``s3://BUCKET/PREFIX``. Raises: InvalidConfigError."""
    expected = "expected s3://BUCKET or s3://BUCKET/PREFIX; endpoint, region and keys come from the AWS_* variables"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidConfigError(f"SOONG_ARTIFACTS_URL is not a URL; {expected}") from None
    prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
    if parts.scheme != SCHEME or not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
        # The part before an @ may be a key that somebody put there.
        raise InvalidConfigError(f"SOONG_ARTIFACTS_URL={url.rpartition('@')[2]!r} names no bucket; {expected}")
    if not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/"):
        raise InvalidConfigError(f"SOONG_ARTIFACTS_URL: {prefix!r} is not a prefix of letters, digits, _ . = - and /")
    return Bucket(parts.netloc, prefix)


def _open_client() -> Any:
    from botocore.config import Config
    from botocore.session import get_session

    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "max_attempts": 4},
        max_pool_connections=32,
        # Stores that are not Amazon's do not all know checksums in trailers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return get_session().create_client("s3", config=config)


@dataclass
class S3Artifacts(ArtifactFiles):
    """Objects ``<prefix>ab/cdef…`` of one bucket. An object is complete or absent.

    Calls of the client block and may come from any thread.
    """

    bucket: Bucket
    open_client: Callable[[], Any] = _open_client
    _client: Any = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)  # it may wait for the network, which the threads for files are not to

    def stored(self) -> Iterator[StoredArtifact]:
        prefix = self.bucket.prefix
        pages = self._call("list", lambda client: client.get_paginator("list_objects_v2"))
        listed = iter(pages.paginate(Bucket=self.bucket.name, Prefix=prefix))
        while (page := self._call("list", lambda _client: next(listed, None))) is not None:
            for entry in page.get("Contents", ()):
                head, slash, tail = entry["Key"][len(prefix) :].partition("/")
                if slash and len(head) == 2 and _DIGEST.match(head + tail):
                    yield StoredArtifact(head + tail, entry["Size"], entry["LastModified"].timestamp())

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """See :meth:`ArtifactFiles.remove`.

        A mark is put first, and the object is looked at after it. A writer that comes before the mark has changed the
        object's time by then; one that comes later finds the mark, waits for its end, and writes again. One that looks
        only after that end finds no mark and no object, and writes again too.
        Raises: UnavailableError.
        """
        mark = self._mark_of(digest)
        self._call("put", lambda client: client.put_object(Bucket=self.bucket.name, Key=mark, Body=b""))
        try:
            head = self._head(self._key_of(digest))
            if head is None or head["LastModified"].timestamp() >= unused_since_s:
                return None
            self._delete(self._key_of(digest))
            return int(head["ContentLength"])
        finally:
            self._delete(mark)

    def probe(self) -> None:
        """Ask for an artifact that nobody has. Raises: UnavailableError, the store cannot be used."""
        with suppress(NotFoundError, _DeniedError):  # without the right to list, S3 denies what is absent
            self._read("0" * 64)

    def _write(self, digest: str, data: bytes) -> None:
        self._put(digest, data)
        until_s = time.monotonic() + timing.PATIENCE_S
        was_marked = False
        while (age_s := self._mark_age_s(digest)) is not None:
            if age_s >= timing.PATIENCE_S or time.monotonic() >= until_s:
                # A removal from now on sees the object that was just written, and leaves it.
                with suppress(_DeniedError):  # without the right to delete, the mark costs each write this one look
                    self._delete(self._mark_of(digest))
                break
            was_marked = True
            time.sleep(timing.LEAST_PAUSE_S)
        # Without a mark, a removal that began before the object was written has ended: it took the object, or did not.
        if was_marked or not self._has(digest):
            self._put(digest, data)

    def _put(self, digest: str, data: bytes) -> None:
        """Write the object, also over itself: its time marks it as used. The server compares the checksum."""
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        key = self._key_of(digest)
        self._call(
            "put",
            lambda client: client.put_object(
                Bucket=self.bucket.name, Key=key, Body=data, ChecksumSHA256=checksum, ContentType="binary/octet-stream"
            ),
        )

    def _content(self, digest: str) -> bytes:
        key = self._key_of(digest)

        def read(client: Any) -> bytes:
            with client.get_object(Bucket=self.bucket.name, Key=key)["Body"] as body:
                return bytes(body.read(MAX_ARTIFACT_BYTES + 1))

        try:
            return self._call("get", read)
        except _AbsentError:
            raise NotFoundError("artifact", digest) from None

    def _mark_age_s(self, digest: str) -> float | None:
        """Return how long ago somebody began to remove it, by the store's own clock; None: nobody did.

        Without the right to list, S3 denies what is absent.
        """
        try:
            head = self._head(self._mark_of(digest))
        except _DeniedError:
            return None
        if head is None:
            return None
        said = head["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        now = parsedate_to_datetime(said) if said else datetime.now(UTC)
        return float((now - head["LastModified"]).total_seconds())

    def _has(self, digest: str) -> bool:
        """Return whether the object is there; False if the store denies the answer: it may be absent."""
        try:
            return self._head(self._key_of(digest)) is not None
        except _DeniedError:
            return False

    def _head(self, key: str) -> Any:
        try:
            return self._call("head", lambda client: client.head_object(Bucket=self.bucket.name, Key=key))
        except _AbsentError:
            return None

    def _delete(self, key: str) -> None:
        self._call("delete", lambda client: client.delete_object(Bucket=self.bucket.name, Key=key))

    def _key_of(self, digest: str) -> str:
        if not _DIGEST.match(digest):
            raise NotFoundError("artifact", digest)
        return f"{self.bucket.prefix}{digest[:2]}/{digest[2:]}"

    def _mark_of(self, digest: str) -> str:
        return f"{self.bucket.prefix}{REMOVING}/{digest}"

    def _call(self, what: str, call: Callable[[Any], T]) -> T:
        """Call the store. Raises: UnavailableError, of which _AbsentError and _DeniedError are kinds."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        client = self._opened()
        try:
            return call(client)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            kind = _AbsentError if code in _ABSENT else _DeniedError if code in _DENIED else UnavailableError
            raise kind(f"the artifact store {self.bucket.name!r} answered {code!r} to {what}") from error
        except (BotoCoreError, HTTPClientError, OSError) as error:
            problem = f"the artifact store {self.bucket.name!r} cannot be used ({type(error).__name__})"
            raise UnavailableError(f"{problem}; look at the AWS_* variables") from error

    def _opened(self) -> Any:
        with self._opening:
            if self._client is None:
                self._client = self.open_client()
            return self._client


class _AbsentError(UnavailableError):
    """The bucket has no object of this key."""


class _DeniedError(UnavailableError):
    """The credentials have no right to it; without the right to list, S3 answers so for absent objects too."""


def require_client() -> None:
    """Raise InvalidConfigError unless botocore is installed."""
    try:
        import botocore.session  # noqa: F401  # looked for
    except ImportError as error:
        raise InvalidConfigError(
            f"SOONG_ARTIFACTS_URL names a bucket, and botocore is not installed; {install_line('s3')}"
        ) from error
