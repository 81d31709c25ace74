import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import PathPolicy, is_below, shown_path
from tests.unit.tools.parts import make_run_dirs

POLICY = PathPolicy(Path("/home/u/.soong-home"))


@pytest.mark.spec("FS-06.a")
@pytest.mark.parametrize(
    "path",
    [
        "/home/u/.ssh",
        "/home/u/.ssh/id_rsa",
        ".gnupg/x",
        "a/.aws/credentials",
        "/home/u/.config/gcloud/token",
        "x.pem",
        "deep/SERVER.KEY",
        ".env",
        ".env.local",
        ".ENV.local",
        ".env ",
        ".env.",
        ".ENV/bin/python",
        "\uff58.\uff50\uff45\uff4d",
        ".e\u200bnv",
        "a//.env",
    ],
)
def test_sensitive_names_are_seen_through_every_spelling(path: str) -> None:
    assert POLICY.is_sensitive(path)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "path",
    [
        "env",
        "env.md",
        "id_map.c",
        "history",
        ".environment",
        "pem",
        "x.pem.txt",
        "keys/x",
        ".config/other",
        "gcloud",
        ".sshx",
        "a.keys",
    ],
)
def test_ordinary_names_are_not_sensitive(path: str) -> None:
    assert not POLICY.is_sensitive(path)


@given(st.lists(st.sampled_from([".env", "a", "b.pem", "c.py", ".ssh", "x"]), min_size=1, max_size=5))
def test_a_path_is_sensitive_exactly_when_a_part_of_it_is(parts: list[str]) -> None:
    assert POLICY.is_sensitive("/".join(parts)) == bool({".env", "b.pem", ".ssh"} & set(parts))


@pytest.mark.spec("FS-07.d")
def test_links_are_resolved_before_anything_is_said(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "project-evil"
    project.mkdir()
    outside.mkdir()
    (project / "link").symlink_to(outside)
    (project / "dangling").symlink_to(outside / "new.txt")
    (outside / ".env").write_text("A=1")
    (project / "plain.txt").symlink_to(outside / ".env")
    roots = make_run_dirs(project)

    through, dangling, secret = (POLICY.locate(roots, name) for name in ("link/x", "dangling", "plain.txt"))

    assert (through.resolved, through.is_inside_project, through.is_inside_write_roots) == (outside / "x", False, False)
    assert (dangling.resolved, dangling.is_inside_write_roots) == (outside / "new.txt", False)
    assert secret.is_sensitive


@pytest.mark.spec("FS-07")
def test_a_folder_whose_name_begins_alike_is_not_inside(tmp_path: Path) -> None:
    roots = make_run_dirs(tmp_path / "proj")

    assert not POLICY.locate(roots, str(tmp_path / "proj-evil/x")).is_inside_write_roots
    assert not POLICY.locate(roots, "../proj-evil/x").is_inside_project
    assert is_below(Path("/a/b"), Path("/"))
    assert is_below(Path("/"), Path("/"))


@pytest.mark.spec("FS-07.c")
def test_a_runs_own_folders_are_write_roots(tmp_path: Path) -> None:
    roots = make_run_dirs(tmp_path / "p", run_dir=tmp_path / "runs/r", write_roots=())

    inside = [
        POLICY.locate(roots, str(tmp_path / "runs/r" / name)).is_inside_write_roots
        for name in ("workspace/x", "deliverables/x", "x")
    ]

    assert inside == [True, True, False]


@pytest.mark.parametrize(
    "path",
    ["~/x", "~root", "$HOME/x", "%2e%2e/x", "file:///etc/passwd", "C:\\x", "\\\\host\\share", "-r", "\x1b[0m", "a\nb"],
)
def test_nothing_in_a_path_is_expanded(tmp_path: Path, path: str) -> None:
    located = POLICY.locate(make_run_dirs(tmp_path), path)

    assert located.resolved == Path(os.path.normpath(tmp_path / path))
    assert located.is_inside_project


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/environ",
        "/proc/1/root/etc/shadow",
        "/proc/self/fd/3",
        "/dev/fd/0",
        "/sys/kernel",
        "a/../../../../../../../../proc/self/mem",
    ],
)
def test_the_kernels_own_file_systems_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(PathRefusedError) as caught:
        POLICY.locate(make_run_dirs(tmp_path), path)

    assert caught.value.refusal is PathRefusal.NOT_REGULAR


def test_paths_are_shown_relative_inside_the_project_and_as_valid_text(tmp_path: Path) -> None:
    roots = make_run_dirs(tmp_path)

    assert shown_path(tmp_path / "a/b.py", roots) == "a/b.py"
    assert shown_path(tmp_path, roots) == "."
    assert shown_path(Path("/etc/x"), roots) == "/etc/x"
    assert shown_path(tmp_path / os.fsdecode(b"bad\xff"), roots) == "bad\ufffd"


@pytest.mark.parametrize("kind", ["loop", "chain"])
def test_links_that_lead_nowhere_or_too_far_are_refused_as_such(tmp_path: Path, kind: str) -> None:
    count = {"loop": 2, "chain": 3000}[kind]
    for number in range(count):
        (tmp_path / f"l{number}").symlink_to(f"l{(number + 1) % count}" if kind == "loop" else f"l{number + 1}")

    with pytest.raises(PathRefusedError) as caught:
        POLICY.locate(make_run_dirs(tmp_path), "l0")

    assert caught.value.refusal is PathRefusal.INVALID


@pytest.mark.spec("FS-09")
def test_a_git_folder_of_another_name_is_protected_by_what_is_in_it(tmp_path: Path) -> None:
    for folder in ("meta", "plain"):
        (tmp_path / folder / "objects").mkdir(parents=True)
        (tmp_path / folder / "refs").mkdir()
    (tmp_path / "meta/HEAD").write_text("ref: refs/heads/main\n")

    protected = {
        name: POLICY.is_protected(tmp_path / name)
        for name in ("meta/hooks/pre-commit", "meta/config", "meta/description", "plain/hooks/x", "plain/config")
    }

    assert [name for name, is_protected in protected.items() if is_protected] == [
        "meta/hooks/pre-commit",
        "meta/config",
    ]


@pytest.mark.spec("FS-09")
def test_what_steers_us_elsewhere_is_protected_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    policy = PathPolicy(controls=(tmp_path / "link/hook.py", tmp_path / "tools"))

    assert policy.is_protected(tmp_path / "real/hook.py")
    assert policy.is_protected(tmp_path / "link/HOOK.py")
    assert policy.is_protected(tmp_path / "tools/inner/x.py")
    assert not policy.is_protected(tmp_path / "real/hook.pyc")


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "path",
    [
        "new.txt",
        "a/b/new.txt",
        "real/new.txt",
        "link/new.txt",
        "link/../new.txt",
        "dangling",
        "dangling/x",
        "real/../x",
        "no/../link/x",
        "file/x",
        "link/link/x",
    ],
)
def test_what_does_not_exist_leads_where_the_system_says(path: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere/else")
    (tmp_path / "real" / "link").symlink_to("../real")

    located = POLICY.locate(make_run_dirs(tmp_path), path)

    assert located.resolved == Path(os.path.realpath(tmp_path / path))


@pytest.mark.spec("FS-06.a")
def test_a_path_that_passes_through_a_sensitive_name_is_sensitive_wherever_it_leads(tmp_path: Path) -> None:
    """Its folders need not exist, and whether they do is not revealed."""
    located = POLICY.locate(make_run_dirs(tmp_path), ".ssh/../notes.txt")

    assert located.resolved == tmp_path / "notes.txt"
    assert located.is_sensitive
