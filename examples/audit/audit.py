"""The agents of audit.yaml when no model is chosen: they list, search, read, parse, and write one report."""

import asyncio
import re
from pathlib import PurePosixPath
from typing import Any

from outline import Outline, outline_of
from report import report_of

from soong import AgentHandle, ToolCallError, scripted_agent

HIDDEN = re.compile(r"[.].*|.*[.](egg|dist)-info")
TEST = re.compile(r"test_.*|.*_test")
NEEDS_NO_TEST = frozenset({"__init__", "__main__", "conftest", "setup"})
LONGEST_FUNCTION = 80
MOST_ROUNDS = 40
SEARCHES = {
    "markers": r"\b(TODO|FIXME)\b",
    "excepts": r"^\s*except(\s*:|.*\b(Exception|BaseException)\b)",
    "loads": r"\b(pickle|cPickle|dill|cloudpickle|marshal|shelve|jsonpickle|joblib|yaml)\b.*\(",
    "shells": r"shell\s*=\s*True",
    "defaults": r"=\s*(\[|\{|(list|dict|set|bytearray)\().*[,)]\s*(->.*)?:?\s*$",
}
UNSAFE = re.compile(
    r"(.*[.])?(pickle|cPickle|_pickle|dill|cloudpickle|marshal|joblib)[.](loads?|Unpickler)"
    r"|shelve[.]open|jsonpickle[.]decode|yaml[.]unsafe_load(_all)?"
)
Finding = dict[str, Any]


