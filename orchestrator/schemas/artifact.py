"""A part of an artifact, as programs see it."""

from base64 import b64encode

from pydantic import Field

from soong.orchestrator.schemas.base import Schema


class ArtifactPage(Schema):
    """A part of an artifact, as text where its bytes are UTF-8."""

    digest: str
    size_bytes: int
    offset: int
    next_offset: int | None = Field(description="Where the next part begins; null: there is none.")
    text: str | None = Field(description="Null when the part is not UTF-8 text.")
    base64: str | None = Field(description="The bytes of a part that is not text.")

    @classmethod
    def of(cls, digest: str, data: bytes, offset: int, limit: int) -> "ArtifactPage":
        part = _ended_at_a_character(data[offset : offset + limit], is_last=offset + limit >= len(data))
        end = offset + len(part)
        try:
            text, encoded = part.decode(), None
        except UnicodeDecodeError:
            text, encoded = None, b64encode(part).decode()
        return cls(
            digest=digest,
            size_bytes=len(data),
            offset=offset,
            next_offset=end if end < len(data) else None,
            text=text,
            base64=encoded,
        )


def _ended_at_a_character(part: bytes, *, is_last: bool) -> bytes:
    """Return a part without the beginning of a character at its end, so that pages of text are text."""
    for cut in range(0 if is_last else min(4, len(part) - 1)):
        if part[-1 - cut] < 0x80:
            return part[: len(part) - cut]
        if part[-1 - cut] >= 0xC0:
            needed = 2 if part[-1 - cut] < 0xE0 else 3 if part[-1 - cut] < 0xF0 else 4
            return part if cut + 1 >= needed else part[: len(part) - cut - 1]
    return part
