"""The user's own files that a process has imported are controls, each found when it is there, and looked at once."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from soong.shared.core.config import Config
from soong.shared.toolsets.controls import controls_of

NAMES = ("soong_test_first", "soong_test_second", "soong_test_led_to")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


def imported(folder: Path, name: str, text: str = "") -> Path:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    importlib.import_module(name)
    return folder / f"{name}.py"


@pytest.mark.spec("FS-09")
def test_a_module_is_found_whenever_it_is_imported_and_whatever_led_to_it(folder: Path) -> None:
    (folder / "soong_test_led_to.py").write_text("")

    first = imported(folder, "soong_test_first", "import soong_test_led_to")
    assert {first, folder / "soong_test_led_to.py"} <= set(controls_of(Config(), ()))
    second = imported(folder, "soong_test_second")

    assert {first, second} <= set(controls_of(Config(), ()))


@pytest.mark.spec("FS-09")
def test_a_module_stays_found_when_it_is_taken_out_again(folder: Path) -> None:
    first = imported(folder, "soong_test_first")
    controls_of(Config(), ())
    del sys.modules["soong_test_first"]

    second = imported(folder, "soong_test_second")

    assert {first, second} <= set(controls_of(Config(), ()))


@pytest.mark.spec("FS-09")
def test_a_module_that_changes_its_place_is_looked_at_again(folder: Path) -> None:
    controls_of(Config(), ())
    stranger = ModuleType("soong_test_first")
    sys.modules["soong_test_first"] = stranger
    controls_of(Config(), ())
    del sys.modules["soong_test_first"]

    first = imported(folder, "soong_test_first")

    assert first in controls_of(Config(), ())
