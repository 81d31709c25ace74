"""The HTTP API: its routes, and where it listens."""

import json
import re

import pytest

from soong.orchestrator.embedded.listening import is_loopback, listen
from soong.orchestrator.http.app import _routes, description, right_of, routes_of
from soong.orchestrator.http.edge import ASSETS, OPEN_PATHS, RequestPolicy
from soong.shared.core.errors import UsageError
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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_it_listens_beyond_this_machine_only_with_a_name(host: str) -> None:
    with pytest.raises(UsageError, match="allow-host"):
        listen(host, 0, ())


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_loopback_is_known_by_its_addresses(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours


@pytest.mark.parametrize("host", ["http://console", "console:8080", "a b", "", "*"])
def test_a_host_is_allowed_by_its_bare_name(host: str) -> None:
    with pytest.raises(UsageError, match="without scheme and port"):
        RequestPolicy.of([host], [])


@pytest.mark.parametrize(
    "origin", ["*", "console.example", "https://console.example/", "null", "ftp://console.example"]
)
def test_an_origin_is_allowed_written_out(origin: str) -> None:
    with pytest.raises(UsageError, match="expected scheme://host"):
        RequestPolicy.of([], [origin])


def test_allowed_hosts_are_known_in_every_spelling() -> None:
    assert {"console.example", "2001:db8::1", "localhost"} <= RequestPolicy.of(
        ["Console.Example", "[2001:db8::1]"], []
    ).hosts
