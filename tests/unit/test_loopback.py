"""The servers that tests open on the loopback leave nothing behind."""

import asyncio
import gc

from tests.loopback import listening
from tests.waiting import others_run


async def test_what_is_being_served_or_accepted_at_the_end_is_ended() -> None:
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        await asyncio.Event().wait()

    async with listening(serve) as port:
        first, near = await asyncio.open_connection("127.0.0.1", port)
        await served.wait()
        late, beside = await asyncio.open_connection("127.0.0.1", port)

    # Reset or ended: whoever reads learns it at once, and no transport is left for the collector to warn of.
    async with asyncio.timeout(5):
        assert [await _end(first), await _end(late)] == [b"", b""]
    for writer in (near, beside):
        writer.close()
    gc.collect()


async def test_the_end_of_what_is_served_is_no_failure() -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, report: reports.append(report))
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        await asyncio.Event().wait()

    async with listening(serve) as port:
        _, near = await asyncio.open_connection("127.0.0.1", port)
        await served.wait()
    near.close()
    await others_run()

    assert reports == []


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
