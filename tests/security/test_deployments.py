"""What each form of deployment does not hold: docs/security.md says so, and these tests show that it is so."""

from pathlib import Path

import pytest

from tests.unit.toolsets.commands import make_commands

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("name", ["config.toml", "signing.key", "soong.db", "tools/x.json"])
async def test_an_allowed_command_writes_what_its_user_may(tmp_path: Path, name: str) -> None:
    """In embedded mode one user owns everything, so consent is the only thing between a command and the home."""
    commands = make_commands(tmp_path)
    place = commands.outside / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("ours\n")

    result = await commands.python(WRITE, str(place), "not ours\n")

    assert result.error is None
    assert len(commands.bench.gate.asked) == 1
    assert place.read_text() == "ours\nnot ours\n"
