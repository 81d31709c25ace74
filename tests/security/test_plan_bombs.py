"""Plans that are made to hurt: their readers, and their expansions stay within bounds of work and memory."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from soong.shared.core.errors import BudgetExceededError, InvalidPlanError
from soong.shared.core.jsontext import Json, dump
from soong.shared.engine.tasks.expansion import MAX_KEY_CHARS, expand_map
from soong.shared.engine.tasks.new_tasks import MAX_TITLE_CHARS, new_task
from soong.shared.engine.tasks.plan.budget import MAX_EXPANSION_BYTES, MAX_TEXT_BYTES, MIB, ExpansionBudget
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.plan.reader import parse_plan, plan_from_json
from soong.shared.engine.tasks.plan.template import render_text
from soong.shared.engine.tasks.problems import (
    MAX_CANDIDATES,
    MAX_NAMED,
    MAX_PROBLEMS,
    MAX_SUGGESTIONS,
    Problems,
    Unknown,
)
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewTask
from tests.model.builders import make_identity, make_session
from tests.security.plan_bombs import SHAPES
from tests.unit.agents.parts import row_of, task_of

pytestmark = pytest.mark.timeout(600)

# A small process between us and the program: what a process takes at most counts from its parent's size at the fork.
_LIMITED: Final = """
import json, os, resource, sys
report, memory, cpu, *arguments = sys.argv[1:]
pid = os.fork()
if not pid:
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 5))
    os.execv(sys.executable, [sys.executable, "-P", *arguments])
_, status, used = os.wait4(pid, 0)
taken = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
os.write(int(report), json.dumps(taken).encode())
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a program took and said. ``code`` is negative for the signal that ended it."""

    code: int
    cpu_s: float
    peak_mib: float
    out: str
    err: str


def run_bounded(
    arguments: Sequence[str],
    *,
    stdin: str = "",
    memory_mib: int = 1024,
    cpu_s: int = 60,
    env: Mapping[str, str] | None = None,
) -> Taken:
    """Run ``python -P ARGUMENTS`` to its end; beyond a limit its allocations fail, or it is ended by SIGXCPU."""

    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as report:
        given.write(stdin.encode())
        given.seek(0)
        limits = [str(report.fileno()), str(memory_mib * MIB), str(cpu_s)]
        command = [sys.executable, "-I", "-S", "-c", _LIMITED, *limits, *arguments]
        done = subprocess.run(
            command, stdin=given, capture_output=True, env=env, pass_fds=[report.fileno()], check=True
        )
        report.seek(0)
        code, cpu, peak = json.load(report)
        return Taken(code, cpu, peak, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


SMALL, LARGE, LARGEST = 64 * 1024, 256 * 1024, 1024 * 1024
# One import for all shapes; a process for each, since what a process takes at most never falls.
READS = """
import json, os, resource, sys, time
from soong.orchestrator.client.catalog import Catalogue
from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.plan.reader import parse_plan
known = Catalogue.of(load_settings(agent_home=sys.argv[1])).known()

def taken(text):
    before = time.process_time()
    try:
        parse_plan(text, "plan", known)
    except InvalidPlanError as error:
        assert len(error.problems) <= 50 and len(str(error)) < 60_000
    return time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

