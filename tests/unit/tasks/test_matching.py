"""Who could run what waits, and the words for what is missing."""

import pytest

from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import is_able, lacking
from soong.shared.engine.wire.notifier import catalogue_of, declared, functions_needed, in_words, labels, tools_needed
from tests.model.builders import make_worker

pytestmark = pytest.mark.spec("DIS-04")

PLAIN = make_worker("wrk_plain", capabilities=("protocol:1", "tool:code.read_file"))
GPU = make_worker("wrk_gpu", capabilities=("protocol:1", "gpu"))
BIG = make_worker("wrk_big", pools=("big",), capabilities=("protocol:1", "gpu"))


@pytest.mark.parametrize(
    ("pool", "needs", "is_so"),
    [
        ("default", (), True),
        ("default", ("gpu", "protocol:1"), True),
        ("default", ("tpu",), False),
        ("big", ("gpu",), False),
    ],
    ids=["needs nothing", "has all", "lacks one", "serves another pool"],
)
def test_a_worker_is_able_that_serves_the_pool_and_has_all_that_is_needed(
    pool: str, needs: tuple[str, ...], is_so: bool
) -> None:
    assert is_able(GPU, pool, needs) is is_so


@pytest.mark.parametrize("state", [ProcessState.DRAINING, ProcessState.GONE])
def test_a_worker_that_does_not_live_is_able_to_nothing(state: ProcessState) -> None:
    assert not is_able(make_worker(state=state), "default", ())
    assert lacking("default", (), [make_worker(state=state)]) == "no worker lives"


@pytest.mark.parametrize(
    ("pool", "needs", "workers", "words"),
    [
        ("default", ("gpu",), [PLAIN, GPU], ""),
        ("default", ("gpu",), [PLAIN, BIG], "no capable worker: needs the label 'gpu'"),
        ("small", (), [PLAIN, BIG], "no capable worker: needs the pool 'small'"),
        ("default", ("protocol:2", "gpu"), [GPU], "no capable worker: needs the protocol 2"),
        ("default", ("tool:team.count",), [PLAIN, GPU], "no capable worker: needs the tool team.count"),
        (
            "default",
            ("tool:code.read_file", "gpu"),
            [PLAIN, GPU],
            "no capable worker: needs the tool code.read_file, the label 'gpu'",
        ),
        ("default", (), [], "no worker lives"),
    ],
    ids=["able", "a label", "a pool", "a version", "a tool", "none has all", "nobody"],
)
def test_what_is_missing_is_named(pool: str, needs: tuple[str, ...], workers: list[Worker], words: str) -> None:
    assert lacking(pool, needs, workers) == words


def test_what_a_plan_asks_for_is_distinguished_from_what_a_step_is_made_of_and_what_all_have() -> None:
    needs = ("gpu", "host:big", "protocol:1", *tools_needed(["code.search"]), *functions_needed(["team.f"]))

    assert declared(needs) == ("gpu", "host:big")
    assert labels((*needs, "version:1")) == ("gpu",)

    assert functions_needed(["builtin.echo", "", "team.f"]) == ("function:team.f",)

    assert in_words("project:prj_1@/srv/shop") == "the project at /srv/shop"


def test_a_catalogue_is_distinguished_from_another_by_its_schemas_alone() -> None:
    one, other = catalogue_of({"a": {}, "b": {"type": "object"}}), catalogue_of({"a": {}, "b": {"type": "array"}})

    assert one == catalogue_of({"b": {"type": "object"}, "a": {}}) != other
