"""Proof of who asked and who decided (PER-12).

Owns the deployment's Ed25519 key, the signature over a decision's canonical form (RFC 8032, RFC 8785), and the HMAC by
which a run proves its request with its token (RFC 2104). Public keys are published in a table that workers only read.
"""

import hashlib
import hmac
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from msgspec.structs import replace

from soong.shared.core.errors import ForgedError, InvalidConfigError, InvalidJsonError
from soong.shared.core.jsontext import Json, canonical
from soong.shared.core.value import Value
from soong.shared.permissions.request import Decision, PermissionRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


# cryptography is imported where a key is used: a client that neither signs nor verifies does not pay for it.

MAX_KEY_FILE_BYTES = 64 * 1024


class Signer:
    """Holds the private key of the deployment. Lives in an owner and nowhere else."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = key
        self.public_key = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = f"key_{hashlib.sha256(self.public_key).hexdigest()[:32]}"

    @classmethod
    def generate(cls) -> Self:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the key file; make it, readable by us alone, when there is none. One of two concurrent makers wins.
        Raises: InvalidConfigError, not an Ed25519 key, not readable, another user's, or open to others.
        """
        if not path.exists():
            _make_key_file(path)
        return cls(_read_key_file(path))

    def current(self) -> Self:
        """Return the signer of the moment: a key that is in no file is never exchanged."""
        return self

    def save(self, path: Path) -> None:
        """Put the key in the place of the key file, readable by us alone. A reader sees the old one or this.
        Raises: InvalidConfigError, it cannot be written there.
        """
        try:
            with _draft(path, _pem_of(self._key)) as draft:
                os.replace(draft, path)  # noqa: PTH105  # the draft is a name, not a path of ours
        except OSError as error:
            raise InvalidConfigError(
                f"the signing key {str(path)!r} cannot be exchanged: {error.strerror}; where it is mounted read-only, "
                "exchange it there"
            ) from error

    def sign(self, decision: Decision) -> Decision:
        named = replace(decision, key_id=self.key_id, signature="")
        return replace(named, signature=self._key.sign(canonical(named.signed_fields())).hex())


class KeySource(Protocol):
    """The source of an owner's key."""

    def current(self) -> Signer:
        """Return the signer of the moment. Raises: InvalidConfigError when it cannot be used (any more)."""


class KeyFile:
    """The key file of a deployment, read again when it was exchanged: a rotation needs no restart. A removed file is
    not a replacement: the key that was read signs until there is another.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signer = Signer.load(path)
        self._stamp = _stamp(path)

    def current(self) -> Signer:
        stamp = _stamp(self._path)
        if stamp not in (None, self._stamp):
            self._signer, self._stamp = Signer(_read_key_file(self._path)), stamp
        return self._signer


def verify(decision: Decision, public_key: bytes) -> None:
    """Check a decision's signature. Raises: ForgedError, it was not made by that key over exactly these fields."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signature = bytes.fromhex(decision.signature)
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, canonical(decision.signed_fields()))
    except (InvalidSignature, InvalidJsonError, ValueError) as error:
        raise ForgedError(
            f"the signature of decision {decision.id!r} by key {decision.key_id!r} does not hold"
        ) from error


class SigningKey(Value):
    """A public key as stored in its rows. ``retired_us`` may lie ahead: until then both keys sign."""

    id: str
    public_key: bytes
    created_us: int
    retired_us: int | None = None
    revoked_us: int | None = None

    def state(self, now_us: int) -> str:
        """Return ``active``, ``retiring``, ``retired`` or ``revoked``."""
        if self.revoked_us is not None:
            return "revoked"
        if self.retired_us is None:
            return "active"
        return "retired" if self.retired_us <= now_us else "retiring"

    def check(self, decision: Decision) -> None:
        """Check that the key was good when it signed. Raises: ForgedError, it is revoked, or was retired before."""
        if self.revoked_us is not None:
            raise ForgedError(f"decision {decision.id!r} is signed with the revoked key {self.id}", what="revoked_key")
        if self.retired_us is not None and decision.decided_us > self.retired_us:
            raise ForgedError(
                f"decision {decision.id!r} is signed with the key {self.id} after that was retired", what="retired_key"
            )


