"""What the API's routes say of themselves."""

from orchestrator.http.app import _routes, right_of, routes_of
from orchestrator.http.gate import OPEN_PATHS
from shared.access.token import Right


def test_every_route_names_its_right_or_is_open() -> None:
    rights = {route.path: right_of(route) for route in routes_of(_routes())}
    writing = {route.path: right_of(route) for route in routes_of(_routes()) if "POST" in (route.methods or ())}

    assert {path for path, right in rights.items() if right is None} == OPEN_PATHS
    assert {path for path, right in writing.items() if right is Right.READ} == {"/v1/tasks/validate"}
    assert rights["/v1/approvals/{request_id}/answer"] is Right.APPROVE
