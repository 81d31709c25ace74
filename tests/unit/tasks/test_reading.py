import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.errors import InvalidPlanError
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames
from soong.shared.engine.tasks.plan.reader import load_plan, parse_plan, plan_from_json
from soong.shared.engine.tasks.plan.yaml_document import MAX_DEPTH, read_document
from soong.shared.engine.tasks.problems import MAX_CHARS

KNOWN = PlanNames(
    tools=frozenset({"code.read_file", "code.search"}), definitions=frozenset({"default_worker_agent", "reviewer"})
)


def parse(steps: str, head: str = "title: t") -> Plan:
    return parse_plan(f"{head}\nsteps:\n{steps}", "p.yaml", KNOWN)


@pytest.mark.spec("DIS-07", "DAG-08")
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("{max_turns: 0}", "limits.max_turns: 0 cannot be used; write an integer above 0"),
        ("{cost_usd: -1}", "limits.cost_usd: -1 cannot be used; write a number of US dollars above 0"),
        ("{wall_s: 0}", "limits.wall_s: 0 cannot be used; write a number of seconds above 0, at most 2592000"),
        ("{turns: 3}", "limits.turns: unknown field 'turns'; did you mean 'max_turns'?"),
        ("3", "limits: 3 cannot be used; write a mapping"),
    ],
)
def test_limits_that_are_none_are_refused_with_a_fix(limits: str, words: str) -> None:
    with pytest.raises(InvalidPlanError) as refused:
        parse("- {id: a, instructions: look}", f"title: t\nlimits: {limits}")

    assert f"p.yaml:2 {words}" in str(refused.value)


BAD_STEPS = """
app-without-attribute
  - {id: a, kind: celery, call: shop.add, app: shop.celery}
  p.yaml:3 steps[0].app | 'shop.celery' cannot be used | such as `shop.celery:app`
unknown-reference-in-args
  - {id: a, kind: celery, call: shop.add, args: ["${b.output}"]}
  - {id: b, instructions: x}
  p.yaml:3 steps[0].args[0] | 'b' is not a dependency of this step | add 'b' to `depends_on`
queue-of-a-function
  - {id: a, kind: python, call: builtin.echo, queue: reports}
  p.yaml:3 steps[0].queue | does not belong here | kind: celery
args-of-a-function
  - {id: a, kind: python, call: builtin.echo, args: [1]}
  p.yaml:3 steps[0].args | does not belong here | write `inputs:`
duplicate-id
  - {id: a, instructions: x}
  - {id: a, instructions: y}
  p.yaml:4 steps[1].id | the id 'a' is taken by steps[0] | its own id
unknown-dependency
  - {id: a, instructions: x}
  - {id: b, instructions: y, depends_on: [aa]}
  p.yaml:4 steps[1].depends_on[0] | there is no step 'aa' | did you mean 'a'?
cycle
  - {id: a, instructions: x, depends_on: [c]}
  - {id: b, instructions: x, depends_on: [a]}
  - {id: c, instructions: x, depends_on: [b]}
  p.yaml:3 steps[0].depends_on | depend on each other: a -> c -> b -> a | remove one
unknown-tool
  - {id: a, instructions: x, allowed_tools: [code.raed_file]}
  p.yaml:3 steps[0].allowed_tools[0] | there is no tool 'code.raed_file' | did you mean 'code.read_file'?
unknown-definition
  - {id: a, instructions: x, agent: reviwer}
  p.yaml:3 steps[0].agent | there is no agent definition 'reviwer' | did you mean 'reviewer'?
bad-schema
  - {id: a, instructions: x, output: {type: object, properties: {y: {type: strnig}}}}
  p.yaml:3 steps[0].output | $.properties.y.type | supported
output-not-an-object
  - {id: a, instructions: x, output: {type: array}}
  p.yaml:3 steps[0].output | is not an object | type: object
unknown-field
  - {id: a, instructons: x}
  p.yaml:3 steps[0].instructons | unknown field 'instructons' | did you mean 'instructions'?
a-word-of-other-systems
  - {id: a, instructions: x, function: builtin.echo}
  p.yaml:3 steps[0].function | does not belong here | `kind: python` calls a step function, by `call:`
nothing-to-do
  - {id: a}
  p.yaml:3 steps[0] | does not say what to do | instructions
no-id
  - {instructions: x}
  p.yaml:3 steps[0] | 'id' is missing | add `id:`
bad-id
  - {id: a b, instructions: x}
  p.yaml:3 steps[0].id | 'a b' cannot be used | letters
reserved
  - {id: inputs, instructions: x}
  p.yaml:3 steps[0].id | 'inputs' | another
step-is-text
  - just text
  p.yaml:3 steps[0] | a step is a text | write a mapping
unknown-kind
  - {id: a, kind: agnet, instructions: x}
  p.yaml:3 steps[0].kind | 'agnet' is not one of agent, python, celery, map | did you mean 'agent'?
depends-on-text
  - {id: a, instructions: x, depends_on: b}
  p.yaml:3 steps[0].depends_on | 'b' cannot be used | a list of texts
field-of-another-kind
  - {id: a, instructions: x, call: builtin.echo}
  p.yaml:3 steps[0].call | does not belong here | kind: python
isolation-of-no-kind
  - {id: a, kind: python, call: builtin.echo, isolation: container}
  p.yaml:3 steps[0].isolation | 'container' is not one of thread, process | write one of them
reference-without-edge
  - {id: a, instructions: 'use ${b.output}'}
  - {id: b, instructions: x}
  p.yaml:3 steps[0].instructions | 'b' is not a dependency | add 'b' to `depends_on`
unknown-input
  - {id: a, instructions: x, inputs: {y: ['${inputs.nope}']}}
  p.yaml:3 steps[0].inputs.y[0] | the plan has no input 'nope' | none is known
unknown-result-field
  - {id: a, instructions: x}
  - {id: b, instructions: '${a.result}', depends_on: [a]}
  p.yaml:4 steps[1].instructions | has no 'result' | a.output.result
malformed
  - {id: a, instructions: 'x ${'}
  p.yaml:3 steps[0].instructions | malformed | `}`
map-in-map
  - {id: m, kind: map, over: [1], step: {kind: map, over: [2], step: {instructions: x}}}
  p.yaml:3 steps[0].step | a map step is inside a map step | step after it
over-text
  - {id: m, kind: map, over: all of them, step: {instructions: x}}
  p.yaml:3 steps[0].over | is not a list | reference
child-with-id
  - {id: m, kind: map, over: [1], step: {instructions: x, id: y}}
  p.yaml:3 steps[0].step.id | does not belong here | named after
script-list
  - {id: a, script: [{call: code.search}]}
  p.yaml:3 steps[0].script | a list | text
script-name
  - {id: a, script: builtin.ehco}
  p.yaml:3 steps[0].script | there is no scripted agent 'builtin.ehco' | did you mean 'builtin.echo'?
"""
"""Per case: its id, the steps as a person writes them, then place, problem and hint of the answer."""


