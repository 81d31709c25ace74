"""The files that a command names, or is known to read by itself, and their state: part of what a yes covers (PER-08).

``python3 build.py`` runs what is in ``build.py``, ``make`` what is in the Makefile. A run that can write that file
decides what a permitted command does, so the question shows it, the permission is bound to its state, and a session
grant covers its content. Only files where a run can write are looked at: a run cannot exchange others. The imports,
includes and programs of such a file are not known here.
"""

import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from soong.shared.core.jsontext import is_seen, is_told_apart
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError, opened_file
from soong.shared.sandbox.paths import is_below
from soong.shared.toolsets.code.shell_strings import is_shell_or_starter, names, plain_name

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one file and of all of a command that are read for their digest; only the inode of a larger file counts."""
SHORT: Final = 12
MAX_SHOWN: Final = 20
_CHUNK: Final = 1024 * 1024

_PYTHON_PROJECT: Final = ("pyproject.toml", "setup.py", "setup.cfg")
_TESTS: Final = ("conftest.py", "pytest.ini", "tox.ini", *_PYTHON_PROJECT)
_NODE: Final = ("package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", ".npmrc", ".yarnrc.yml")
_RUST: Final = ("Cargo.toml", "Cargo.lock", "build.rs", ".cargo/config.toml")
_GRADLE: Final = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")
_RUBY: Final = ("Gemfile", "Gemfile.lock", "Rakefile")
READ_UNNAMED: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("make", "gmake"), ("GNUmakefile", "makefile", "Makefile")),
    **dict.fromkeys(("bmake", "pmake"), ("makefile", "Makefile", "BSDmakefile")),
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "bun", "bunx", "corepack"), _NODE),
    **dict.fromkeys(("node", "nodejs"), ("package.json", "index.js")),
    **dict.fromkeys(("python", "pypy", "ipython"), ("__main__.py",)),
    **dict.fromkeys(("pip", "pipx", "uv", "uvx", "poetry", "pdm", "hatch", "build"), _PYTHON_PROJECT),
    **dict.fromkeys(("pytest", "py.test"), _TESTS),
    **dict.fromkeys(("bundle", "bundler", "rake"), _RUBY),
    **dict.fromkeys(("gradle", "gradlew"), _GRADLE),
    **dict.fromkeys(("mvn", "mvnw"), ("pom.xml", ".mvn/extensions.xml", ".mvn/jvm.config")),
    **dict.fromkeys(
        ("docker", "podman", "buildah"), ("Dockerfile", "Containerfile", "compose.yaml", "docker-compose.yml")
    ),
    **dict.fromkeys(("ansible", "ansible-playbook"), ("ansible.cfg",)),
    **dict.fromkeys(("cmake", "ctest"), ("CMakeLists.txt", "CTestTestfile.cmake")),
    "cargo": _RUST,
    "go": ("go.mod",),
    "tox": ("tox.ini", *_PYTHON_PROJECT),
    "nox": ("noxfile.py",),
    "just": ("justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "fab": ("fabfile.py",),
    "ninja": ("build.ninja",),
    "meson": ("meson.build",),
    "scons": ("SConstruct",),
    "ant": ("build.xml",),
    "pre-commit": (".pre-commit-config.yaml",),
    "composer": ("composer.json",),
    "mix": ("mix.exs",),
}
"""Files that decide what a program does and that it reads of itself, in its folder or in one that is named."""

_ESCAPES: Final = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

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
# The effect of these is all in their arguments, and on files.
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


class NamedFile(Value):
    """One file. ``path`` is without links; ``identity`` is device, inode, size and times, ``sha256`` empty if not read.
    ``is_script``: the command runs it, as far as that is known.
    """

    name: str
    path: Path
    identity: str
    size: int
    sha256: str
    is_script: bool

    @property
    def shown(self) -> str:
        """How a person reads it, on one line."""
        content = f"sha256 {self.sha256[:SHORT]}" if self.sha256 else "content not read"
        return f"file {quoted([self.name])}: {content}, {self.size} bytes"


class NamedFiles(Value):
    """The files of one command, scripts first."""

    files: tuple[NamedFile, ...] = ()

    @property
    def state(self) -> str:
        """A digest of what the files are now, content and inodes; empty when there are none."""
        return self._digest(lambda file: f"{file.identity} {file.sha256}")

    @property
    def content(self) -> str:
        """A digest of the files' content, or of the identity of an unread file. Empty when there are none. Half of the
        digest: people read it, and no other content with the same 128 bits can be made.
        """
        return self._digest(lambda file: file.sha256 or file.identity)[:32]

    def lines(self) -> list[str]:
        """Return the lines that a person is shown of the files, one each; only the first of many."""
        shown = [file.shown for file in self.files[:MAX_SHOWN]]
        more = len(self.files) - len(shown)
        return [*shown, f"… {more} more files"] if more else shown

    def _digest(self, told: Callable[[NamedFile], str]) -> str:
        if not self.files:
            return ""
        lines = sorted(f"{file.path}\0{told(file)}" for file in self.files)
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def named_files(
    argv: Sequence[str], cwd: Path, roots: Collection[Path], is_secret: Callable[[str], bool]
) -> NamedFiles:
    """Return the files below ``roots`` that a command names in any word, or reads unnamed. It reads them: no work for a
    loop. ``argv[0]`` is the program's path. The content of what ``is_secret`` is not read: its digest would tell of it.
    """
    room, files = MAX_BYTES, []
    for path, candidate in sorted(_found(argv, cwd, roots).items(), key=lambda item: not item[1].is_script):
        file = _looked_at(candidate, path, 0 if is_secret(str(path)) else min(room, MAX_FILE_BYTES))
        room -= file.size if file.sha256 else 0
        files.append(file)
    return NamedFiles(tuple(files))


def runs_what_is_in(argv: Sequence[str], cwd: Path, roots: Collection[Path]) -> bool:
    """Say whether a command runs a file below ``roots``, as far as its words tell; none is read for it."""
    return any(candidate.is_script for candidate in _found(argv, cwd, roots).values())


def _found(argv: Sequence[str], cwd: Path, roots: Collection[Path]) -> "dict[Path, _Candidate]":
    """Return the files below ``roots`` by their paths without links."""
    found: dict[Path, _Candidate] = {}
    for candidate in _candidates(argv, cwd):
        written, resolved = Path(os.path.normpath(candidate.path)), Path(os.path.realpath(candidate.path))
        if any(is_below(path, root) for path in (written, resolved) for root in roots):
            known = found.setdefault(resolved, candidate)
            found[resolved] = replace(known, is_script=known.is_script or candidate.is_script)
    return found


class _Candidate(Value):
    """A regular file as a command names it; ``path`` is absolute, with the links in it."""

    name: str
    path: Path
    is_script: bool


def _candidates(argv: Sequence[str], cwd: Path) -> Iterator[_Candidate]:
    """Yield the regular files behind the words of a command, wherever they lie."""
    yield _Candidate(argv[0], Path(argv[0]), is_script=True)
    folders, before, is_awaited = [cwd], argv[0], runs_a_script(argv[0])
    for word in argv[1:]:
        for name in dict.fromkeys(_names_in(word, before)):
            path = cwd / name
            mode = _mode(path)
            if stat.S_ISDIR(mode):
                folders.append(path)
            elif stat.S_ISREG(mode):
                yield _Candidate(name, path, is_awaited)
                is_awaited = False
        is_awaited, before = is_awaited or runs_a_script(word), word
    unnamed = dict.fromkeys(name for word in argv for name in READ_UNNAMED.get(plain_name(word), ()))
    for path in (folder / name for folder in dict.fromkeys(folders) for name in unnamed):
        if stat.S_ISREG(_mode(path)):
            name = str(path.relative_to(cwd)) if is_below(path, cwd) else str(path)
            yield _Candidate(name, path, is_script=True)


def _names_in(word: str, before: str) -> Iterator[str]:
    """Yield what of a word could name a file: ``x``, ``--file=x``, ``-fx``, ``@x``, ``x::test``; ``-m x.y``."""
    yield word
    yield word.partition("=")[2]
    yield word.partition(":")[0]
    if word.startswith(("-", "@")):
        yield word[1 if word[0] == "@" else 2 :]
    if before == "-m" or word.startswith("-m"):
        module = (word if before == "-m" else word[2:]).replace(".", "/")
        yield from (f"{module}.py", f"{module}/__main__.py")


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0  # it is no file, or too long a word to be one


def _looked_at(candidate: _Candidate, path: Path, most: int) -> NamedFile:
    """Return a file's state, its content digested when it has at most so many bytes; one that is gone has none."""
    try:
        with opened_file(path) as descriptor:
            status = os.fstat(descriptor)
            sha256 = _digest_of(descriptor, status.st_size) if status.st_size <= most else ""
    except (OSError, PathRefusedError):
        return NamedFile(candidate.name, path, _identity(path), 0, "", candidate.is_script)
    return NamedFile(candidate.name, path, _identity_of(status), status.st_size, sha256, candidate.is_script)