@scripted_agent("audit.survey")
async def survey(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """List the tree level by level, the folders of a level in one turn."""
    frontier, files, cut = [agent.project], [], []
    for _ in range(MOST_ROUNDS):
        found = await asyncio.gather(*(listed(agent, folder) for folder in frontier))
        folders = [one for one in found if one]
        cut += [folder["path"] for folder in folders if folder["truncated"]]
        entries = [entry for folder in folders for entry in folder["entries"]]
        files += [PurePosixPath(entry["path"]) for entry in entries if entry["type"] == "file"]
        below = [PurePosixPath(entry["path"]) for entry in entries if entry["type"] == "dir"]
        frontier = [f"{agent.project}/{path}" for path in below if is_audited(path.name, inputs["skip"])]
        if not frontier:
            break
    python = sorted(str(path) for path in files if path.suffix == ".py")
    places = sorted({str(PurePosixPath(path).parent) for path in python}) or ["."]
    stems = [PurePosixPath(path).stem for path in python]
    return {
        "packages": [{"path": place, "files": [path for path in python if parent(path) == place]} for place in places],
        "tested": sorted({stem.removeprefix("test_").removesuffix("_test") for stem in stems if TEST.fullmatch(stem)}),
        "cut": cut,
    }


async def listed(agent: AgentHandle, folder: str) -> dict[str, Any] | None:
    try:
        return await agent.call("code.list_dir", path=folder, limit=1000)
    except ToolCallError:
        return None  # it may not be read, or went away


def is_audited(name: str, skip: list[str]) -> bool:
    return name not in skip and not HIDDEN.fullmatch(name)


def parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


@scripted_agent("audit.review")
async def review(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """Search where to look, read every file, and report what its syntax tree says."""
    package = inputs["package"]
    folder, notes = f"{agent.project}/{package['path']}", []
    hits = await asyncio.gather(*(searched(agent, folder, query, notes) for query in SEARCHES.values()))
    texts = await read_all(agent, package["files"], notes)
    findings = [finding("marker", hit["path"], hit["line"], hit["text"].strip()) for hit in hits[0]["matches"]]
    for path, text in texts.items():
        outline = outline_of(text)
        findings += found_in(path, outline)
        if outline.problem:
            notes.append(f"{path} is not Python that this version reads: {outline.problem}")
    findings += [
        finding("untested_file", path, 1, "no test file is named after it")
        for path in package["files"]
        if needs_test(PurePosixPath(path).stem, inputs["tested"])
    ]
    return {
        "package": package["path"],
        "files_read": len(texts),
        "candidates": sum(one["count"] for one in hits),
        "findings": sorted(findings, key=lambda one: (one["path"], one["line"], one["kind"], one["detail"])),
        "notes": notes,
    }


async def searched(agent: AgentHandle, folder: str, query: str, notes: list[str]) -> dict[str, Any]:
    try:
        found = await agent.call("code.search", query=query, path=folder, glob="/*.py", limit=1000)
    except ToolCallError as error:
        notes.append(f"a search failed: {error.text}")
        return {"matches": [], "count": 0}
    if found["truncated"]:
        notes.append("a search found more lines than it returns")
    return found


async def read_all(agent: AgentHandle, paths: list[str], notes: list[str]) -> dict[str, str]:
    """Return the full files by path: page by page, the next page of all unfinished files in one turn."""
    texts = dict.fromkeys(paths, "")
    pending = dict.fromkeys(paths, 1)
    for _ in range(MOST_ROUNDS):
        pages = await asyncio.gather(*(read_page(agent, path, line) for path, line in pending.items()))
        following = {}
        for path, page in zip(pending, pages, strict=True):
            if isinstance(page, ToolCallError):
                notes.append(f"{path} was not read: {page.text}")
                del texts[path]
                continue
            texts[path] += page["text"]
            if page.get("next_start_line"):
                following[path] = page["next_start_line"]
        pending = following
        if not pending:
            return texts
    notes += [f"{path} is too long to be read in full" for path in pending]
    return {path: text for path, text in texts.items() if path not in pending}


async def read_page(agent: AgentHandle, path: str, line: int) -> dict[str, Any] | ToolCallError:
    try:
        return await agent.call("code.read_file", path=f"{agent.project}/{path}", start_line=line, max_lines=1000)
    except ToolCallError as error:
        return error


def finding(kind: str, path: str, line: int, detail: str) -> Finding:
    return {"kind": kind, "path": path, "line": line, "detail": detail}


def found_in(path: str, outline: Outline) -> list[Finding]:
    """Return what the syntax tree of one file shows."""
    swallowed = [
        finding("swallowed_exception", path, one.line, f"catches {one.catches} and does nothing")
        for one in outline.handlers
        if one.swallows
    ]
    mutable = [
        finding("mutable_default", path, one.line, f"{one.function} shares the default {one.default}")
        for one in outline.mutable_defaults
    ]
    long = [
        finding("long_function", path, one.line, f"{one.name} has {one.lines} lines")
        for one in outline.functions
        if one.lines > LONGEST_FUNCTION
    ]
    unsafe = [
        finding("unsafe_deserialisation", path, one.line, f"calls {one.name}")
        for one in outline.calls
        if is_unsafe(one.name, one.loader)
    ]
    shell = [
        finding("shell_true", path, one.line, f"calls {one.name} with shell=True")
        for one in outline.calls
        if one.is_shell
    ]
    return [*swallowed, *mutable, *long, *unsafe, *shell]


def is_unsafe(name: str, loader: str) -> bool:
    if name in {"yaml.load", "yaml.load_all"}:
        return re.search("(Safe|Base)Loader", loader) is None
    return UNSAFE.fullmatch(name) is not None


def needs_test(stem: str, tested: list[str]) -> bool:
    return stem not in NEEDS_NO_TEST and stem not in tested and not TEST.fullmatch(stem)


@scripted_agent("audit.report")
async def write_report(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """Merge the reviews into one Markdown text and write it; a refusal leaves the text in the result."""
    done = [one for one in inputs["reviews"] if one]
    path, report = f"{inputs['report_dir']}/report.md", report_of(agent.project, done, inputs)
    try:
        await agent.call("code.write_file", path=path, content=report, overwrite=True)
    except ToolCallError:
        written = False
    else:
        written = True
    findings = sum(len(one["findings"]) for one in done)
    return {"report": report, "path": path, "written": written, "findings": findings, "packages": len(done)}
