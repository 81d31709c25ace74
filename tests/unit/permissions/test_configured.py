"""What config.toml means: rules with their source, limits of the tool set, roots; every problem with its place."""

from pathlib import Path

import pytest

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.permissions.configured import configured_write_roots, policy_of
from soong.shared.permissions.policy import Mode, NetworkMode, NetworkPolicy, Policy
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind
from tests.unit.permissions.calls import make_facts

HOME = "/home/someone"

FULL = """
[permission]
mode = "strict"

[[permission.rules]]
effect = "deny"
tools = "mcp.*"
tags = ["network"]

[[permission.rules]]
effect = "ask"
tools = "code.read_file"
scope = "/work/notes"

[[permission.rules]]
effect = "allow"
tools = "code.write_file"
scope = "/work/./out/"

[tools]
dangerous = true
hidden = ["mcp.*.delete_*"]

[network]
mode = "allowlist"
hosts = ["*.Example.org"]
allowed = ["API.example.org."]
"""


def policy(text: str) -> Policy:
    return policy_of(parse_config(text), home=HOME)


@pytest.mark.spec("PER-10.a", "REG-08")
def test_the_configuration_becomes_the_policy_with_its_source() -> None:
    assert policy(FULL) == Policy(
        (
            Rule(Effect.DENY, "mcp.*", frozenset({"network"}), source="config.toml"),
            Rule(Effect.ASK, "code.read_file", scope=Scope(ScopeKind.PATH, "/work/notes"), source="config.toml"),
            Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/work/out"), source="config.toml"),
        ),
        Mode.STRICT,
        NetworkPolicy(NetworkMode.ALLOWLIST, ("*.example.org",), ("api.example.org",), source="config.toml"),
        is_dangerous_enabled=True,
    )


@pytest.mark.spec("PER-10.a")
def test_no_configuration_is_the_safest_policy() -> None:
    assert policy_of(Config()) == Policy()


@pytest.mark.spec("PER-08", "PER-10")
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('effect = "allow"\ntools = "code.*"', "an allow rule needs a scope"),
        ('effect = "allow"\nscope = "/"', "too wide"),
        ('effect = "allow"\nscope = "/home/other"', "too wide"),
        ('effect = "allow"\nscope = "/root"', "too wide"),
        ('effect = "allow"\nscope = "*"', "not a pattern"),
        ('effect = "allow"\nscope = "host:"', "nothing after"),
        ('effect = "allow"\nscope = "host:http://example.org"', "write a host name"),
        ('effect = "deny"\nscope = "host:a b"', "write a host name"),
        ('effect = "deny"\ntools = "..."', "names no tool"),
    ],
)
def test_a_rule_that_says_too_much_or_nothing_is_refused_with_its_place(rule: str, words: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        policy(f'[[permission.rules]]\neffect = "deny"\ntools = "x.y"\n\n[[permission.rules]]\n{rule}\n')

    assert str(caught.value).startswith("config.toml: permission.rules[1]: ")
    assert words in str(caught.value)


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize("scope", ["/", "~", "/home"])
def test_a_rule_that_refuses_or_asks_may_be_as_wide_as_it_likes(scope: str) -> None:
    for effect in ("deny", "ask"):
        (rule,) = policy(f'[[permission.rules]]\neffect = "{effect}"\nscope = "{scope}"').rules

        assert rule.matches(make_facts()) is (scope == "/")


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('hosts = ["example.org"]', "only read in mode allowlist"),
        ('mode = "off"\nallowed = ["example.org"]', "take one of them away"),
        ('mode = "always_ask"\nallowed = ["example.org"]', "take one of them away"),
        ('mode = "allowlist"\nhosts = ["ok.example.org", "http://x"]', r"network\.hosts\[1\]"),
        ('mode = "allowlist"\nallowed = ["a/b"]', r"network\.allowed\[0\]"),
        ('mode = "allowlist"\nhosts = ["*"]', r"network\.hosts\[0\]"),
    ],
)
def test_a_network_section_that_contradicts_itself_is_refused(section: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        policy(f"[network]\n{section}")


@pytest.mark.spec("FS-07.b")
def test_write_roots_are_resolved_and_the_temporary_folder_has_its_own_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "link"))
    named = parse_config(f'[paths]\nallowed_write_roots = ["{tmp_path}/link", "~/shared"]')
    temporary = parse_config("[paths]\ntemp_writes = true")

    assert configured_write_roots(Config()) == ()
    assert configured_write_roots(named, home=HOME) == (tmp_path.resolve() / "real", Path("/home/someone/shared"))
    assert configured_write_roots(temporary) == (Path("/tmp").resolve(), tmp_path.resolve() / "real")


@pytest.mark.spec("FS-07")
@pytest.mark.parametrize("root", ["out", "/", "~", "/home/someone", "/home"])
def test_a_write_root_that_is_relative_or_everything_is_refused(root: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"config\.toml: paths\.allowed_write_roots\[0\]"):
        configured_write_roots(parse_config(f'[paths]\nallowed_write_roots = ["{root}"]'), home=HOME)


@pytest.mark.spec("FS-06")
def test_read_roots_are_resolved_and_there_are_none_unless_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    named = parse_config(f'[paths]\nread_roots = ["{tmp_path}/link", "~/docs"]')

    assert policy_of(Config()).read_roots == ()
    assert policy_of(parse_config("[paths]\nread_roots = []")).read_roots == ()
    assert policy_of(named, home=HOME).read_roots == (str(tmp_path.resolve() / "real"), "/home/someone/docs")


@pytest.mark.spec("FS-06")
def test_a_relative_read_root_is_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"config\.toml: paths\.read_roots\[0\]: 'docs' is not an absolute path"
    ):
        policy_of(parse_config('[paths]\nread_roots = ["docs"]'))
