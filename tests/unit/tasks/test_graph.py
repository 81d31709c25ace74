from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shared.tasks.graph import find_cycle, mermaid
from shared.tasks.reading import parse_plan
from shared.tasks.status import StepStatus

NODES = st.integers(0, 7).map(str)


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
        '    s2[["c<br/>one for each of $#123;b.output#125;"]]\n'
        "    s0 --> s1\n"
        "    s1 --> s2\n"
    )


def test_the_picture_of_a_task_tells_how_its_steps_stand() -> None:
    plan = parse_plan("{title: t, steps: [{id: a, instructions: x}, {id: b, instructions: x}]}", "p.yaml")

    drawn = mermaid(plan, {"a": StepStatus.COMPLETED, "b": StepStatus.PENDING, "m[x]": StepStatus.FAILED})

    assert "    class s0 done\n" in drawn
    assert "class s1" not in drawn
    assert "classDef done" in drawn
