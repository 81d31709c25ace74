"""What a yes for the session covers, and that it covers nothing beside that."""

import pytest

from shared.tools.result import ErrorType
from tests.security.granting import granting
from tests.unit.toolsets.parts import Project


@pytest.mark.spec("PER-04", "PER-08")
@pytest.mark.parametrize("behind", [" ", "\t", "\n", "\xa0", "\x85", "\u2003"], ids=ascii)
async def test_a_grant_for_a_folder_is_none_for_one_that_looks_like_it(project: Project, behind: str) -> None:
    (project.root / "out").mkdir()
    (project.root / f"out{behind}").mkdir()
    session = granting(project.bench)

    first = await project.call("write_file", path="out/a", content="x")
    again = await project.call("write_file", path="out/b", content="x")
    other = await project.call("write_file", path=f"out{behind}/c", content="x")

    assert (first.error, again.error, len(session.book)) == (None, None, 1)
    assert other.error is not None
    assert other.error.type is ErrorType.PERMISSION_NO_CALLBACK
    assert not (project.root / f"out{behind}/c").exists()


@pytest.mark.spec("PER-04", "PER-08")
async def test_no_grant_is_offered_for_a_folder_that_looks_like_another(project: Project) -> None:
    (project.root / "out ").mkdir()
    session = granting(project.bench)

    assert (await project.call("write_file", path="out /a", content="x")).error is None

    assert len(session.book) == 0
