"""What the API's routes say of themselves."""

import json
import re

from soong.orchestrator.http.app import _routes, description, right_of, routes_of
from soong.orchestrator.http.console_files import ASSETS
from soong.orchestrator.http.edge import OPEN_PATHS
from soong.shared.permissions.access.token import Right


def test_every_route_names_its_right_or_is_open() -> None:
    rights = {route.path: right_of(route) for route in routes_of(_routes())}
    writing = {route.path: right_of(route) for route in routes_of(_routes()) if "POST" in (route.methods or ())}

    assert {path for path, right in rights.items() if right is None} == OPEN_PATHS | {f"{ASSETS}{{name}}"}
    assert {path for path, right in writing.items() if right is Right.READ} == {"/v1/tasks/validate"}
    assert {path for path, right in writing.items() if right is None} == {"/v1/sign-in"}
    assert rights["/v1/approvals/{request_id}/answer"] is Right.APPROVE


def test_every_document_has_a_name_of_its_own_and_every_reference_leads_to_one() -> None:
    document = description()
    schemas = document["components"]["schemas"]

    referred = set(re.findall(r"#/components/schemas/([A-Za-z_]+)", json.dumps(document)))

    assert referred <= schemas.keys()
    assert {"Answer", "AnswerBody", "AnswerableApproval", "Session", "Task", "Run", "Problem"} <= schemas.keys()
    assert not [name for name in schemas if "Shape" in name]


def test_every_operation_says_what_it_does_and_how_it_refuses() -> None:
    operations = [one for path in description()["paths"].values() for one in path.values()]

    assert len({one["operationId"] for one in operations}) == len(operations)
    for one in operations:
        assert one["description"].strip().endswith(".")
        assert "default" in one["responses"]
