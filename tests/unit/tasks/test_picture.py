"""The SVG of a plan: whole, well formed, and nobody's markup but ours."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.engine.tasks.plan.picture import svg
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.spec import StepKind, StepSpec, StepStatus

pytestmark = pytest.mark.spec("DAG-08")

SPACE = "{http://www.w3.org/2000/svg}"


def plan(*steps: StepSpec, title: str = "t") -> Plan:
    return Plan(title, (), steps, {})


def boxes(picture: str) -> dict[str, tuple[float, float, float]]:
    """Return left, top and width of each step's box, by the first line of its text."""
    found = {}
    for group in ET.fromstring(picture).iter(f"{SPACE}g"):
        frame, text = group.find(f"{SPACE}rect"), group.find(f"{SPACE}text")
        assert frame is not None
        assert text is not None
        found[str(text.text)] = (float(frame.get("x", "")), float(frame.get("y", "")), float(frame.get("width", "")))
    return found


def test_every_step_is_drawn_below_what_it_waits_for_and_next_to_no_other() -> None:
    steps = [
        StepSpec("a"),
        *(StepSpec(f"b{n}", depends_on=("a",)) for n in range(5)),
        StepSpec("c", depends_on=("b1", "a")),
    ]

    found = boxes(svg(plan(*steps)))

    assert found.keys() == {step.id for step in steps}
    assert found["a"][1] < found["b0"][1] < found["c"][1]
    row = sorted(found[f"b{n}"] for n in range(5))
    assert all(left[0] + left[2] < right[0] for left, right in pairwise(row))


@pytest.mark.spec("DAG-08.c")
def test_every_dependency_is_an_edge_with_status_and_title_reported() -> None:
    picture = svg(plan(StepSpec("a"), StepSpec("b", depends_on=("a",)), StepSpec("c", depends_on=("a", "b"))))

    assert len(list(ET.fromstring(picture).iter(f"{SPACE}path"))) == 3

    picture = svg(plan(StepSpec("a", title="Look")), {"a": StepStatus.FAILED})

    assert "Look (failed)" in picture
    assert re.search(r'fill="#f9d6d5"', picture)


def strokes(picture: str) -> list[list[tuple[float, float]]]:
    """Return the points of each edge: four of its curve, three of its head."""
    paths = [path.get("d", "") for path in ET.fromstring(picture).iter(f"{SPACE}path")]
    numbers = [[float(number) for number in re.findall(r"-?\d+", path)] for path in paths]
    return [list(zip(each[::2], each[1::2], strict=True)) for each in numbers]


@pytest.mark.spec("DAG-08.c")
def test_an_edge_ends_in_a_head_that_points_at_the_step_that_waits() -> None:
    picture = svg(plan(StepSpec("a"), StepSpec("b", depends_on=("a",))))
    left, top, width = boxes(picture)["b"]

    (edge,) = strokes(picture)
    tip, (one, point, other) = edge[3], edge[4:]

    assert tip == point
    assert tip[0] == pytest.approx(left + width / 2, abs=1)
    assert tip[1] == top
    assert one[1] == other[1] < top
    assert tip[0] - one[0] == other[0] - tip[0] > 0


@pytest.mark.spec("DAG-08.c")
@pytest.mark.parametrize(("first", "last"), [("a", "a" * 30), ("a" * 30, "a")], ids=["to a wide one", "from one"])
def test_an_edge_past_a_layer_runs_beside_both_of_its_ends_and_others_run_straight(first: str, last: str) -> None:
    end = StepSpec("2", title=last, depends_on=("1", "0"))
    picture = svg(plan(StepSpec("0", title=first), StepSpec("1", depends_on=("0",)), end))
    ends = [box for name, box in boxes(picture).items() if name != "1"]

    past = [edge for edge in strokes(picture) if edge[3][1] - edge[0][1] > 60]
    straight = [edge for edge in strokes(picture) if edge not in past]

    (bow,) = past
    apex = 0.125 * bow[0][0] + 0.375 * bow[1][0] + 0.375 * bow[2][0] + 0.125 * bow[3][0]
    beyond = apex - max(left + width for left, _, width in ends)
    assert 10 < beyond < 60, "beside the wider end, and not far from it"
    assert all(edge[0][0] == edge[1][0] and edge[2][0] == edge[3][0] for edge in straight)
    assert len(straight) == 2


@pytest.mark.spec("DAG-08.c")
def test_a_steps_first_line_is_its_largest_and_no_line_covers_another() -> None:
    picture = svg(plan(StepSpec("a", title="Look", kind=StepKind.PYTHON, call="builtin.echo")))

    (group,) = ET.fromstring(picture).iter(f"{SPACE}g")
    lines = group.findall(f"{SPACE}text")
    heights = [float(line.get("y", "")) for line in lines]

    assert len(lines) > 1
    assert [line.get("font-size") for line in lines] == [None, *["10"] * (len(lines) - 1)]
    assert all(low - high == 15 for high, low in pairwise(heights))


@given(st.text(max_size=60), st.sampled_from(StepKind), st.text(max_size=20))
def test_text_of_any_kind_stays_text(title: str, kind: StepKind, over: str) -> None:
    picture = svg(plan(StepSpec("a", kind=kind, title=title, over=over), title=title))

    tags = {element.tag.removeprefix(SPACE) for element in ET.fromstring(picture).iter()}
    assert tags <= {"svg", "title", "rect", "g", "text", "path"}


@pytest.mark.parametrize("fan", [100, 1_700, 10_000])
def test_a_wide_plan_has_the_shape_of_a_page(fan: int) -> None:
    steps = [StepSpec("a"), *(StepSpec(f"review-{n}", depends_on=("a",)) for n in range(fan))]
    end = StepSpec("end", depends_on=tuple(step.id for step in steps[1:]))

    picture = svg(plan(*steps, end))

    found, root = boxes(picture), ET.fromstring(picture)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert width <= max(1_700, 1.2 * height)
    assert max(left + wide for left, _, wide in found.values()) <= width
    assert all(found["a"][1] < found[f"review-{n}"][1] < found["end"][1] for n in range(fan))
    assert len({(left, top) for left, top, _ in found.values()}) == fan + 2
    by_row: dict[float, list[tuple[float, float]]] = {}
    for left, top, wide in found.values():
        by_row.setdefault(top, []).append((left, left + wide))
    for row in by_row.values():
        assert all(right < left for (_, right), (left, _) in pairwise(sorted(row)))


def test_a_plan_of_ten_thousand_steps_is_drawn() -> None:
    chain = [StepSpec("s0"), *(StepSpec(f"s{n}", depends_on=(f"s{n - 1}",)) for n in range(1, 2000))]
    wide = [StepSpec(f"w{n}", depends_on=("s0",)) for n in range(8000)]

    assert svg(plan(*chain, *wide)).count("<g>") == 10_000
