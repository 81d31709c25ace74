"""Makes the children of a map step, with their first runs, when what it is over is known.

Pure but for ids and tokens.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from soong.shared.core.errors import TemplateError
from soong.shared.core.identity import RunIdentity, step_key
from soong.shared.core.jsontext import Json, is_seen
from soong.shared.engine.tasks.new_tasks import Lineage, Titles
from soong.shared.engine.tasks.plan.agent_kind import rendered
from soong.shared.engine.tasks.plan.budget import MAX_EXPANSION_BYTES, ExpansionBudget
from soong.shared.engine.tasks.plan.plan import bind, scope_of, with_item
from soong.shared.engine.tasks.plan.template import Scope, head_of, json_head, render, render_head
from soong.shared.engine.tasks.spec import DeclaredPermissions, FailurePolicy, StepSpec
from soong.shared.engine.tasks.step import NewStep, Step, StepResult, Task

MAX_KEY_CHARS = 120
_READ_KEY_CHARS = 1_000
"""Characters from which a key is made: white space at its start does not count."""


def map_items(step: Step, scope: Scope, budget: ExpansionBudget) -> Sequence[Json]:
    """Return the items that a map step is over; ``scope`` is what its references may name.
    Raises: TemplateError, ``over`` names nothing, is not a list, or has more items than ``max_items``.
    """
    over = step.spec.over
    items = render(over, scope, budget)
    name = over[2:-1] if isinstance(over, str) else ""
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise TemplateError(name, "the map step is over something that is not a list")
    limit = step.spec.max_items
    if len(items) > limit:
        raise TemplateError(name, f"the map step is over {len(items)} items, and max_items is {limit}")
    return items


def expand_map(step: Step, task: Task, dependencies: Mapping[str, StepResult], root: RunIdentity) -> list[NewStep]:
    """Return the children of an expanding map step, in item order, each with its first run under the ``root`` run.

    The children's templates are looked up here, where the map step's dependencies are known.
    Raises: TemplateError, as :func:`map_items`, or a child's template names nothing, or two items have the same key;
    BudgetExceededError, the children would be too large to be stored.
    """
    lineage = Lineage(step.session_id, step.task_id, root.run_id, root.agent_id, origin=root.origin)
    scope, budget = (
        scope_of(task.inputs, dependencies),
        ExpansionBudget("the children of the map step", MAX_EXPANSION_BYTES),
    )
    child = step.spec.step
    assert child is not None, "a map step's spec has the step of its items"
    template = replace(child, title="", instructions="", inputs={}, permissions=DeclaredPermissions())
    size = budget.size_of(template.as_json())
    made = []
    scopes = [with_item(scope, step.spec.item_name, item) for item in map_items(step, scope, budget)]
    for index, (known, key) in enumerate(zip(scopes, _keys(step, scopes, budget), strict=True)):
        budget.spend(size)  # the template is stored with each child as it is written
        spec = replace(_bound(child, template, known, budget), id=f"{step.step_id}[{key}]")
        title = Titles(known, budget).of(child.title or f"{step.title}: {key}")
        made.append(_child(step, spec, title, index, lineage))
    return made


def _bound(child: StepSpec, template: StepSpec, scope: Scope, budget: ExpansionBudget) -> StepSpec:
    """Return the spec of one item: its templates are looked up now, and never again."""
    bound = bind(child, scope, budget)
    permissions = rendered(child.permissions, scope, budget)
    budget.spend(budget.size_of(permissions.as_json()))
    return replace(template, permissions=permissions, bound=bound)


def _child(step: Step, spec: StepSpec, title: str, index: int, lineage: Lineage) -> NewStep:
    key = step_key(step.task_id, spec.id)
    return NewStep(
        key=key,
        task_id=step.task_id,
        session_id=step.session_id,
        spec=spec,
        title=title,
        priority=spec.priority or step.priority,
        pool=step.pool,
        needs=step.needs,
        definition=step.definition,
        model=step.model,
        max_attempts=1 + spec.retries,
        on_failure=step.spec.on_item_failure or FailurePolicy.SKIP_DEPENDENTS,
        map_key=step.key,
        item_index=index,
        run=lineage.run(key, title, step.definition, step.model, step.spec.child_surface),
    )


def _keys(step: Step, scopes: Sequence[Scope], budget: ExpansionBudget) -> list[str]:
    """Return the key of each item: the rendered ``key``, else the item when it is a short text or number.

    Without ``key``, an item that is neither is named by its position; so are all if a key is empty or two are the same.
    """
    template, items = step.spec.item_key, [scope[step.spec.item_name] for scope in scopes]
    if not template:
        keys = [_clean(head_of(item, _READ_KEY_CHARS)) if _is_name(item) else str(at) for at, item in enumerate(items)]
        return keys if all(keys) and len(set(keys)) == len(keys) else [str(at) for at in range(len(keys))]
    keys = [_clean(render_head(template, scope, budget, _READ_KEY_CHARS)) for scope in scopes]
    seen: dict[str, int] = {}
    for index, key in enumerate(keys):
        if not key:
            problem = f"makes an empty key of item {index} ({json_head(items[index], 60)})"
        elif seen.setdefault(key, index) != index:
            problem = f"makes the key {key!r} of both item {seen[key]} and item {index}"
        else:
            continue
        remedy = "make it unique, or remove it: positions are used then"
        raise TemplateError("", f"`key: {template[:200]}` of the map step {step.step_id!r} {problem}; {remedy}")
    return keys


def _is_name(item: Json) -> bool:
    return isinstance(item, str | int) and not isinstance(item, bool)


def _clean(key: str) -> str:
    return "".join(char if is_seen(char) and char not in "[]" else "_" for char in key).strip()[:MAX_KEY_CHARS]
