"""A pytest plugin that prints which ids of docs/spec.md each collected test carries, as one line of JSON."""

import json

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    found = [
        (item.nodeid, [str(named) for marker in item.iter_markers("spec") for named in marker.args])
        for item in session.items
    ]
    print(f"\nMARKS {json.dumps(found)}")
