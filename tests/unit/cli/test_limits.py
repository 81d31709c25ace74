"""Limits on what runs at once, set from the command line."""

import json
from pathlib import Path

import pytest

from tests.model.builders import make_worker
from tests.unit.cli.calling import soong
from tests.unit.cli.test_workers import deployed

pytestmark = pytest.mark.spec("DIS-03", "OPS-04")


async def test_a_limit_is_set_changed_listed_and_removed(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker())

    done = [
        soong("limits", *words, home=home)
        for words in (("set", "pool:default", "4"), ("set", "model:openai:gpt", "2"), ("set", "pool:default", "3"))
    ]
    listed = json.loads(soong("limits", "list", "--json", home=home).stdout)
    removed = soong("limits", "remove", "pool:default", home=home)
    shown = soong("limits", "list", home=home)

    assert [one.returncode for one in done] == [0, 0, 0], done
    assert listed["limits"] == [
        {"scope": "model:openai:gpt", "limit": 2, "used": 0},
        {"scope": "pool:default", "limit": 3, "used": 0},
    ]
    assert removed.returncode == 0
    assert "model:openai:gpt" in shown.stdout
    assert "pool:default" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "queue:default", "4"), "is not a scope of a concurrency limit"),
        (("set", "pol:default", "4"), "did you mean 'pool'?"),
        (("set", "pool:", "4"), "pool:NAME"),
        (("set", "session:sess_none", "4"), "there is no session 'sess_none'"),
        (("set", "pool:default", "0"), "greater than or equal to 1"),
    ],
    ids=["another kind", "a slip", "no name", "no such session", "a limit of nothing"],
)
async def test_a_wrong_limit_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    home = await deployed(tmp_path)

    done = soong("limits", *words, home=home)

    assert done.returncode == 2
    assert said in done.stderr


async def test_no_limit_says_how_to_set_one(tmp_path: Path) -> None:
    done = soong("limits", "list", home=await deployed(tmp_path))

    assert done.returncode == 0
    assert "soong limits set" in done.stdout
