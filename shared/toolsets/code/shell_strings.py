"""Finding a shell that is given a command string, also behind programs that start others (CMD-01).

A string is refused because nobody can say what it does: quoting, expansion and ``;`` make another program of it than
the one that was shown. This finds what stands in the argv. It is no fence: an interpreter, a makefile or a script runs
whatever it likes, which is why ``code.run_command`` is dangerous and each call is asked.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final


def names(text: str) -> frozenset[str]:
    """Return the words of a list of names."""
    return frozenset(text.split())


_SHELLS: Final = names("""
    sh bash rbash dash ash zsh ksh mksh lksh pdksh oksh yash posh csh tcsh fish rc es elvish nu xonsh osh ysh hush lash
    pwsh powershell cmd
""")
# These hand the string behind -c to a shell.
_LIKE_SHELLS: Final = names("su runuser script flock sg")
# These hand their arguments to a shell, whatever they are.
_ALWAYS_SHELL: Final = names("parallel watch")
_STARTERS: Final = names("""
    env xargs find fd nohup timeout nice ionice chrt taskset setsid stdbuf unbuffer time sudo doas pkexec chroot unshare
    nsenter strace ltrace gdb valgrind perf busybox toybox parallel watch setarch setpriv capsh prlimit systemd-run
    fakeroot firejail bwrap script flock su runuser sg entr caffeinate ssh-agent start-stop-daemon tini gosu watchexec
    poetry uv uvx pipx hatch pipenv pdm npx npm pnpm yarn bunx conda mamba nix nix-shell bundle mise docker podman
    kubectl
""")
_VERSION: Final = re.compile(r"[-._]?\d[\d.]*$")
_WITH_STRING: Final = re.compile(r"[-+][A-Za-z]*c")
_LONG: Final = ("--command", "--init-command", "-command", "-encodedcommand")
_TAKES_VALUE: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_SPLITS: Final = re.compile(r"-[A-Za-z]*S|--split-string=?")
_FAR: Final = 256
"""So many arguments behind a name are looked at: a list of thousands must not take seconds."""


def shell_string(known_as: Sequence[str], arguments: Sequence[str]) -> str:
    """Return the name of the shell that would get a command string, or an empty text.

    ``known_as`` is all that the program is known by: as written, as found, as what a link leads to. Behind a program
    that starts others every word counts as a program: one of another meaning that looks like a shell followed by ``-c``
    is refused, too.
    """
    own = [plain_name(name) for name in known_as]
    found = next((name for name in own if _gets_string(name, arguments)), "")
    if found or not any(name in _STARTERS for name in own):
        return found
    words = (*arguments, *_split(arguments))
    places = ((plain_name(word), place) for place, word in enumerate(words))
    return next((name for name, place in places if _gets_string(name, words[place + 1 : place + _FAR])), "")


def plain_name(program: str) -> str:
    """Return what a program is called without folder, version and suffix: ``/usr/bin/python3.11`` is ``python``."""
    name = PurePosixPath(program).name.casefold().removesuffix(".exe")
    return _VERSION.sub("", name) or name


def is_shell_or_starter(name: str) -> bool:
    """Say whether a plain name is that of a shell, or of a program that starts others named in its arguments."""
    return name in _SHELLS or name in _STARTERS


def _gets_string(name: str, arguments: Sequence[str]) -> bool:
    if name in _SHELLS:
        return _takes_string(arguments)
    if name in _LIKE_SHELLS:
        return any(_WITH_STRING.match(each) or each.startswith("--command") for each in arguments[:_FAR])
    return name in _ALWAYS_SHELL and not {"-x", "--exec"} & set(arguments[:_FAR])


def _takes_string(arguments: Sequence[str]) -> bool:
    """Say whether a shell called with these reads its commands from an argument."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument.casefold().startswith(_LONG) or argument.casefold() in {"/c", "/k"}:
            return True
        elif argument in {"--", "-"} or not argument.startswith(("-", "+")):
            return False  # the rest is a script and its arguments
        elif _WITH_STRING.match(argument) and not argument.startswith("--"):
            return True
        else:
            is_value = argument in _TAKES_VALUE
    return False


def _split(arguments: Sequence[str]) -> list[str]:
    """Return the words of what ``env -S`` makes a command line of."""
    words: list[str] = []
    for place, argument in enumerate(arguments):
        if option := _SPLITS.match(argument):
            text = " ".join((argument[option.end() :], *arguments[place + 1 : place + 2]))
            words += [word.strip("'\"") for word in text[:4096].split()]
    return words
