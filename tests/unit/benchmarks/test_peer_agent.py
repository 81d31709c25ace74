"""The agents of the peers make the calls that they are asked for."""

import io
import json

import pytest

from benchmarks.durable.folder import listings
from benchmarks.durable.protocol import Asked, serve
from benchmarks.durable.pydantic_agent import agent_of


@pytest.mark.parametrize("calls", [1, 3])
async def test_the_agent_lists_the_folder_as_often_as_it_is_asked_one_call_in_each_turn(calls: int) -> None:
    listed = []

    def list_dir(path: str) -> list[str]:
        listed.append(path)
        return ["README.md"]

    result = await agent_of(list_dir).run(str(calls))

    assert listed == ["."] * calls
    assert result.output == str(calls)
    assert result.usage.requests == calls + 1


def test_an_agent_that_made_fewer_calls_is_an_error() -> None:
    assert listings("3", 3) == 3

    with pytest.raises(ValueError, match="an agent of 3 calls answered '2'"):
        listings("2", 3)


def heard(monkeypatch: pytest.MonkeyPatch, **asked: str | int) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked) + "\n"))


def test_a_program_runs_single_tasks_one_after_another_and_says_the_seconds_of_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard(monkeypatch, shape="W5", size=2, calls=3)
    ran = []

    def run(asked: Asked) -> int:
        ran.append(asked)
        return asked.calls

    serve(run)

    ready, seconds = map(json.loads, capsys.readouterr().out.splitlines())
    assert (ready, len(seconds)) == ([], 2)
    assert ran == [Asked("W5", 1, 3)] * 2


@pytest.mark.parametrize(("shape", "steps"), [("W1", 5 + 2), ("W2", 5)])
def test_a_program_whose_steps_return_less_than_is_asked_for_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shape: str, steps: int
) -> None:
    heard(monkeypatch, shape=shape, size=5, calls=3)
    serve(lambda asked: steps * asked.calls)

    heard(monkeypatch, shape=shape, size=5, calls=3)
    with pytest.raises(ValueError, match=f"not {steps * 3}"):
        serve(lambda asked: steps * asked.calls - 1)

    assert len(capsys.readouterr().out.splitlines()) == 2 + 1
