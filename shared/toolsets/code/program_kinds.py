"""What kind of program a command is, for the width of a session grant and for the network (PER-08, PER-21).

A grant for a program "with any arguments" would be one for everything that the program can be made to do: ``git
status`` and ``git -c core.pager=…`` are the same program, and most programs of a system start others, load libraries or
write files by some option. So a grant covers the exact argv, but for the few programs of :data:`HARMLESS`.
"""

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from soong.shared.toolsets.code.shell_strings import is_shell_or_starter, names, plain_name

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


_SCRIPT_RUNNERS: Final = names("""
    sh bash rbash dash ash zsh ksh mksh fish csh tcsh pwsh powershell python pypy ipython perl raku ruby node nodejs
    deno bun php lua luajit r rscript julia java groovy scala tclsh wish expect osascript guile racket make gmake bmake
""")
# Each of these reads what its words name and prints it. None writes a file, starts a program or takes an option that
# does. Not among them, for an option: tail (--pid), wc (--files0-from), date (-s, -f), sort (-o), find (-exec), tee.
HARMLESS: Final = names("arch basename cat dirname echo false head id ls nproc pwd stat true uname whoami")
_HARMLESS_FOLDERS: Final = frozenset({"/bin", "/usr/bin"})


def is_harmless(program: Path) -> bool:
    """Say whether a program does no harm whatever it is given, but for what its words let it read.

    Known by where it lies and not by what it was called: the file itself, the system's own, that nobody but the
    administrator can have put there. A link, and whatever lies elsewhere, may be another program of that name.
    """
    if program.name not in HARMLESS or str(program.parent) not in _HARMLESS_FOLDERS:
        return False
    try:
        status = program.lstat()
    except OSError:
        return False
    is_the_systems = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_the_systems and stat.S_ISREG(status.st_mode) and not _is_script(program)


def runs_a_script(program: str) -> bool:
    """Say whether a program is one that runs the file which it is given."""
    return plain_name(program) in _SCRIPT_RUNNERS


def is_open_ended(known_as: Sequence[str]) -> bool:
    """Say whether a program that a user has chosen is known to do anything at all, by its arguments or where it starts.

    For a tool whose arguments a user has written down but for some values. A model's own argv is never judged by names.
    """
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
