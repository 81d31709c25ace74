"""One class name has one meaning in the product."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("orchestrator", "worker", "shared")


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for path in (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}
