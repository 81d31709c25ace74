import pytest

from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, known_functions, resolve, step_function


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"step function 'no\.such'"):
        resolve("no.such")


def test_a_name_belongs_to_one_function() -> None:
    @step_function("tests.unique")
    def first(inputs: JsonObject, _context: StepContext) -> Json:
        return inputs

    with pytest.raises(InvalidConfigError, match=r"two step functions are called 'tests\.unique'"):

        @step_function("tests.unique")
        def second(inputs: JsonObject, _context: StepContext) -> Json:
            return inputs

    assert known_functions()["tests.unique"].body is first


def test_a_coroutine_function_cannot_be_cheap() -> None:
    with pytest.raises(InvalidConfigError, match="only plain ones can be cheap"):

        @step_function("tests.cheap", cheap=True)
        async def body(inputs: JsonObject, _context: StepContext) -> Json:
            return inputs