def bad_steps() -> dict[str, tuple[str, ...]]:
    """Read :data:`BAD_STEPS`: by its id, the four texts of a case."""
    cases = [[line.strip() for line in case.splitlines()] for case in re.split(r"\n(?=\S)", BAD_STEPS.strip())]
    return {name: ("\n".join(steps), *answer.split(" | ")) for name, *steps, answer in cases}


@pytest.mark.spec("DAG-02.b")
@pytest.mark.parametrize(("steps", "place", "problem", "hint"), bad_steps().values(), ids=bad_steps())
def test_a_bad_plan_is_refused_with_place_and_hint(steps: str, place: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        parse(steps)

    (found,) = [one for one in raised.value.problems if one.place == place and problem in one.problem]
    assert hint in found.hint


def test_a_function_of_ones_own_is_checked_only_where_the_workers_functions_are_known() -> None:
    text = "title: t\nsteps: [{id: a, kind: python, call: mine.work}]"

    assert parse_plan(text, "p.yaml").steps[0].call == "mine.work"
    with pytest.raises(
        InvalidPlanError, match=r"there is no step function 'mine\.work'.*`modules` of a plan file or SOONG_FUNCTIONS"
    ):
        parse_plan(text, "p.yaml", PlanNames(functions=frozenset({"builtin.echo"})))


@pytest.mark.spec("CEL-01.a")
def test_the_modules_of_celery_apps_are_those_of_a_plan_only_where_its_user_runs_it() -> None:
    steps = "[{id: a, kind: celery, call: t, app: 'shop.celery:app'}, {id: b, kind: celery, call: t}]"
    text, loaded = f"title: t\nmodules: [steps]\nsteps: {steps}", list[str]()
    names = PlanNames(load_module=loaded.append)

    assert parse_plan(text, "p.yaml", names).modules == ("steps",)
    loaded.clear()
    assert parse_plan(text, "p.yaml", replace(names, imports_apps=True)).modules == ("steps", "shop.celery")
    assert loaded == ["steps", "shop.celery"]


@pytest.mark.spec("DAG-02.b")
def test_two_cycles_of_ten_thousand_steps_are_found_without_recursion() -> None:
    count = 10_000
    steps = [
        {"id": f"s{n}", "kind": "python", "call": "builtin.echo", "depends_on": [f"s{(n + 1) % count}"]}
        for n in range(count)
    ]

    with pytest.raises(InvalidPlanError, match="depend on each other"):
        plan_from_json({"title": "t", "steps": steps})


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        pytest.param("missing.yaml", None, "there is no such file", id="missing"),
        pytest.param("latin.yaml", "title: caf\xe9".encode("latin-1"), "not UTF-8", id="not-utf8"),
        pytest.param("text.yaml", b"just text", "the document is a text", id="not-a-mapping"),
        pytest.param("list.json", b"[1]", "the document is a list", id="a-list"),
    ],
)
def test_a_file_that_holds_no_plan_is_named(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidPlanError) as raised:
        load_plan(path)

    assert str(path) in raised.value.problems[0].place
    assert problem in raised.value.problems[0].problem


