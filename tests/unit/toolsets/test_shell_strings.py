import shutil
import time
from pathlib import Path

import pytest

from soong.shared.toolsets.code.named_files import HARMLESS, is_harmless, is_network_client, is_open_ended
from soong.shared.toolsets.code.shell_strings import plain_name, shell_string


@pytest.mark.spec("CMD-01.b")
@pytest.mark.parametrize(
    "line",
    [
        "sh -c x", "bash -lc x", "dash -ec x", "/bin/zsh -c x", "ksh93 -c x", "bash-5.2 -c x", "SH -c x", "fish -c x",
        "fish --command=x", "bash -x -e -c x", "bash -o pipefail -c x", "bash --norc -c x", "bash --rcfile f -ic x",
        "bash +x -c x", "pwsh -Command x", "cmd /c x",
        "busybox sh -c x", "toybox sh -c x", "env sh -c x", "/usr/bin/env A=1 -i sh -c x", "env -S sh\u00a0-c\u00a0x",
        "env -Ssh\u00a0-c\u00a0x", "env --split-string=bash\u00a0-c\u00a0x",
        "nohup sh -c x", "timeout 5 sh -c x", "timeout -k 3 5 nice -n 3 bash -c x", "xargs sh -c x",
        "xargs -0 -n 1 bash -euc x", "find . -exec sh -c x ;", "sudo -u a sh -c x", "su root -c x", "script -c x",
        "flock lock -c x", "watch ls", "parallel echo", "setsid --fork sh -c x", "poetry run bash -c x",
        "bash -xo pipefail -c x", "bash -xO extglob -c x", "sh -eo pipefail -uc x", "nu --commands x", "fish -iC x",
        "env --split sh\u00a0-c\u00a0x", "env -S sh\\_-c\\_x", 'env -S s"h"\u00a0-c\u00a0x',
        'env -S sh\u00a0-"c"\u00a0x',
        "su --session-command=x", "sg staff x", "sudo -s x", "sudo -u a -i x", "sudo --login x", "cmd /s /c x",
        "pwsh -e x", "pwsh -enc x", "powershell -NoProfile -com x", "/lib64/ld-linux-x86-64.so.2 /bin/sh -c x",
        "/lib/ld-2.36.so /bin/sh -c x", "choom -n 5 -- sh -c x", "dumb-init sh -c x", "proxychains4 sh -c x",
        "setarch linux64 sh -c x", "linux64 sh -c x",
        "msgexec -i x.po sh -c x", "gcc -wrapper sh,-c,x a.c", "gcc -wrapper=sh,-c,x a.c", "agetty -l /bin/sh -c x",
        "no-such-starter --with bash -lc x", "no-such-starter --shell=/bin/dash -c x", "git bisect run sh -c x",
    ],
)  # fmt: skip
def test_a_shell_with_a_command_string_is_found(line: str) -> None:
    program, *arguments = (word.replace("\u00a0", " ") for word in line.split(" "))

    assert shell_string([program], arguments)


@pytest.mark.spec("CMD-01")
@pytest.mark.parametrize(
    "line",
    [
        "ls -c", "git -c a=b status", "python -c pass", "bash script.sh -c x", "bash -x script.sh", "bash -- -c", "sh",
        "bash -o errexit script.sh", "grep -c sh file", "env python -c pass", "env A=sh ls", "timeout 5 make -C sh",
        "find . -name sh -print", "xargs grep -c sh", "nohup ./run.sh -c", "watch -x ls", "gcc -c main.c",
        "flock lock ls", "env -S ls\u00a0-c", "bash /code/script.sh", "bash -xo pipefail /code/script.sh -c",
        "sudo ls -i", "sudo -u s ls", "pwsh -File a.ps1", "env --unset=sh ls", "fish a.fish",
        "git commit -m sh\u00a0-c", "grep sh\u00a0-c file", "go run ./cmd /code", "gcc -c sh.c", "npx tsc -c sh",
        "ls sh", "msgexec -l es -c", "git log --grep=sh,-x", "tar -cf sh.tar bash",
    ],
)  # fmt: skip
def test_what_runs_no_string_is_not_taken_for_it(line: str) -> None:
    program, *arguments = (word.replace("\u00a0", " ") for word in line.split(" "))

    assert shell_string([program], arguments) == ""


def test_a_shell_is_known_by_what_its_name_leads_to_a_network_client_by_its_name_and_nothing_missing_is_harmless() -> (
    None
):
    assert shell_string(["./tool", "/usr/bin/dash"], ["-c", "x"]) == "dash"

    assert not is_harmless(Path("/bin/cat/ls"))
    assert not is_harmless(Path("/usr/local/bin/ls"))

    assert is_network_client("/usr/bin/curl")
    assert not is_network_client("ls")


@pytest.mark.parametrize("word", ["sh", "env", "su", "watch", "-S", "-x"])
def test_thousands_of_arguments_are_judged_at_once(word: str) -> None:
    begun = time.monotonic()

    shell_string(["env"], [word] * 4096)

    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("program", "name"),
    [("/usr/bin/python3.11", "python"), ("gcc-12", "gcc"), ("Bash.exe", "bash"), ("7", "7"), ("node", "node")],
)
def test_a_name_is_shown_without_folder_version_and_suffix(program: str, name: str) -> None:
    assert plain_name(program) == name


# Written here once more, because the clause names kinds of programs and the product's list is what is judged.
OPEN_ENDED = """
    sh bash dash zsh ksh mksh fish csh tcsh ash busybox pwsh python python3.12 pypy ipython perl ruby node deno bun php
    lua Rscript julia java scala groovy tclsh expect awk gawk sed ed vi vim emacs guile racket erl elixir ghci ocaml
    swift octave sqlite3 psql git hg svn jj make gmake bmake cmake ctest ninja meson scons bazel gradle gradlew mvn ant
    sbt lein cargo rustc go gcc cc clang g++ c++ ld npm npx pnpm yarn pip pipx uv poetry pdm hatch conda tox nox pytest
    coverage pre-commit just task invoke rake bundle gem composer mix dotnet msbuild stack cabal dune nix jest vitest
    tsc eslint webpack vite gulp grunt ansible terraform helm kubectl docker podman env xargs find ssh tar choom tmux
    ld-linux-x86-64.so.2 dbus-run-session proxychains4 rg sort
"""


@pytest.mark.spec("PER-08.d")
@pytest.mark.parametrize("name", OPEN_ENDED.split())
def test_no_shell_interpreter_or_build_tool_is_granted_beyond_its_exact_words(name: str) -> None:
    assert not is_harmless(Path("/usr/bin", name))
    assert is_open_ended([f"/usr/bin/{name}"])


@pytest.mark.spec("PER-08.d")
@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_program_is_harmless_by_the_file_that_it_is_and_not_by_its_name(tmp_path: Path, name: str) -> None:
    copy, link = tmp_path / name, tmp_path / "link" / name
    shutil.copy("/bin/sh", copy)
    link.parent.mkdir()
    link.symlink_to(f"/usr/bin/{name}")

    assert is_harmless(Path("/usr/bin", name))
    assert not is_harmless(copy)
    assert not is_harmless(link)
    assert not is_harmless(Path("/usr/bin", f"{name}.x"))
