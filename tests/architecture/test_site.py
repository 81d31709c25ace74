"""The documentation site: strictly built, complete, and without anything that a page loads from elsewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.architecture.site import PAGES
from tests.spec_document import ROOT

NAVIGATION = ("Overview", "Guide", "Reference", "Design")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return site


def test_the_navigation_has_its_parts_and_lists_every_page() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    pages = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))

    assert tuple(name for part in navigation for name in part) == NAVIGATION
    assert sorted(_pages(navigation)) == sorted([*pages, *PAGES.values()])


def test_a_page_loads_nothing_from_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    loaded = {
        address
        for page in pages
        for address in re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"([^\"]+)", page.read_text("utf-8"))
    }

    assert len(pages) > len(PAGES)
    assert {address for address in loaded if re.match(r"(?:\w+:)?//", address)} == set()


def test_every_link_of_the_site_leads_to_a_file_of_it(built: Path) -> None:
    broken = [
        f"{page.relative_to(built)} -> {target}"
        for page in built.rglob("*.html")
        if page.name != "404.html"  # its links begin at the root of a server
        for target in re.findall(r"<a\b[^>]*href=\"(?!\w+:|#)([^\"#]+)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]

    assert not broken


def test_each_page_that_llms_txt_names_is_on_the_site_as_text(built: Path) -> None:
    named = re.findall(r"\]\((?!\.\./)([^)]+)\)", (built / "llms.txt").read_text("utf-8"))

    assert len(named) > 30
    assert [name for name in named if not (built / name).exists()] == []


def _pages(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _pages(each)
