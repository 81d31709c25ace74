"""The pytest plugin: the fixture ``soong_service``. It imports the product when a test first uses it."""

import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from soong.shared.engine.tasks.functions import StepContext
    from soong.testing.bootstrap import LocalService


@pytest.fixture
def soong_settings() -> Mapping[str, object]:
    """Settings of the service, without ``SOONG_``. A test module overrides this fixture to change some."""
    return {}


@pytest.fixture
def soong_service(tmp_path: Path, soong_settings: Mapping[str, object]) -> "Iterator[LocalService]":
    """A service in this process, which every ``Soong`` and every plan of the test uses."""
    from soong.testing.bootstrap import local_service

    with local_service(tmp_path, soong_settings) as service:
        yield service


@pytest.fixture
def step_context(tmp_path: Path) -> "Iterator[StepContext]":
    """The context of step functions that the test calls itself. Its folder and project are ``tmp_path``."""
    from soong.shared.core.identity import Role, RunIdentity
    from soong.shared.engine.tasks.functions import StepContext, in_context

    identity = RunIdentity("sess_test", "run_test", "agent_test", Role.WORKER, "python")
    with in_context(context := StepContext(identity, folder=tmp_path, project=tmp_path)):
        yield context


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Fail a test in which a question came that no rule of its answerer covers."""
    try:
        result = yield
    except BaseException as error:
        if questions := _unexpected():
            error.add_note(questions)
        raise
    if questions := _unexpected():
        pytest.fail(questions, pytrace=False)
    return result


def _unexpected() -> str:
    answers = sys.modules.get("soong.testing.answers")
    return answers.take_unexpected() if answers is not None else ""
