"""``config.toml``: who may have written it, and how what is wrong with it is said."""

import os
from pathlib import Path

import pytest

from soong.shared.core.config import MAX_CONFIG_BYTES, Config, load_config, parse_config
from soong.shared.core.errors import InvalidConfigError

GOOD = "[tools]\ndangerous = true\n"


def written(home: Path, text: str = GOOD, mode: int = 0o600) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_without_a_file_the_defaults_hold_and_with_one_its_values(tmp_path: Path) -> None:
    assert load_config(tmp_path) == Config()

    written(tmp_path)

    assert load_config(tmp_path).tools.dangerous is True


@pytest.mark.spec("EXE-13", "PER-10")
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_names_no_programs_and_rules(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, mode=mode)

    with pytest.raises(InvalidConfigError, match=f"can be written by other users; say chmod go-w {path}"):
        load_config(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(written(tmp_path), 65534, 65534)

    with pytest.raises(InvalidConfigError, match="belongs to another user"):
        load_config(tmp_path)


def test_a_fifo_a_folder_and_a_flood_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidConfigError, match="not a regular file"):
        load_config(tmp_path)

    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidConfigError, match="not a regular file"):
        load_config(tmp_path)

    path.rmdir()
    written(tmp_path, "#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(InvalidConfigError, match="that is not a configuration"):
        load_config(tmp_path)


def test_a_file_of_mode_0644_behind_a_link_is_read(tmp_path: Path) -> None:
    elsewhere = tmp_path / "mounted"
    elsewhere.mkdir()
    (tmp_path / "config.toml").symlink_to(written(elsewhere, mode=0o644))

    assert load_config(tmp_path).tools.dangerous is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tools]\ndangerus = true", "tools.dangerus: there is no such field; known here: dangerous, shell, hidden"),
        ("tolls = 1", "tolls: there is no such field; known here: permission, tools, paths"),
        ('[[permission.rules]]\neffect = "ask"\ntool = "a.b"', "rules[0].tool: there is no such field; known here:"),
        ('[[hooks.pre]]\nname = "a"\ncommand = "ls -l"', "hooks.pre[0].command: takes a list, such as ['a', 'b']"),
        ("tools = 3", "tools: takes a table of fields"),
        ('[tools]\ndangerous = "yes"', "tools.dangerous: takes true or false"),
        ('[[hooks.pre]]\nname = "a"', "hooks.pre[0].command: is missing"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_it_takes(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse_config(text)

    assert said in str(raised.value)
