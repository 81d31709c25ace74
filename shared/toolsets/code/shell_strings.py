"""Finding a shell that is given a command string, also behind programs that start others (CMD-01).

A string is refused because nobody can say what it does: quoting, expansion and ``;`` make another program of it than
the one that was shown. This finds what is in the argv. It is not a sandbox: an interpreter, a makefile or a script runs
whatever it likes, which is why ``code.run_command`` is dangerous and each call is asked.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS: Final = names("""
    sh bash rbash dash ash zsh ksh mksh lksh pdksh oksh yash posh csh tcsh fish rc es elvish nu xonsh osh ysh hush lash
    pwsh powershell cmd
""")
# Words that hardly mean anything else, wherever they stand.
_PLAIN_SHELLS: Final = names("sh bash rbash dash ash zsh ksh mksh fish csh tcsh")
# These hand the string behind -c to a shell.
_LIKE_SHELLS: Final = names("su runuser script flock")
# These hand their arguments to a shell, whatever they are.
_ALWAYS_SHELL: Final = names("parallel watch sg")
# These options of sudo hand its command to a shell; those others take a value.
_SUDO_SHELL: Final = re.compile(r"-[A-Za-z]*[si]|--shell|--login")
_SUDO_VALUE: Final = re.compile(r"-[A-Za-z]*[ugChpRTUrtD]")
_STARTERS: Final = names("""
    env xargs find fd nohup timeout nice ionice chrt taskset setsid stdbuf unbuffer time sudo doas pkexec chroot unshare
    nsenter strace ltrace gdb valgrind perf busybox toybox parallel watch setarch setpriv capsh prlimit systemd-run
    fakeroot firejail bwrap script flock su runuser sg entr caffeinate ssh-agent start-stop-daemon tini gosu watchexec
    poetry uv uvx pipx hatch pipenv pdm npx npm pnpm yarn bunx conda mamba nix nix-shell bundle mise docker podman
    kubectl choom numactl cgexec schedtool linux cpulimit dbus-run-session dbus-launch xvfb-run eatmydata proot runcon
    sshpass rlwrap catchsegv systemd-inhibit systemd-nspawn s6-setuidgid chpst
    softlimit with-contenv dumb-init catatonit faketime torsocks torify proxychains direnv op aws-vault hyperfine
    nodemon concurrently tmux screen dtach abduco logrotate run-parts batch trickle numad libtool debuginfo-run
    apptainer singularity distrobox toolbox flatpak-spawn gamemoderun ld.so
""")
_LOADER: Final = re.compile(r"ld-.*\.so|ld\.so")
"""The dynamic loader starts the program that is its argument, whatever that is called."""
_VERSION: Final = re.compile(r"[-._]?\d[\d.]*$")
_WITH_STRING: Final = re.compile(r"[-+][A-Za-z]*c")
_LONG: Final = ("--command", "--init-command")
_LIKE_LONG: Final = ("--command", "--session-command")
_TAKES_VALUE: Final = re.compile(r"[-+][A-Za-z]*[oO][A-Za-z]*|--rcfile|--init-file")
_SPLITS: Final = re.compile(r"-[A-Za-z]*S|--s[a-z-]*=?")
_INSIDE_WORDS: Final = re.compile(r"\$\{[^}]*\}|[\\'\"]")
_FAR: Final = 256
"""So many arguments behind a name are looked at: a list of thousands must not take seconds."""


def shell_string(known_as: Sequence[str], arguments: Sequence[str]) -> str:
    """Return the name of the shell that would get a command string, or an empty text.

    ``known_as`` is all that the program is known by: as written, as found, as what a link leads to. Any program may
    start another, so every word counts as one: a word of another meaning that looks like a shell followed by ``-c`` is
    refused, too. Behind a program that is known to start others the less common shells count as well.
    """
    own = [plain_name(name) for name in known_as]
    found = next((name for name in own if _gets_string(name, arguments)), "")
    if found:
        return found
    is_starter = any(map(_starts_others, own))
    parts = (part for word in arguments for part in ([word] if " " in word else word.split(",")))  # -wrapper sh,-c,x
    words = (*arguments, *_split(arguments)) if is_starter else tuple(parts)
    places = ((plain_name(word.rpartition("=")[2]), place) for place, word in enumerate(words))
    looked_at = ((name, place) for name, place in places if is_starter or name in _PLAIN_SHELLS)
    return next((name for name, place in looked_at if _gets_string(name, words[place + 1 : place + _FAR])), "")


def plain_name(program: str) -> str:
    """Return what a program is called without folder, version and suffix: ``/usr/bin/python3.11`` is ``python``."""
    name = PurePosixPath(program).name.casefold().removesuffix(".exe")
    return _VERSION.sub("", name) or name


def is_shell_or_starter(name: str) -> bool:
    """Say whether a plain name is that of a shell, or of a program that starts others named in its arguments."""
    return name in _SHELLS or _starts_others(name)


def _starts_others(name: str) -> bool:
    return name in _STARTERS or _LOADER.fullmatch(name) is not None


def _gets_string(name: str, arguments: Sequence[str]) -> bool:
    near = arguments[:_FAR]
    match name:
        case "pwsh" | "powershell":
            return any(map(_is_for_powershell, near))
        case "cmd":
            return any(each.casefold().startswith(("/c", "/k")) for each in near)
        case "fish" if any(re.match(r"-[A-Za-z]*C", each) for each in near):
            return True
        case "sudo":
            return any(map(_SUDO_SHELL.fullmatch, _sudo_options(near)))
        case _ if name in _SHELLS:
            return _takes_string(arguments)
        case _ if name in _LIKE_SHELLS:
            return any(_WITH_STRING.match(each) or each.startswith(_LIKE_LONG) for each in near)
        case _:
            return name in _ALWAYS_SHELL and not {"-x", "--exec"} & set(near)


def _is_for_powershell(argument: str) -> bool:
    """Say whether it is -Command or -EncodedCommand, both of which may be cut short (``-c``, ``-e``, ``-enc``)."""
    word = argument.casefold()
    if len(word) < 2 or word[0] not in "-/":
        return False
    return "command".startswith(word[1:]) or "encodedcommand".startswith(word[1:]) or word[1:] == "ec"


def _sudo_options(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what is before the command that sudo runs, without the values of options."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif not argument.startswith("-") or argument == "--":
            return
        else:
            is_value = _SUDO_VALUE.fullmatch(argument) is not None
            yield argument


def _takes_string(arguments: Sequence[str]) -> bool:
    """Say whether a shell called with these reads its commands from an argument."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument.startswith(_LONG):
            return True
        elif argument in {"--", "-"} or not argument.startswith(("-", "+")):
            return False  # the rest is a script and its arguments
        elif _WITH_STRING.match(argument) and not argument.startswith("--"):
            return True
        else:
            is_value = _TAKES_VALUE.fullmatch(argument) is not None
    return False


def _split(arguments: Sequence[str]) -> list[str]:
    """Return the words of what ``env -S`` makes a command line of."""
    words: list[str] = []
    for place, argument in enumerate(arguments):
        if option := _SPLITS.match(argument):
            text = " ".join((argument[option.end() :], *arguments[place + 1 : place + 2]))
            # Parts that quotes join or variables leave empty are one word again; ``\_`` parts two.
            words += [_INSIDE_WORDS.sub("", word) for word in text[:4096].replace("\\_", " ").split()]
    return words