for shape, texts in json.load(sys.stdin).items():
    pid = os.fork()
    if not pid:
        print(json.dumps([shape, *map(taken, ("title: t\\nsteps: [{id: a, instructions: x}]", *texts))]), flush=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.exit(f"{shape}: the reader ended with code {code}")
"""


@pytest.mark.spec("OPS-12")
def test_reading_a_plan_four_times_as_large_takes_about_four_times_as_much(tmp_path: Path) -> None:
    plans = {shape: [make(SMALL), make(LARGE)] for shape, make in SHAPES.items()}

    done = run_bounded(["-c", READS, str(tmp_path)], stdin=json.dumps(plans))

    assert done.code == 0, done.err
    read = {shape: taken for shape, *taken in map(json.loads, done.out.splitlines())}
    assert read.keys() == SHAPES.keys()
    # A quadratic reader takes sixteen times as much.
    slow = {shape: taken for shape, taken in read.items() if (taken[2][0] >= 8 * taken[1][0] + 1)}
    large = {
        shape: taken
        for shape, taken in read.items()
        if taken[2][1] - taken[0][1] >= 8 * (taken[1][1] - taken[0][1]) + 20
    }
    assert (slow, large) == ({}, {})


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("shape", ["unknown functions", "empty objects", "inputs and wrong names of them"])
def test_soong_tasks_validate_ends_with_a_short_answer_whatever_it_is_given(shape: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(SHAPES[shape](LARGEST))
    home = {**os.environ, "SOONG_AGENT_HOME": str(tmp_path / "home")}

    taken = run_bounded(["-m", "soong.orchestrator.cli", "tasks", "validate", str(plan), "--json"], cpu_s=90, env=home)

    assert taken.code == 2, taken.err
    assert taken.peak_mib < 200
    problems = json.loads(taken.out)["error"]["problems"]
    assert 1 <= len(problems) <= MAX_PROBLEMS
    assert len(taken.err) < 64 * 1024
    if len(problems) == MAX_PROBLEMS:
        assert "more problems" in taken.err


@pytest.mark.spec("OPS-12")
def test_a_device_without_an_end_is_not_read_to_its_end() -> None:
    taken = run_bounded(["-m", "soong.orchestrator.cli", "tasks", "validate", "/dev/zero"])

    assert taken.code == 2
    assert "the document has more than 4,194,304 characters" in taken.err


@pytest.mark.spec("OPS-12")
def test_the_first_fifty_problems_are_reported_and_the_number_of_the_others() -> None:
    steps = [{"id": f"s{n}", "kind": "python", "call": "builtin.echo", "depends_on": [f"t{n}"]} for n in range(1_600)]

    with pytest.raises(InvalidPlanError) as raised:
        plan_from_json({"title": "t", "steps": steps})

    error = raised.value
    assert (len(error.problems), error.total) == (MAX_PROBLEMS, 1_600)
    assert str(error).splitlines()[-1] == "and 1,550 more problems"
    assert error.problems[0].hint.startswith("known: s1, s10,")
    assert error.problems[-1].hint.endswith(f"… {MAX_NAMED} of 1,600")


@pytest.mark.spec("OPS-12")
def test_words_are_compared_for_the_first_problems_only_and_with_a_bounded_number() -> None:
    looked: list[str] = []

    class Counted(frozenset[str]):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            looked.append("")
            return super().__iter__()

    known = Counted(f"step{number:06}" for number in range(50_000))
    problems = Problems()
    for number in range(1_000):
        problems.add(f"p{number}", "x", Unknown(f"stepp{number:05}", known))

    assert problems.count == 1_000
    assert len(looked) <= 2 * MAX_SUGGESTIONS + (MAX_PROBLEMS - MAX_SUGGESTIONS)
    suggested = [one.hint for one in problems.kept if one.hint.startswith("did you mean")]
    assert len(suggested) <= MAX_SUGGESTIONS
    assert len(known) > MAX_CANDIDATES


# -- what is made of references
def task_with(step: Mapping[str, Json], inputs: Mapping[str, Json]) -> NewTask:
    names = {name: {"type": _type(value)} for name, value in inputs.items()}
    plan = plan_from_json({"title": "t", "inputs": names, "steps": [{"id": "m", **step}]})
    return new_task(
        plan, inputs, make_session(), surface_of=lambda _step: {}, default_model="x:y", now_us=1, task_id="task_1"
    )


def _type(value: Json) -> str:
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


BIG = "x" * MIB
CHILD: Mapping[str, Json] = {"kind": "python", "call": "builtin.echo"}


@pytest.mark.spec("OPS-12")
def test_a_title_and_a_key_are_made_no_longer_than_they_are_kept() -> None:
    inputs: dict[str, Json] = {"big": BIG, "deep": {"a": [BIG] * 20}, "items": [1, 2]}
    title = "${inputs.big}" * 500 + "${inputs.deep}" * 400
    over: Mapping[str, Json] = {"kind": "map", "over": "${inputs.items}", "title": title}
    made = task_with({**over, "key": "${item}" + title, "step": {**CHILD, "title": title}}, inputs)

    # Whole, each is 900 MiB; nothing of the budget for texts is needed for what is kept of them.
    children = expand_map(row_of(made.steps[0]), task_of(made), {}, make_identity("sess_1"))

    assert made.steps[0].title == "x" * MAX_TITLE_CHARS
    assert [child.title for child in children] == ["x" * MAX_TITLE_CHARS] * 2
    assert [len(child.step_id) for child in children] == [MAX_KEY_CHARS + len("m[]")] * 2


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize(
    "child",
    [
        pytest.param({**CHILD, "inputs": {"a": "${inputs.big}"}}, id="by-reference"),
        pytest.param({**CHILD, "inputs": {"a": "x${inputs.big}"}}, id="in-a-text"),
        pytest.param({**CHILD, "inputs": {"a": "${inputs.big | json}"}}, id="as-json"),
        pytest.param({"instructions": "do ${inputs.big}"}, id="instructions"),
        pytest.param({"instructions": "x", "permissions": {"write": ["/${inputs.big}"]}}, id="asks"),
    ],
)
def test_a_map_whose_children_are_a_gigabyte_of_rows_is_refused_within_its_budget(child: dict[str, Json]) -> None:
    made = task_with(
        {"kind": "map", "over": "${inputs.items}", "step": child}, {"big": BIG, "items": list(range(1_000))}
    )

    with pytest.raises(BudgetExceededError, match="the children of the map step would take more than 128 MiB"):
        expand_map(row_of(made.steps[0]), task_of(made), {}, make_identity("sess_1"))


@pytest.mark.spec("OPS-12")
def test_a_map_of_a_thousand_items_with_small_inputs_is_far_from_its_budget() -> None:
    made = task_with(
        {
            "kind": "map",
            "over": "${inputs.items}",
            "step": {**CHILD, "inputs": {"a": "${item} ${inputs.big | length}"}},
        },
        {"big": BIG, "items": list(range(1_000))},
    )

    children = expand_map(row_of(made.steps[0]), task_of(made), {}, make_identity("sess_1"))

    assert sum(len(dump(child.spec.as_json())) for child in children) < MAX_EXPANSION_BYTES // 100


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("${big}" * 5, id="many-references"),
        pytest.param("${quotes | json | json | json | json}", id="escapes-of-escapes"),
        pytest.param('${list | join("' + "x" * 10_000 + '")}', id="a-long-separator"),
        pytest.param("a ${deep}", id="a-large-object"),
    ],
)
def test_a_text_that_would_be_too_long_is_refused_before_it_is_made(text: str) -> None:
    scope: dict[str, Json] = {"big": BIG, "quotes": '"' * 600_000, "list": list(range(1_000)), "deep": {"a": [BIG] * 5}}

    with pytest.raises(BudgetExceededError, match="a text of more than 4 MiB"):
        render_text(text, scope, ExpansionBudget("the test"))


@pytest.mark.spec("OPS-12")
def test_a_text_up_to_the_bound_is_made() -> None:
    made = render_text("${big}" * 4, {"big": "x" * (MAX_TEXT_BYTES // 4)}, ExpansionBudget("the test"))

    assert len(str(made)) == MAX_TEXT_BYTES


@pytest.mark.spec("OPS-12")
def test_a_step_that_names_a_value_a_thousand_times_is_not_given_a_gigabyte() -> None:
    inputs: dict[str, Json] = {f"a{number}": "${inputs.big}" for number in range(1_000)}

    with pytest.raises(BudgetExceededError, match="the inputs of the step would take more than 64 MiB"):
        bind_step(StepSpec(inputs=inputs), {"big": BIG}, {})


@pytest.mark.spec("OPS-12")
def test_a_template_of_very_many_references_is_refused() -> None:
    plan = {"title": "t", "inputs": {"x": {}}, "steps": [{"id": "a", "instructions": "${inputs.x}" * 1_100}]}

    with pytest.raises(InvalidPlanError, match="more than 1000 references"):
        parse_plan(json.dumps(plan), "plan")


WORK: Mapping[str, Mapping[str, Json]] = {
    "references": {"inputs": {f"a{number}": "${inputs.x}" for number in range(190)}},
    "long paths": {"inputs": {f"a{number}": "${inputs.deep" + ".a" * 60 + "}" for number in range(190)}},
    "many references in a text": {"inputs": {"a": "${inputs.x} " * 900}},
    "filters": {"inputs": {f"a{number}": "${inputs.x" + "|json" * 15 + "|length}" for number in range(190)}},
    "joined lists": {"inputs": {f"a{number}": '${inputs.list | join("") | length}' for number in range(190)}},
}


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("work", WORK)
def test_an_expansion_takes_no_more_time_than_an_owner_has_between_two_beats(work: str) -> None:
    deep: Json = 1
    for _ in range(61):
        deep = {"a": deep}
    inputs: dict[str, Json] = {"x": "y", "deep": deep, "list": ["a"] * 1_000, "items": list(range(9_999))}
    made = task_with(
        {"kind": "map", "over": "${inputs.items}", "max_items": 10_000, "step": {**CHILD, **WORK[work]}}, inputs
    )
    before = time.process_time()

    with pytest.raises(BudgetExceededError):
        expand_map(row_of(made.steps[0]), task_of(made), {}, make_identity("sess_1"))

    # Without a bound of work the first of them takes twenty seconds, the second ten minutes.
    assert time.process_time() - before < 15


@pytest.mark.spec("OPS-12")
def test_a_map_of_thousands_of_items_with_long_instructions_is_within_its_budget() -> None:
    child = {"instructions": "do this " * 600 + "${inputs.x} ${item}" * 5}
    inputs: dict[str, Json] = {"x": "y", "items": list(range(5_000))}
    made = task_with({"kind": "map", "over": "${inputs.items}", "max_items": 10_000, "step": child}, inputs)

    assert len(expand_map(row_of(made.steps[0]), task_of(made), {}, make_identity("sess_1"))) == 5_000
