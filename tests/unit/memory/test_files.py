"""The built-in memory provider: files are the truth, and each search sees them as they are (MEM-01, MEM-02)."""

import asyncio
from pathlib import Path

import pytest

from soong.shared.core.errors import LimitExceededError, UsageError
from soong.shared.core.full_text import words_of
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.memory import files
from soong.shared.storage.memory.files import FileMemory, project_folder
from soong.shared.toolsets.memory.provider import MAX_CONTENT_CHARS, Memory, MemoryScope


def make_memory(content: str = "The user prefers tabs.", **overrides: object) -> Memory:
    return Memory(**{"content": content, "is_tainted": False, **overrides})  # type: ignore[arg-type]


def provider(home: Path, *secrets: str) -> FileMemory:
    return FileMemory(RootedFolder(home, "memory"), Redactor(secrets))


async def found(memory: FileMemory, query: str, project: str = "", scope: MemoryScope | None = None) -> list[str]:
    return [each.content for each in await memory.search(query, project=project, scope=scope)]


async def test_files_that_a_person_wrote_changed_or_removed_are_seen_at_the_next_search(tmp_path: Path) -> None:
    memory = provider(tmp_path)
    note = tmp_path / "memory" / "user" / "style.md"
    note.parent.mkdir(parents=True)
    note.write_text("Answer in German.\n")
    assert await found(memory, "german") == ["Answer in German."]
    assert not (await memory.entries())[0].is_tainted  # a person wrote it: there is no front matter

    note.write_text("---\ntags: [language]\ntainted: true\n---\nAnswer in French.\n")
    assert (await found(memory, "german"), await found(memory, "language")) == ([], ["Answer in French."])
    assert await found(memory, "style") == ["Answer in French."]  # by the name of its file
    assert (await memory.entries())[0].is_tainted

    note.unlink()
    assert await found(memory, "french") == []


@pytest.mark.spec("MEM-01.a")
async def test_a_memory_of_a_project_is_found_in_that_project_only(tmp_path: Path) -> None:
    memory = provider(tmp_path)
    await memory.save(make_memory("This one uses tabs.", scope=MemoryScope.PROJECT, project="/work/a"))
    await memory.save(make_memory("The user likes tabs."))

    assert sorted(await found(memory, "tabs", "/work/a")) == ["The user likes tabs.", "This one uses tabs."]
    assert await found(memory, "tabs", "/work/b/a") == ["The user likes tabs."]
    assert await found(memory, "tabs", "/work/a", MemoryScope.PROJECT) == ["This one uses tabs."]
    assert await found(memory, "tabs", "/work/a", MemoryScope.USER) == ["The user likes tabs."]


async def test_a_file_says_where_it_holds_by_where_it_lies(tmp_path: Path) -> None:
    memory = provider(tmp_path)
    for folder, project in (("user", "/work/a"), (project_folder("/work/a"), "/work/b")):
        path = tmp_path / "memory" / folder / "moved.md"
        path.parent.mkdir(parents=True)
        path.write_text(f"---\nproject: {project}\n---\nMoved by hand.\n")

    assert await memory.entries() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"---\n&a [*a]\n---\ntext",
        b"---\ntags: 7\n---\ntext",
        b"---\nscope: galaxy\n---\ntext",
        b"---\n- a\n---\ntext",
        b"---\nproject: 3\n---\ntext",
        b"x" * (files.MAX_FILE_BYTES + 1),
        b"x" * (MAX_CONTENT_CHARS + 1),
    ],
    ids=["empty", "binary", "alias", "tags", "scope", "list", "project", "large", "long"],
)
async def test_a_broken_file_is_left_out_and_hides_no_other(tmp_path: Path, content: bytes) -> None:
    memory = provider(tmp_path)
    await memory.save(make_memory("The text is fine."))
    (tmp_path / "memory" / "user" / "broken.md").write_bytes(content)

    assert await found(memory, "text") == ["The text is fine."]


async def test_a_link_is_followed_neither_to_a_file_nor_to_a_folder(tmp_path: Path) -> None:
    memory = provider(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("The secret word is plumage.")
    folder = tmp_path / "memory" / "user"
    folder.mkdir(parents=True)
    (folder / "link.md").symlink_to(outside / "secret.md")
    (tmp_path / "memory" / "projects").symlink_to(outside)

    assert await memory.entries() == []


@pytest.mark.spec("MEM-02.a")
async def test_no_secret_is_written(tmp_path: Path) -> None:
    memory = provider(tmp_path, "plumage-of-gold")

    await memory.save(make_memory("The key is plumage-of-gold, or AKIAABCDEFGHIJKLMNOP.", tags=("plumage-of-gold",)))

    (path,) = (tmp_path / "memory").rglob("*.md")
    assert "plumage" not in path.read_text()
    assert "AKIA" not in path.read_text()


async def test_the_number_of_files_is_bounded_and_a_known_one_can_still_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    memory = provider(tmp_path)
    first = make_memory("one")
    await memory.save(first)
    await memory.save(make_memory("two"))

    with pytest.raises(LimitExceededError, match="holds 2 files"):
        await memory.save(make_memory("three"))
    await memory.save(first)
    assert await memory.remove(first.id)
    await memory.save(make_memory("three"))
    assert not await memory.remove(first.id)


async def test_two_that_write_and_search_at_once_lose_nothing(tmp_path: Path) -> None:
    one, other = provider(tmp_path), provider(tmp_path)

    async def write(memory: FileMemory, name: str) -> None:
        for number in range(20):
            await memory.save(make_memory(f"{name} learnt fact {number}"))
            await memory.search("fact", project="")

    await asyncio.gather(write(one, "one"), write(other, "other"), write(one, "third"))

    assert len(await one.entries()) == len(await other.entries()) == 60


@pytest.mark.parametrize(
    ("content", "scope", "project", "problem"),
    [
        (" \n", MemoryScope.USER, "", "is empty"),
        ("x" * (MAX_CONTENT_CHARS + 1), MemoryScope.USER, "", "at most 4000"),
        ("x", MemoryScope.PROJECT, "", "has the project ''"),
        ("x", MemoryScope.USER, "/work", "has the project '/work'"),
    ],
)
def test_what_is_no_memory_says_why(content: str, scope: MemoryScope, project: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Memory(content, scope, project=project)


def test_a_memory_shows_nothing_that_is_not_seen_and_keeps_its_id() -> None:
    memory = Memory("tabs\u202e\x1b[31m", tags=(" a\u200b  b ", "", "a b", *map(str, range(20))))

    assert memory.content == "tabs[31m"
    assert memory.tags[:2] == ("a b", "0")
    assert len(memory.tags) == 10
    assert memory.id == Memory("tabs[31m").id
    assert memory.is_tainted  # who does not say is not trusted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("readFile", ["readfile", "read", "file"]),
        ("HTTPServer_v2", ["httpserver", "http", "server", "v2", "v", "2"]),
        ("工具系统", ["工具", "具系", "系统"]),
        ("忆", ["忆"]),
        ("Redis缓存", ["redis", "缓存"]),
        ("naïve café-bar", ["naïve", "café", "bar"]),
        ("--- ???", []),
    ],
)
def test_words_by_which_a_text_is_found(text: str, words: list[str]) -> None:
    assert words_of(text) == words
