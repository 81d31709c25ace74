"""What kind of program a command is, for the width of a session grant and for the network (PER-08, PER-21).

A grant for a shell, an interpreter or a build tool "with any arguments" would be one for everything: ``git status`` and
``git -c core.pager=…`` are the same program. For those a grant covers the very argv. A plain tool in one folder may be
granted as such. Whatever is itself a script counts as its interpreter, and what lies outside the system's own folders
may be a shell under another name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared.toolsets.code.shell_strings import is_shell_or_starter, names, plain_name

_INTERPRETERS: Final = names("""
    python pypy ipython perl raku ruby irb node nodejs deno bun php lua luajit r rscript julia java javac kotlin scala
    groovy jshell tclsh wish expect osascript awk gawk mawk nawk sed ed ex vi vim nvim emacs less more man guile racket
    scheme sbcl clisp erl elixir iex ghc runghc ghci ocaml swift dart mono octave gnuplot sqlite psql mysql mongosh bc
    dc m4 wine bpftrace gs tex pdftex latex pdflatex xelatex lualatex zip unzip tar cpio
""")
# Tools that run a program which one of their options names.
_RUN_BY_OPTION: Final = names("""
    rg ag ack fzf bat sort split ip tc openssl gpg gpg2 busctl dbus-send gdbus journalctl tcpdump ld ldd
""")
# What these do is all in their arguments, and it is done to files.
_CHANGERS: Final = names("cp mv rm ln dd tee install shred truncate chmod chown mount umount mkfs kill pkill killall")
_BUILD_TOOLS: Final = names("""
    git hg svn jj make gmake bmake cmake ctest ninja meson scons bazel buck gradle gradlew mvn mvnw ant sbt lein cargo
    rustc rustup go gcc cc clang tcc g++ c++ clang++ ld npm npx pnpm yarn corepack pip pipx uv poetry pdm hatch pipenv
    conda mamba tox nox pytest py.test coverage pre-commit just task invoke inv fab rake bundle bundler gem composer mix
    rebar dotnet msbuild nuget stack cabal opam dune xcodebuild fastlane nix jest vitest mocha tsc eslint prettier
    webpack vite rollup gulp grunt turbo nx ansible ansible-playbook terraform tofu pulumi helm kubectl docker podman
    buildah vagrant packer crontab at systemctl service launchctl apt apt-get dpkg yum dnf rpm brew snap flatpak aws
    gcloud az gh glab
""")
_NETWORK: Final = names("""
    curl wget aria2c http https xh ssh scp sftp rsync ftp lftp telnet nc ncat netcat socat nmap ping dig host nslookup
    whois mosh rclone s3cmd mail mailx sendmail
""")


_SYSTEM_FOLDERS: Final = ("/usr/", "/bin/", "/sbin/", "/nix/store/", "/opt/homebrew/", "/snap/")
"""Where a name says what a program is: elsewhere a copy of a shell may be called anything."""


def needs_exact_grant(known_as: Sequence[str], program: Path) -> bool:
    """Say whether a program can do anything at all, by its arguments or by what it reads where it starts."""
    return is_open_ended(known_as) or not str(program).startswith(_SYSTEM_FOLDERS) or _is_script(program)


def is_open_ended(known_as: Sequence[str]) -> bool:
    """Say the same of what a program is called alone: for a script that a user has chosen, not a model."""
    plain = {plain_name(name) for name in known_as}
    listed = _INTERPRETERS | _BUILD_TOOLS | _CHANGERS | _NETWORK | _RUN_BY_OPTION
    return bool(plain & listed) or any(map(is_shell_or_starter, plain))


def is_network_client(name: str) -> bool:
    """Say whether a program's purpose is to reach a host; of most others nobody can say that they do not."""
    return plain_name(name) in _NETWORK


def _is_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True  # it can be executed but not read: nothing is known of it
