"""Keeps the lines of runs (LOG-01): redacts them and writes them to the store within a second.

If rows hold only the first and the last lines of a run, an artifact keeps all of them.

Every run of the process that has new lines is written in one statement. A run's lines are written before its step's end
is: no row is written for a run that this worker does not hold.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Final

from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.log import get_logger
from soong.shared.core.log_lines import GatheredLine, LineStream, RunLines, gathering
from soong.shared.core.step_work import StepWork, work_here
from soong.shared.engine.runs.lines import HEAD_ROWS, ROW_CHARS, ROW_LINES, LineRow, next_place
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.tasks.step import Claim
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.sandbox.redact import MARK, KeyBlocks, Redactor, inert_text
from soong.shared.sandbox.threads import unbroken
from soong.shared.tools.ports import ArtifactStore

log = get_logger(__name__)

MAX_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""So much of the lines of a run is kept as an artifact."""
MEMORY_CHARS: Final = 64 * 1024
_OPEN_KEY: Final = "-----BEGIN PRIVATE KEY-----\n"


@dataclass(slots=True)
class _KeptRun:
    """The rows of one run that are being filled. Belongs to the event loop of its worker."""

    claim: Claim
    lines: RunLines
    number: int = 0
    place: int = -1
    _open: list[GatheredLine] = field(default_factory=list)
    """The lines of the newest row, which is written again until it is full."""
    _open_chars: int = 0
    _keys: KeyBlocks = field(default_factory=KeyBlocks)
    _before: str = ""
    """The lines before the newest row, in memory while they are few."""
    _whole: IO[bytes] | None = None
    is_cut: bool = False

    def rows(self, redactor: Redactor, *, is_last: bool = False) -> list[LineRow]:
        """Return the rows to write for what was gathered: the newest state of each place."""
        gathered, left_out = self.lines.take(is_last=is_last)
        return self.rows_of([*self._cleaned(gathered, redactor)], left_out)

    def rows_of(self, lines: Sequence[GatheredLine], left_out: int = 0) -> list[LineRow]:
        rows: dict[int, LineRow] = {}
        for line in lines:
            size = len(line[3])
            if self.place < 0 or len(self._open) == ROW_LINES or self._open_chars + size > ROW_CHARS:
                self._begin_row(rows)
            self._open.append(line)
            self._open_chars += size
            self.number += 1
        if left_out:
            self._begin_row(rows)
            self.number += left_out
            self.is_cut = True
        elif lines:
            rows[self.place] = self._row()
        return list(rows.values())

    def whole(self) -> bytes:
        """Return all lines as text when rows do not hold them all, up to a bound; else nothing."""
        if not self.is_cut:
            return b""
        self._keep(self._open)
        rest = self._before.encode("utf-8", "replace")
        if self._whole is None:
            return rest
        self._whole.seek(0)
        return (self._whole.read(MAX_WHOLE_BYTES) + rest)[:MAX_WHOLE_BYTES]

    def close(self) -> None:
        self.lines.is_closed = True
        if self._whole is not None:
            self._whole.close()

    def _row(self) -> LineRow:
        lines = tuple(self._open)
        return LineRow(self.claim.identity.run_id, self.claim.fence, self.place, self.number, lines)

    def _begin_row(self, rows: dict[int, LineRow]) -> None:
        if self._open:
            rows[self.place] = self._row()
            self._keep(self._open)
        before, self.place = self.place, next_place(self.place)
        self.is_cut = self.is_cut or (before >= HEAD_ROWS and self.place <= before)
        self._open, self._open_chars = [], 0

    def _keep(self, lines: Sequence[GatheredLine]) -> None:
        self._before += "".join(f"{' '.join(filter(None, line[1:3]))}: {line[3]}\n" for line in lines)
        if len(self._before) < MEMORY_CHARS:
            return
        if self._whole is None:
            self._whole = TemporaryFile(prefix="soong-lines-")  # noqa: SIM115  # closed with its run
        if self._whole.tell() < MAX_WHOLE_BYTES:
            self._whole.write(self._before.encode("utf-8", "replace"))
        self._before = ""

    def _cleaned(self, lines: Sequence[GatheredLine], redactor: Redactor) -> Sequence[GatheredLine]:
        """Return lines that a terminal shows as they are, without secrets, also without those of several lines."""
        if not lines:
            return lines
        joined = "\n".join(line[3] for line in lines)
        text = inert_text(joined)
        if text.count("\n") + 1 != len(lines):  # a carriage return has made lines of one
            parts = [(*line[:3], part) for line in lines for part in inert_text(line[3]).split("\n")]
            lines, text = parts, "\n".join(part[3] for part in parts)
        begun = _OPEN_KEY if self._keys.is_open else ""
        self._keys.feed(f"{text}\n".encode("utf-8", "surrogatepass"))
        spans = redactor.spans(begun + text)
        if text is joined and not spans:
            return lines
        texts = _without(text, [(start - len(begun), end - len(begun)) for start, end in spans]).split("\n")
        return [(*line[:3], clean) for line, clean in zip(lines, texts, strict=True)]


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a text with a mark for each of these places, and as many lines as before."""
    pieces: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if end <= at:
            continue
        first = max(start, at)
        pieces += [text[at:first], MARK, "\n" * text.count("\n", first, end)]
        at = end
    return "".join((*pieces, text[at:]))


@dataclass(slots=True)
class LineKeeper:
    """Keeps the lines of all runs of one process."""

    store: RunStore
    artifacts: ArtifactStore
    notifier: Notifier
    redactor: Redactor = field(default_factory=Redactor)
    _new: dict[RunLines, _KeptRun] = field(default_factory=dict)
    """Runs that have lines which are not written yet."""
    _writing: asyncio.Task[None] | None = None
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def kept(self, claim: Claim) -> AsyncIterator[None]:
        """Keep what the run of a claim writes in this context. On leaving it, all is written."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._note, run)

        lines = RunLines(wake)
        run = _KeptRun(claim, lines)
        if claim.is_resumed:
            with suppress(SoongError):  # then it writes over its first lines
                run.number, run.place = await self.store.last_line(claim.identity.run_id)
        try:
            with gathering(lines):
                yield
        finally:
            work = work_here()
            if work:  # a thread that nobody can end may go on writing
                await unbroken(self._write([run]))
                closing = loop.create_task(self._close_after(run, work))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            elif run.number or not lines.is_empty:
                await unbroken(self._close(run))
            else:
                run.close()

    async def flush(self) -> None:
        """Write all that has come."""
        runs = list(self._new.values())
        self._new.clear()
        await self._write(runs)

    def _note(self, run: _KeptRun) -> None:
        self._new[run.lines] = run
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def _write_soon(self) -> None:
        while self._new:
            await asyncio.sleep(timing.WRITE_LINES_S)
            await self.flush()

    async def _close_after(self, run: _KeptRun, work: StepWork) -> None:
        await work.until_ended()
        await self._close(run)

    async def _close(self, run: _KeptRun) -> None:
        """Write the last lines of a run, and all of them as an artifact when rows do not hold them."""
        self._new.pop(run.lines, None)
        await self._write([run], is_last=True)
        if data := run.whole():
            try:
                ref = await self.artifacts.put(data, "text/plain", "log.txt")
            except (SoongError, OSError) as error:
                log.warning("lines_not_kept_whole", run=run.claim.identity.run_id, error=str(error))
            else:
                most = " (its first 16 MiB)" if len(data) == MAX_WHOLE_BYTES else ""
                run.lines.add(LineStream.LOG, "info", f"soong: the complete log{most} is the artifact {ref.digest}")
                await self._write([run])
        run.close()

    async def _write(self, runs: Sequence[_KeptRun], *, is_last: bool = False) -> None:
        written: list[_KeptRun] = []
        rows: list[LineRow] = []
        for run in runs:
            new = run.rows(self.redactor, is_last=is_last)
            rows += new
            written += [run] if new else []
        if not rows:
            return
        try:
            await self.store.write_lines(rows)
            await self.notifier.notify_runs([run.claim.identity.run_id for run in written])
        except Exception as error:  # noqa: BLE001  # lines that cannot be written end no step
            log.warning("lines_not_written", runs=len(written), error=str(error))