def test_a_folder_is_not_a_plan(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlanError, match="directory"):
        load_plan(tmp_path)


@pytest.mark.spec("DAG-08.a")
def test_a_plan_in_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('\ufeff{"title": "t", "steps": [{"id": "a", "instructions": "x"}]}', encoding="utf-8")

    assert load_plan(path).steps[0].id == "a"


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        pytest.param("title: t\ninputs: {a: {type: text}}", "'text' is not one of string, integer", id="type"),
        pytest.param(
            "title: t\ninputs: {a: {type: integer, default: x}}", "a text is not of type integer", id="default"
        ),
        pytest.param("title: t\ninputs: {a-b: 1}", "'a-b' cannot be used", id="name"),
        pytest.param("title: t\ninputs: {a: {defualt: 1}}", "unknown field 'defualt'", id="field"),
        pytest.param("titel: t", "unknown field 'titel'", id="title"),
    ],
)
def test_a_bad_head_is_refused(head: str, problem: str) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        parse("- {id: a, instructions: x}", head)

    assert any(problem in found.problem for found in raised.value.problems)


# -- claim modes
@pytest.mark.parametrize(
    ("step", "said"),
    [
        pytest.param("{id: a, instructions: x, claim: grab}", "'grab' is not one of assigned, pull", id="unknown-mode"),
        pytest.param("{id: a, kind: python, call: builtin.echo, claim: pull}", "does not belong here", id="python"),
        pytest.param(
            "{id: a, kind: map, over: [1], claim: pull, step: {instructions: x}}", "does not belong here", id="map"
        ),
        pytest.param("{id: a, instructions: x, claim: pull, agent: reviewer}", "has no agent of its own", id="agent"),
        pytest.param("{id: a, instructions: x, claim: pull, model: m}", "has no model of its own", id="model"),
        pytest.param("{id: a, instructions: x, claim: pull, allowed_tools: []}", "no allowed_tools", id="tools"),
        pytest.param("{id: a, instructions: x, claim: pull, timeout_s: 5}", "has no timeout_s", id="timeout"),
        pytest.param(
            "{id: a, instructions: x, claim: pull, permissions: {write: [x]}}", "has no permissions", id="asks"
        ),
        pytest.param(
            "{id: a, instructions: x, claim: pull, script: builtin.echo}", "has no script of its own", id="script"
        ),
        pytest.param("{id: a, claim: pull}", "does not say what to do", id="no-instructions"),
    ],
)
def test_what_a_pulled_step_cannot_say_is_refused(step: str, said: str) -> None:
    with pytest.raises(InvalidPlanError, match=said):
        parse(f"- {step}\n")


def test_an_unquoted_reference_in_a_flow_mapping_is_answered_with_the_hint() -> None:
    text = "title: T\nsteps:\n- {id: a, kind: python, call: builtin.echo, inputs: {x: ${inputs.a}}}\n"

    with pytest.raises(InvalidPlanError, match=r'plan:3:\d+: .*quote the reference: "\$\{…\}"'):
        parse_plan(text, "plan")


def test_the_text_of_a_plan_in_place_of_a_path_is_recognised() -> None:
    with pytest.raises(InvalidPlanError, match="it is the text of a plan, and a path is expected"):
        load_plan("title: x\nsteps: []")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["C"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(min_codepoint=97, max_codepoint=122)), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(JSON)
def test_json_is_read_as_what_it_says(value: object) -> None:
    assert read_document(json.dumps({"plan": value}), "plan.json").value == {"plan": value}


