import json
import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soong.shared.engine.tasks.plan.checks import find_cycle, mermaid
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import StepStatus

NODES = st.integers(0, 7).map(str)
LABEL = r'"(?:[^"\[\](){}<>;`%$&|\\\n\r\u2028\u2029ﬂ°¶ß]|#[0-9]+;|</?i>|<br/>)*"'
SIGNS = st.sampled_from("x\n\r\t \u2028\u2029\x85%{}[]()<>\"'#;:`\\&|$-@ﬂ°¶ß\x1b\u202e")
LINE = re.compile(rf"flowchart TD|    s\d+ --> s\d+|    s\d+(?:\[{LABEL}\]|\(\[{LABEL}\]\)|\[\[{LABEL}\]\])")
"""All that a drawing without statuses is made of."""


@given(st.dictionaries(NODES, st.lists(NODES, max_size=4)))
def test_a_cycle_is_found_exactly_when_nothing_can_be_put_in_order(edges: dict[str, list[str]]) -> None:
    cycle = find_cycle(edges)

    left = {node: {parent for parent in parents if parent in edges} for node, parents in edges.items()}
    while free := [node for node, parents in left.items() if not parents]:
        left = {node: parents - set(free) for node, parents in left.items() if node not in free}
    assert bool(cycle) == bool(left)
    assert all(following in edges[node] for node, following in pairwise(cycle))
    assert cycle[:1] == cycle[-1:]


def test_the_picture_has_every_step_and_edge_and_no_foreign_syntax() -> None:
    plan = parse_plan(
        """\
title: t
steps:
  - {id: a, instructions: x, title: 'A "quoted" [step]'}
  - {id: b, kind: python, call: builtin.echo, depends_on: [a]}
  - {id: c, kind: map, over: "${b.output}", depends_on: [b], step: {instructions: x}}
""",
        "p.yaml",
    )

    assert mermaid(plan) == (
        "flowchart TD\n"
        '    s0["a<br/><i>A #34;quoted#34; #91;step#93;</i>"]\n'
        '    s1(["b"])\n'
        '    s2[["c<br/>one for each of #36;#123;b.output#125;"]]\n'
        "    s0 --> s1\n"
        "    s1 --> s2\n"
    )


def test_the_picture_of_a_task_tells_how_its_steps_stand() -> None:
    plan = parse_plan("{title: t, steps: [{id: a, instructions: x}, {id: b, instructions: x}]}", "p.yaml")

    drawn = mermaid(plan, {"a": StepStatus.COMPLETED, "b": StepStatus.PENDING, "m[x]": StepStatus.FAILED})

    assert "    class s0 done\n" in drawn
    assert "class s1" not in drawn
    assert "classDef done" in drawn


@pytest.mark.spec("DAG-08.c")
@given(
    st.lists(
        st.text(st.sampled_from("x\n\r\t \u2028\u2029\x85%{}[]()<>\"'#;:`\\&|$-@ﬂ°¶ß\x1b\u202e")),
        min_size=1,
        max_size=4,
    )
)
@example(["x\n%% ", 'x"]\n  hidden --> s0'])
def test_no_title_hides_or_adds_a_line_of_the_picture(titles: list[str]) -> None:
    ids = [f"a{number}" for number in range(len(titles))]
    steps = [
        {"id": name, "title": title.replace("${", "$${") or "t", "instructions": "x", "depends_on": ids[:place][-1:]}
        for place, (name, title) in enumerate(zip(ids, titles, strict=True))
    ]

    lines = mermaid(parse_plan(json.dumps({"title": "t", "steps": steps}), "p.json")).removesuffix("\n").split("\n")

    assert all(LINE.fullmatch(line) for line in lines)
    assert len(lines) == 2 * len(titles)
