"""Rotating, adopting and ending the deployment's signing key.

The order makes every moment safe: the new public key is in the table before the file holds the new key, and the old one
is retired a while after, so that an owner which read the file just before still signs what workers believe. A key that
is in the file and not in the table is published by :meth:`KeyRing.adopt` alone: by an operator who knows it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Final

from soong.orchestrator.schemas.base import instant
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.permissions.signing import ExpiredDecision, KeyStore, Signer

OVERLAP: Final = timedelta(seconds=60)
"""How long the old key still signs after a rotation: owners' clocks may differ from that of the rotating process."""


class EndedKey(Value):
    """The end of a key. ``successor`` is the key that was made in its place, if it was the one that signs here.

    ``replaced`` is the key that the file held although it was never published; ``key_id`` is then empty.
    """

    key_id: str
    successor: str
    expired: tuple[ExpiredDecision, ...] = ()
    replaced: str = ""


class KeyRing(Value):
    """The keys of a deployment: the file of this machine and the rows of all."""

    store: KeyStore
    file: Path
    clock: Clock
    principal: str

    def current(self) -> str:
        """Return the id of the key that signs here; empty where no key file is."""
        return Signer.load(self.file).key_id if self.file.exists() else ""

    async def listed(self) -> list[dict[str, Json]]:
        """Return the public keys: which signs here, which are good, which have ended."""
        current, now_us = self.current(), self.clock.now_us()
        return [
            {
                "id": key.id,
                "state": key.state(now_us),
                "signs_here": key.id == current,
                "published": instant(key.created_us),
                "retired": instant(key.retired_us),
                "revoked": instant(key.revoked_us),
                "public_key": key.public_key.hex(),
            }
            for key in await self.store.signing_keys()
        ]

    async def find(self, text: str) -> str:
        """Return the id of the key that begins so. Raises: NotFoundError; UsageError when several do."""
        found = [one.id for one in await self.store.signing_keys() if one.id.startswith(text)]
        if not found:
            raise NotFoundError("key", text)
        if len(found) > 1:
            raise UsageError(f"{text!r} fits {len(found)} keys; type more of the id (soong keys list)")
        return found[0]

    async def rotate(self, *, reason: str, overlap: timedelta = OVERLAP) -> EndedKey:
        """Let a new key sign from now on; what the old one signed stays good until it expires.

        A key that is in the file and was never published is replaced, and never becomes good.
        """
        old = self.current()
        is_published = bool(old) and await self.store.signing_key(old) is not None
        new = await self._exchange(reason)
        if not is_published:
            return EndedKey("", new, replaced=old)
        at_us = self.clock.now_us() + round(overlap.total_seconds() * 1_000_000)
        await self._end(old, is_revoked=False, at_us=at_us, reason=reason)
        return EndedKey(old, new)

    async def adopt(self, *, reason: str) -> str:
        """Publish the key that the file holds, made when there is none, and return its id.

        Raises:
            UsageError: it has been retired or revoked.
        """
        signer = Signer.load(self.file)
        await self._publish(signer, reason)
        key = await self.store.signing_key(signer.key_id)
        if key is not None and key.state(self.clock.now_us()) in ("retired", "revoked"):
            raise UsageError(f"the key {key.id} is {key.state(self.clock.now_us())}; run `soong keys rotate`")
        return signer.key_id

    async def retire(self, key_id: str, *, is_revoked: bool, reason: str) -> EndedKey:
        """End a key; one that signs here is exchanged first. Revoked: nothing that it signed counts any more.

        Raises:
            NotFoundError: the key does not exist.
        """
        if await self.store.signing_key(key_id) is None:
            raise NotFoundError("key", key_id)
        successor = await self._exchange(reason) if key_id == self.current() else ""
        expired = await self._end(key_id, is_revoked=is_revoked, at_us=self.clock.now_us(), reason=reason)
        return EndedKey(key_id, successor, expired)

    async def _exchange(self, reason: str) -> str:
        new = Signer.generate()
        await self._publish(new, reason)
        new.save(self.file)
        return new.key_id

    async def _publish(self, signer: Signer, reason: str) -> None:
        said = {"principal": self.principal, "reason": reason}
        await self.store.publish_key(signer.key_id, signer.public_key, now_us=self.clock.now_us(), **said)

    async def _end(self, key_id: str, *, is_revoked: bool, at_us: int, reason: str) -> tuple[ExpiredDecision, ...]:
        now_us, principal = self.clock.now_us(), self.principal
        ended = await self.store.retire_key(
            key_id, is_revoked=is_revoked, at_us=at_us, principal=principal, reason=reason, now_us=now_us
        )
        return tuple(ended)
