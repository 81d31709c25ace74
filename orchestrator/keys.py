"""Rotating and ending the deployment's signing key.

The order makes every moment safe: the new public key stands in the table before the file holds the new key, and the old
one is retired a while after, so that an owner which read the file just before still signs what workers believe.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from shared.clock import Clock
from shared.errors import NotFoundError
from shared.permissions.keys import KeyStore, Lapsed, SigningKey
from shared.permissions.signing import Signer

OVERLAP: Final = timedelta(seconds=60)
"""How long the old key still signs after a rotation: owners' clocks may differ from that of whoever rotates."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a key. ``successor`` is the key that was made in its place, if it was the one that signs here."""

    key_id: str
    successor: str
    lapsed: tuple[Lapsed, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of a deployment: the file of this machine and the rows of all."""

    store: KeyStore
    file: Path
    clock: Clock
    principal: str

    def current(self) -> str:
        """Return the id of the key that signs here; empty where no key file is."""
        return Signer.load(self.file).key_id if self.file.exists() else ""

    async def keys(self) -> list[SigningKey]:
        return list(await self.store.signing_keys())

    async def rotate(self, *, reason: str, overlap: timedelta = OVERLAP) -> Ended:
        """Let a new key sign from now on; what the old one signed stays good until it expires."""
        old = await self._published()
        new = await self._exchange()
        at_us = self.clock.now_us() + round(overlap.total_seconds() * 1_000_000)
        await self._end(old, is_revoked=False, at_us=at_us, reason=reason)
        return Ended(old, new)

    async def retire(self, key_id: str, *, is_revoked: bool, reason: str) -> Ended:
        """End a key; one that signs here is exchanged first. Revoked: nothing that it signed counts any more.

        Raises:
            NotFoundError: there is no such key.
        """
        if await self.store.signing_key(key_id) is None:
            raise NotFoundError("key", key_id)
        successor = await self._exchange() if key_id == self.current() else ""
        lapsed = await self._end(key_id, is_revoked=is_revoked, at_us=self.clock.now_us(), reason=reason)
        return Ended(key_id, successor, lapsed)

    async def _published(self) -> str:
        """Return the id of the key in the file, which a deployment that never asked anything has not told yet."""
        signer = Signer.load(self.file)
        await self.store.publish_key(signer.key_id, signer.public_key, now_us=self.clock.now_us())
        return signer.key_id

    async def _exchange(self) -> str:
        new = Signer.generate()
        await self.store.publish_key(new.key_id, new.public_key, now_us=self.clock.now_us())
        new.save(self.file)
        return new.key_id

    async def _end(self, key_id: str, *, is_revoked: bool, at_us: int, reason: str) -> tuple[Lapsed, ...]:
        now_us, principal = self.clock.now_us(), self.principal
        ended = await self.store.retire_key(
            key_id, is_revoked=is_revoked, at_us=at_us, principal=principal, reason=reason, now_us=now_us
        )
        return tuple(ended)