def test_words_that_older_yaml_turns_into_something_else_stay_text() -> None:
    text = "a: no\nb: 2026-01-01\nc: on\nd: 1.2.3\ne: 10.0.0.1\nf: Infinite\ng: 8080:http\nh: 0xylophone\nj: .git"

    value = read_document(text, "plan.yaml").value

    assert value == {
        "a": "no",
        "b": "2026-01-01",
        "c": "on",
        "d": "1.2.3",
        "e": "10.0.0.1",
        "f": "Infinite",
        "g": "8080:http",
        "h": "0xylophone",
        "j": ".git",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("9007199254740992", 2**53, id="the-largest-integer"),
        pytest.param("-9007199254740992", -(2**53), id="the-smallest-integer"),
        pytest.param("+5", 5, id="signed"),
        pytest.param("0", 0, id="zero"),
        pytest.param("1e3", 1000.0, id="exponent"),
        pytest.param(".5", 0.5, id="no-digit-before-the-point"),
        pytest.param("00.5", 0.5, id="a-fraction-after-two-zeros"),
        pytest.param("'0x10'", "0x10", id="quoted"),
    ],
)
def test_a_number_is_read_exactly(text: str, value: object) -> None:
    read = read_document(f"a: {text}", "plan.yaml").value

    assert read == {"a": value}
    assert [type(one) for one in read.values()] == [type(value)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("9007199254740993", "beyond 2^53", id="16-digits"),
        pytest.param("9" * 5000, "beyond 2^53", id="5000-digits"),
        pytest.param("1e999", "too large for any reader", id="beyond-floats"),
        pytest.param(".inf", "JSON has no such number", id="infinity"),
        pytest.param("-.INF", "JSON has no such number", id="minus-infinity"),
        pytest.param(".nan", "JSON has no such number", id="nan"),
        pytest.param("NaN", "JSON has no such number", id="nan-of-javascript"),
        pytest.param("-Infinity", "JSON has no such number", id="infinity-of-javascript"),
        pytest.param("0xff", "another base", id="hexadecimal"),
        pytest.param("0o17", "another base", id="octal"),
        pytest.param("-0b101", "another base", id="binary"),
        pytest.param("017", "begins with 0", id="octal-of-yaml-1.1"),
        pytest.param("1_000", "underscores", id="underscores"),
        pytest.param("1_000.5", "underscores", id="a-fraction-with-underscores"),
        pytest.param("190:20:30", "base 60", id="sexagesimal"),
        pytest.param("12:30.5", "base 60", id="sexagesimal-fraction"),
    ],
)
@pytest.mark.parametrize("form", ["a: {0}", "a: [x, {0}]", '{{"a": {0}}}'], ids=["block", "flow", "json"])
def test_a_number_that_cannot_be_kept_is_refused_and_never_rounded_or_made_text(
    text: str, problem: str, form: str
) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        read_document(form.format(text), "p.yaml")

    (found,) = raised.value.problems
    assert problem in found.problem
    assert text[:40] in found.problem
    assert len(found.problem) < 150
    assert "quote it" in found.hint
    assert found.place.startswith("p.yaml:1:")


def test_quoted_scalars_are_text_and_blocks_keep_their_lines() -> None:
    value = read_document("a: \"1\"\nb: 'true'\nc: |\n  one\n  two\n", "plan.yaml").value

    assert value == {"a": "1", "b": "true", "c": "one\ntwo\n"}


def test_a_part_that_is_not_there_is_placed_at_what_is_around_it() -> None:
    document = read_document("title: x\nsteps:\n  - id: a\n", "p.yaml")

    assert document.place(("steps", 0, "missing")) == "p.yaml:3 steps[0].missing"


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        pytest.param("a: [1", "p.yaml:2:1", "invalid YAML", id="syntax"),
        pytest.param("a: 1\nb:\n\t- c", "p.yaml:3:1", "invalid YAML", id="tab"),
        pytest.param("a: 1\nb: 2\na: 3", "p.yaml:3:1", "duplicate key 'a'", id="duplicate"),
        pytest.param("a: {b: 1, b: 2}", "p.yaml:1:11", "duplicate key 'b'", id="duplicate-inside"),
        pytest.param("a: &x 1\nb: *x", "p.yaml:1:4", "anchors", id="anchor"),
        pytest.param("a: *x", "p.yaml:1:4", "aliases", id="alias"),
        pytest.param("a: !!python/object:os.system x", "p.yaml:1:4", "the tag", id="tag"),
        pytest.param("? [a]\n: b", "p.yaml:1:3", "a mapping key is not text", id="complex-key"),
        pytest.param("a: 1\n---\nb: 2", "p.yaml:2:1", "a second document", id="two-documents"),
        pytest.param("", "p.yaml", "the document is empty", id="empty"),
        pytest.param("# nothing\n", "p.yaml", "the document is empty", id="comment-only"),
        pytest.param("a: \x07", "p.yaml", "invalid YAML", id="control-character"),
        pytest.param("[" * (MAX_DEPTH + 1), f"p.yaml:1:{MAX_DEPTH + 1}", "nested deeper", id="deep"),
        pytest.param("x" * (MAX_CHARS + 1), "p.yaml", "characters", id="huge"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        read_document(text, "p.yaml")

    (found,) = raised.value.problems
    assert found.place == place
    assert problem in found.problem
    assert found.hint


def test_a_document_nested_beyond_any_stack_is_refused_quickly() -> None:
    with pytest.raises(InvalidPlanError, match="nested deeper"):
        read_document("[" * 1_000_000, "p.yaml")