def check_signature(decision: Decision, key: SigningKey | None) -> None:
    """Raises: ForgedError when the decision is not signed by a key that may sign it."""
    if key is None:
        unknown = f"decision {decision.id!r} is signed with the unknown key {decision.key_id!r}"
        raise ForgedError(unknown, what="unknown_key")
    verify(decision, key.public_key)
    key.check(decision)


def prove(token: str, request: PermissionRequest) -> str:
    """Return the proof that the holder of a run's token raised exactly this request."""
    return hmac.new(token.encode(), canonical(proven_fields(request)), hashlib.sha256).hexdigest()


def check_proof(token: str, request: PermissionRequest) -> bool:
    """Say whether ``request.proof`` was made with that token. A run without a token proves nothing."""
    try:
        return bool(token) and hmac.compare_digest(prove(token, request), request.proof)
    except (InvalidJsonError, TypeError):  # no canonical form, or a proof that is not ASCII: nobody of ours made it
        return False


def proven_fields(request: PermissionRequest) -> Mapping[str, Json]:
    """Return all that is shown or decided on, but for the lineage: that the owner reads from rows."""
    own = {
        name: value
        for name, value in request.as_json().items()
        if name not in {"identity", "proof", "created_us", "fence"}
    }
    if not request.unknown_effects:  # so that what a worker of the version before has proven is proven still
        del own["unknown_effects"]
    return {**own, "session_id": request.identity.session_id, "run_id": request.identity.run_id}


def _pem_of(key: "Ed25519PrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _make_key_file(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = _pem_of(Ed25519PrivateKey.generate())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _draft(path, pem) as draft, suppress(FileExistsError):
            os.link(draft, path)  # a second maker never replaces it
    except OSError as error:
        raise InvalidConfigError(
            f"the signing key {str(path)!r} cannot be made: {error.strerror}; point SOONG_SIGNING_KEY_FILE elsewhere"
        ) from error


@contextmanager
def _draft(path: Path, pem: bytes) -> Iterator[str]:
    """Write a complete key next to its place: nobody ever reads half of one. A leftover is removed."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as draft:
            draft.write(pem)
            draft.flush()
            os.fsync(draft.fileno())
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108  # as above


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what is another whenever a file was exchanged; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_key_file(path: Path) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        # A FIFO would block; a secret store mounts the file as a link, so links are followed.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            pem = file.read(MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise InvalidConfigError(f"the signing key {str(path)!r} cannot be read: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise InvalidConfigError(
            f"the signing key {str(path)!r} belongs to user {status.st_uid}, who could exchange it; "
            f"expected root or user {os.geteuid()}, so chown it"
        )
    mode = status.st_mode
    # Group-readable is how container platforms mount secrets; anything more lets others sign.
    if stat.S_IMODE(mode) & (stat.S_IRWXO | stat.S_IWGRP):
        raise InvalidConfigError(
            f"the signing key {str(path)!r} is open to others (mode {stat.S_IMODE(mode):o}); chmod 600 it"
        )
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidConfigError(f"the signing key {str(path)!r} is not an unencrypted PEM key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidConfigError(f"the signing key {str(path)!r} is not an Ed25519 key")
    return key


class ExpiredDecision(Value):
    """A question whose decision a revoked key took away before it was used; it is asked again."""

    session_id: str
    run_id: str
    request_id: str


class KeyStore(Protocol):
    async def publish_key(
        self, key_id: str, public_key: bytes, *, now_us: int, principal: str = "", reason: str = ""
    ) -> None:
        """Insert a public key (32 bytes, Ed25519), once. For operators; workers only read.
        Raises: ConflictError when another key has that id.
        """

    async def publish_first_key(self, key_id: str, public_key: bytes, *, now_us: int) -> bool:
        """Insert a public key when there is none at all; return whether it was inserted. Two first owners that start at
        the same moment, each with a key of its own, may both insert theirs.
        """

    async def signing_key(self, key_id: str) -> SigningKey | None: ...

    async def signing_keys(self) -> Sequence[SigningKey]:
        """Return all keys in the order they were published."""

    async def retire_key(
        self, key_id: str, *, is_revoked: bool, at_us: int, principal: str, reason: str, now_us: int
    ) -> Sequence[ExpiredDecision]:
        """End a key from ``at_us`` on, or, revoked, for all that it ever signed; a second time changes nothing.

        Revoking closes the question of every decision by it that was not used, as expired, with permission_expired in
        the run's log; they are returned. Their calls ask again.
        Raises: NotFoundError when the key does not exist.
        """
