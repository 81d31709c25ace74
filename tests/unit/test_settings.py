"""Settings are read once, checked, and say what is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import OTHER_NAMES, Settings, load_settings


def test_the_default_is_embedded_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")

    settings = load_settings()

    assert settings.is_embedded
    assert settings.home == Path("/home/ada/.soong")
    assert settings.effective_database_url == "sqlite:////home/ada/.soong/soong.db"


@pytest.mark.spec("PER-13.b", "PER-13.j")
def test_a_question_waits_five_minutes_and_holds_a_slot_for_half_a_minute_by_default() -> None:
    settings = load_settings()

    assert (settings.permission_timeout_s, settings.park_after_s) == (300, 30)


def test_what_the_caller_says_is_above_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_SLOTS", "3")

    assert load_settings().slots == 3
    assert load_settings(slots=5).slots == 5
    assert load_settings(slots=None).slots == 3


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_POOLS", "default, gpu ,")

    assert load_settings().pools == ("default", "gpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [("SOONG_SLOTS", "many"), ("SOONG_LEASE_S", "0"), ("SOONG_WORKERS", "0"), ("SOONG_LOG_LEVEL", "loud")],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidConfigError, match=f"{name}='{value}'"):
        load_settings()


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize(
    ("said", "least", "most"), [("3", 3, 3), (3, 3, 3), ("1-4", 1, 4), (" 2-2 ", 2, 2), (None, 1, 2)], ids=str
)
def test_workers_are_a_number_or_a_range(said: object, least: int, most: int) -> None:
    workers = load_settings(workers=said).workers

    assert (workers.least, workers.most) == (least, most)
    assert load_settings(workers=str(workers)).workers == workers, "as it is given to a child"


@pytest.mark.parametrize("said", ["0", "0-2", "3-2", "65", "1-65", "1,4", "1-", "-2", "1-2-3", "1.5", "", "٣", True])
def test_a_wrong_range_of_workers_is_told_what_is_expected(said: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"expected a number from 1 to 64, or a range of such numbers: 1-4$"):
        load_settings(workers=said)


def test_a_url_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://:pass@host/0\n")
    monkeypatch.setenv("SOONG_REDIS_URL_FILE", str(secret))

    assert load_settings().redis_url == "redis://:pass@host/0"


def test_a_secret_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_REDIS_URL_FILE", "/nowhere/url")

    with pytest.raises(InvalidConfigError, match="/nowhere/url"):
        load_settings()


def test_sockets_lie_in_a_short_folder_however_long_the_home(tmp_path: Path) -> None:
    settings = load_settings(agent_home=tmp_path / ("x" * 120))

    assert len(str(settings.runtime_dir)) < 90


@pytest.mark.spec("EVT-05.a")
def test_passwords_of_urls_and_keys_of_the_environment_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "key-of-the-provider")
    monkeypatch.setenv("SHORT_TOKEN", "abc")

    values = secret_values(load_settings(redis_url="redis://:redis-password@host/0"))

    assert set(values) >= {"redis-password", "key-of-the-provider"}
    assert "abc" not in values


def test_a_misspelt_override_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidConfigError, match=r"no 'slotts' \(perhaps 'slots'\)"):
        load_settings(slotts=3)


@pytest.mark.parametrize("module", ["soong.worker", "soong.orchestrator.cli"])
def test_every_process_refuses_a_setting_that_does_not_exist(tmp_path: Path, module: str) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SOONG_SLOST": "3"}

    argv = [sys.executable, "-P", "-m", module, "status"]
    done = subprocess.run(
        argv[: 5 if module.endswith("cli") else 4], env=env, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode != 0
    assert "there is no 'SOONG_SLOST' (perhaps 'SOONG_SLOTS')" in done.stderr


def test_what_kubernetes_adds_for_a_service_of_this_name_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOONG_SERVICE_HOST", "SOONG_SERVICE_PORT_HTTP", "SOONG_API_PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(name, "10.0.0.7")
    monkeypatch.setenv("SOONG_PORT", "tcp://10.0.0.7:8080")

    assert load_settings().model == "script"


def test_a_port_that_is_no_address_is_a_misspelled_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_HTTPS_PORT", "8080")

    with pytest.raises(InvalidConfigError, match="perhaps 'SOONG_HTTP_PORT'"):
        load_settings()


def test_every_name_in_scripts_and_documents_is_known() -> None:
    root = Path(__file__).parents[2]
    places = (
        root / "docker-compose.yml",
        root / "README.md",
        root / "Makefile",
        *(root / "deploy").rglob("*"),
        *(root / "docs").rglob("*.md"),
    )
    known = {f"SOONG_{name.upper()}" for name in Settings.model_fields}.union(OTHER_NAMES)

    named = {
        name
        for place in places
        if place.is_file()
        for name in re.findall(r"\bSOONG_[A-Z0-9_]*[A-Z0-9]\b", place.read_text(errors="replace"))
    }

    assert not named - known
