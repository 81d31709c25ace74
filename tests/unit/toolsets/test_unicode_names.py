import unicodedata

import pytest

from tests.unit.toolsets.parts import Project

STORED = unicodedata.normalize("NFD", "Résumé/café.txt")
TYPED = unicodedata.normalize("NFC", STORED)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(("stored", "typed"), [(STORED, TYPED), (TYPED, STORED)], ids=["NFC", "NFD"])
async def test_a_listed_name_is_found_in_the_other_form(project: Project, stored: str, typed: str) -> None:
    file = project.file(stored, "one\n")

    read = await project.data("read_file", path=typed)
    edited = await project.call("edit_file", path=typed, edits=[{"old": "one", "new": "two"}])
    written = await project.call("write_file", path=typed, content="three\n", overwrite=True)
    folder = await project.data("list_dir", path=typed.partition("/")[0])
    found = await project.data("search", query="three", path=typed.partition("/")[0])

    assert read["text"] == "one\n"
    assert (edited.error, written.error) == (None, None)
    assert file.read_text() == "three\n"
    assert len(list(file.parent.iterdir())) == len(folder["entries"]) == 1
    assert found["matches"]


async def test_an_exact_name_is_taken_before_its_twin_and_of_two_twins_none(project: Project) -> None:
    for name in (STORED, TYPED):
        project.file(name, f"{len(name)}\n")

    exact = [(await project.data("read_file", path=name))["text"] for name in (STORED, TYPED)]

    assert exact == [f"{len(STORED)}\n", f"{len(TYPED)}\n"]