def _digest_of(descriptor: int, size: int) -> str:
    """Return the digest of the first ``size`` bytes; a file that grows meanwhile has another identity then."""
    digest = hashlib.sha256()
    while size > 0 and (chunk := os.read(descriptor, min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _identity(path: Path) -> str:
    try:
        return _identity_of(path.stat())
    except OSError:
        return "absent"


def _identity_of(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def quoted(words: Sequence[str]) -> str:
    """Return words as one line: as a shell would read them, with everything invisible written out."""
    return " ".join(shlex.quote(word) if is_told_apart(word) else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    return "".join(_ESCAPES.get(char) or (char if is_seen(char) else f"\\U{ord(char):08x}") for char in word)


def is_harmless(program: Path) -> bool:
    """Say whether a program does no harm whatever it is given, but for what its words let it read.

    Known by where it lies and not by what it was called: the file itself, the system's own, that nobody but the
    administrator can have put there. A link, and whatever lies elsewhere, may be another program of that name.
    """
    if program.name not in HARMLESS or str(program.parent) not in _HARMLESS_FOLDERS:
        return False
    try:
        status = program.lstat()
        is_the_systems = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not is_the_systems or not stat.S_ISREG(status.st_mode):
            return False
        with program.open("rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False  # it is gone, or can be executed but not read: nothing is known of it


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
    """Say whether a program's purpose is to reach a host; most others may reach one, too."""
    return plain_name(name) in _NETWORK
