"""Words of a command line become arguments by the schema's types, or say what they may be."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from soong.orchestrator.cli.tool_call import read_arguments
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.schema import close

SCHEMA: JsonObject = close(
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer"},
            "ratio": {"type": "number"},
            "deep": {"type": "boolean"},
            "argv": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object"},
            "mode": {"enum": ["fast", "slow", 3]},
            "any": {},
        },
    }
)

READ: dict[str, tuple[str, Json]] = {
    "a string stays a string": ("path=123", "123"),
    "an empty string": ("path=", ""),
    "a string with signs": ("path=a=b,c {x}", "a=b,c {x}"),
    "an integer": ("limit=3", 3),
    "a negative integer": ("limit=-3", -3),
    "a number": ("ratio=0.5", 0.5),
    "a whole number": ("ratio=2", 2),
    "a boolean": ("deep=true", True),
    "a list": ('argv=["a", "b"]', ["a", "b"]),
    "an object": ('where={"a": [1]}', {"a": [1]}),
    "a word of an enum": ("mode=fast", "fast"),
    "a number of an enum": ("mode=3", 3),
    "JSON where any value is taken": ("any=[1]", [1]),
    "text where any value is taken": ("any=hello", "hello"),
}


@pytest.mark.spec("EXE-12")
@pytest.mark.parametrize(("word", "value"), READ.values(), ids=READ.keys())
def test_a_word_is_read_by_the_type_of_its_argument(word: str, value: Json) -> None:
    read = read_arguments("a.tool", SCHEMA, [word], None)

    (found,) = read.values()
    assert found == value
    assert type(found) is type(value)


REFUSED = {
    "no value": (["path"], "'path' is not NAME=VALUE"),
    "no name": (["=x"], "is not NAME=VALUE"),
    "unknown": (["pth=x"], "has unknown fields 'pth'; it takes 'path', 'limit'"),
    "twice": (["path=a", "path=b"], "'path' is given twice"),
    "not whole": (["limit=1.5"], "limit: must be integer"),
    "no number": (["limit=ten"], "limit: must be integer, is string"),
    "a boolean for an integer": (["limit=true"], "limit: must be integer"),
    "a number too large": (["limit=99999999999999999999"], "limit: must be integer"),
    "an integer for a boolean": (["deep=1"], "deep: must be boolean"),
    "a string for a list": (['argv="ls"'], "argv: must be array"),
    "a broken object": (['where={"a":'], "where: must be object"),
    "not a number": (["ratio=NaN"], "ratio: must be number"),
    "not in the enum": (["mode=medium"], "mode: must be one of 'fast', 'slow', 3"),
    "a long value": ([f"limit={'x' * 5000}"], "limit: must be integer"),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_a_word_that_cannot_be_read_says_what_it_may_be(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_arguments("a.tool", SCHEMA, words, None)

    assert told in str(refused.value)
    assert len(str(refused.value)) < 300


def test_an_open_schema_takes_any_name_and_json_joins_words() -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}

    assert read_arguments("a.tool", schema, ["a=1", "b=1"], None) == {"a": "1", "b": 1}

    assert read_arguments("a.tool", SCHEMA, ["limit=2"], '{"path": "x"}') == {"path": "x", "limit": 2}
    with pytest.raises(UsageError, match="'path' is given twice"):
        read_arguments("a.tool", SCHEMA, ["path=y"], '{"path": "x"}')


def test_json_comes_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"path": "from the file"}')
    piped = SimpleNamespace(buffer=io.BytesIO(b'{"path": "from the pipe"}'), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", piped)

    assert read_arguments("a.tool", SCHEMA, [], f"@{file}") == {"path": "from the file"}
    assert read_arguments("a.tool", SCHEMA, [], "-") == {"path": "from the pipe"}


BAD_JSON = {
    "not JSON": ("{", "not the JSON of an object"),
    "a list": ("[1]", "takes a JSON object"),
    "NaN": ('{"a": NaN}', "NaN"),
    "a key twice": ('{"a": 1, "a": 2}', "not the JSON of an object"),
    "10,000 levels": ("[" * 10_000, "not the JSON of an object"),
    "more than is read": ('{"a": "' + "x" * 9_000_000 + '"}', "bytes; at most"),
    "no file": ("@/nonexistent/args.json", "cannot be read: No such file"),
    "a directory": ("@/tmp", "not a file"),
    "a name with NUL": ("@a\0b", "cannot be read"),
}


@pytest.mark.parametrize(("text", "told"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_arguments_that_are_no_object_say_why(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_arguments("a.tool", SCHEMA, [], text)

    assert told in str(refused.value)


def test_a_pipe_in_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    with pytest.raises(UsageError, match="not a file"):
        read_arguments("a.tool", SCHEMA, [], f"@{fifo}")


def test_standard_input_that_is_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    with pytest.raises(UsageError, match="which is a terminal"):
        read_arguments("a.tool", SCHEMA, [], "-")
