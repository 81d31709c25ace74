"""code.list_dir: entries of a directory, sorted, bounded, following no link (FS-02)."""

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.descriptors import PathRefusedError, opened_directory, refuse_kernel_files
from soong.shared.sandbox.names import readable
from soong.shared.sandbox.paths import PathPolicy, shown_path
from soong.shared.sandbox.threads import check
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, TextBlock, ToolResult
from soong.shared.tools.schema import arguments, flag, flag_of, integer, number_of, string
from soong.shared.toolsets.code.paths import check_object, in_thread, permitted, read_target
from soong.shared.toolsets.code.rg import LISTS, is_withheld, withheld_below

DEFAULT_LIMIT: Final = 200
MAX_LIMIT: Final = 1000
_MAX_DEPTH: Final = 64
_CHECK_EVERY: Final = 1024
_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}
_MARKS: Final = {"dir": "/", "link": "@"}


def list_dir_tool(policy: PathPolicy) -> ToolDefinition:
    return ToolDefinition(
        name="code.list_dir",
        title="List directory",
        description="List a directory, sorted by path. Links are named and not followed.",
        search_hint="ls tree files folders",
        input_schema=arguments(
            path=string("Directory to list; the project when absent."),
            recursive=flag("Also list what is below.", default=False),
            limit=integer("How many entries at most.", DEFAULT_LIMIT, 1, MAX_LIMIT),
        ),
        handler=in_thread(partial(_list, policy)),
        permission=Permission.READONLY,
        tags=frozenset({"code", "filesystem", "readonly"}),
        errors=(ErrorType.FILE_NOT_FOUND, ErrorType.NOT_REGULAR_FILE, ErrorType.PATH_CONFLICT),
        target=partial(read_target, policy),
    )


@dataclass(slots=True)
class _Walk:
    """One listing. The limit bounds memory: only the first entries of a huge directory are ever held. ``unreadable``
    counts directories that were not entered: not permitted, gone, the kernel's, or too deep.
    """

    policy: PathPolicy
    limit: int
    is_recursive: bool
    shows_sensitive: bool
    withheld: tuple[str, ...]
    stop: Event
    count: int = 0
    left_out: int = 0
    unreadable: int = 0

    def entries(self, descriptor: int, folder: Path, depth: int = 0) -> Iterator[tuple[Path, os.DirEntry[str]]]:
        """Yield up to ``limit + 1`` entries in the order of their path as text."""
        # A directory is in the order twice: as an entry, and with a slash for all that is below it. At least half of
        # any number of first places are entries, so twice as many places as entries are enough.
        places = 2 * (self.limit + 1 - self.count)
        for key, entry in heapq.nsmallest(places, self._places(descriptor, folder), key=lambda place: place[0]):
            if self.count > self.limit:
                return
            path = folder / entry.name
            if key.endswith("/"):
                yield from self._below(descriptor, path, depth)
            else:
                self.count += 1
                yield path, entry

    def _places(self, descriptor: int, folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
        for entry in self._visible(descriptor, folder):
            yield entry.name, entry
            if self.is_recursive and entry.is_dir(follow_symlinks=False):
                yield f"{entry.name}/", entry

    def _below(self, parent: int, path: Path, depth: int) -> Iterator[tuple[Path, os.DirEntry[str]]]:
        descriptor = _entered(parent, path) if depth < _MAX_DEPTH else None
        if descriptor is None:
            self.unreadable += 1
            return
        try:
            yield from self.entries(descriptor, path, depth + 1)
        finally:
            os.close(descriptor)

    def _visible(self, descriptor: int, folder: Path) -> Iterator[os.DirEntry[str]]:
        with os.scandir(descriptor) as found:
            for position, entry in enumerate(found):
                if position % _CHECK_EVERY == 0:
                    check(self.stop)
                path = f"{folder}/{entry.name}"
                is_secret = not self.shows_sensitive and self.policy.is_sensitive(path)
                if is_secret or is_withheld(path, self.withheld):
                    self.left_out += 1
                else:
                    yield entry


def _entered(parent: int, path: Path) -> int | None:
    """Open a directory of a directory; None when it cannot be, or is one of the kernel's own."""
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    try:
        refuse_kernel_files(descriptor, path)
    except PathRefusedError:
        os.close(descriptor)
        return None
    return descriptor


def _list(policy: PathPolicy, context: ToolContext, call_input: JsonObject, stop: Event) -> ToolResult:
    located = permitted(policy, context, call_input)
    limit = number_of(call_input, "limit", DEFAULT_LIMIT)
    is_recursive = flag_of(call_input, "recursive", default=False)
    withheld = withheld_below(context.run_dirs, located.resolved, LISTS)
    walk = _Walk(policy, limit, is_recursive, located.is_sensitive, withheld, stop)
    with opened_directory(located.resolved) as descriptor:
        check_object(context, located.resolved, descriptor)
        entries = [_entry(path, entry, context) for path, entry in walk.entries(descriptor, located.resolved)]
    is_truncated, entries = len(entries) > limit, entries[:limit]
    data: dict[str, Json] = {
        "path": shown_path(located.resolved, context.run_dirs),
        "entries": entries,
        "truncated": is_truncated,
        "left_out": walk.left_out,
    }
    lines = [f"{readable(str(each['path']))}{_MARKS.get(str(each['type']), '')}\t{each['size']}" for each in entries]
    lines += ["[more entries follow; list a directory below, or raise the limit]"] if is_truncated else []
    lines += [f"[{walk.left_out} entries left out: sensitive, or withheld by a rule]"] if walk.left_out else []
    if walk.unreadable:
        data |= {"partial": True, "unreadable": walk.unreadable}
        lines.append(f"[{walk.unreadable} directories were not entered]")
    summary = f"{readable(str(data['path']))}: {len(entries)} entries" + (", more follow" if is_truncated else "")
    return ToolResult(context.tool_call_id, (TextBlock("\n".join(lines) or "[empty]"),), summary, data)


def _entry(path: Path, entry: os.DirEntry[str], context: ToolContext) -> dict[str, Json]:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # it went away between the listing and the look
        return {"path": shown_path(path, context.run_dirs), "type": "other", "size": 0}
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    size = status.st_size if kind == "file" else 0
    return {"path": shown_path(path, context.run_dirs), "type": kind, "size": size}
