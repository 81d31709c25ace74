"""The body of an answer, held to a size while it comes: before and after it is unpacked."""

import zlib
from typing import TYPE_CHECKING, Final

from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType, ToolError

if TYPE_CHECKING:
    import httpx2

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 64 * 1024


class ResponseBody(Value):
    """What a server sent in the end. ``media_type`` is in lower case, ``charset`` as it was said; both may be empty."""

    url: str
    status: int
    media_type: str
    charset: str
    data: bytes


async def read_body(response: "httpx2.Response", max_bytes: int) -> ResponseBody:
    """Read an answer to its end.

    Raises:
        ToolError: it is longer than ``max_bytes``, packed or unpacked, or packed in a way that was not asked for.
    """
    packing = response.headers.get("content-encoding", "").strip().lower()
    unpacker = None if packing in ("", "identity") else _Unpacker(packing, max_bytes)
    received, data = 0, bytearray()
    async for piece in response.aiter_raw(_PIECE_BYTES):
        received += len(piece)
        data += piece if unpacker is None else unpacker.unpacked(piece)
        if max(received, len(data)) > max_bytes:
            raise too_long(str(response.url), max_bytes)
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = response.charset_encoding if "charset" in parameters.lower() else None
    return ResponseBody(str(response.url), response.status_code, media_type.strip().lower(), charset or "", bytes(data))


def too_long(url: str, max_bytes: int) -> ToolError:
    hint = "fetch a page of it that the server offers, or its parts"
    return ToolError(ErrorType.LIMIT_EXCEEDED, f"{url[:500]} has more than {max_bytes} bytes", hint=hint)


class _Unpacker:
    """Unpacks piece by piece, and never more than one byte beyond the limit: a small answer may hold a huge one."""

    def __init__(self, packing: str, max_bytes: int) -> None:
        if packing not in ("gzip", "x-gzip", "deflate"):
            problem = f"the answer is packed as {packing[:80]!r}, which was not asked for"
            raise ToolError(ErrorType.EXECUTION_FAILED, problem)
        self._inflating = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._room = max_bytes + 1
        self._is_raw = packing == "deflate"

    def unpacked(self, piece: bytes) -> bytes:
        try:
            data = self._inflating.decompress(piece, self._room)
        except zlib.error as error:
            if not self._is_raw:
                raise ToolError(ErrorType.EXECUTION_FAILED, f"the answer cannot be unpacked: {error}") from error
            # Some servers send deflate without the header that it should have.
            self._is_raw, self._inflating = False, zlib.decompressobj(-zlib.MAX_WBITS)
            return self.unpacked(piece)
        self._is_raw = False
        self._room -= len(data)
        return data
