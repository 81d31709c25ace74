"""The hooks of the documentation site (``mkdocs.yml``): pages from outside ``docs/``, their links, lists and diagrams.

The pages are written for readers of the repository. On the site the texts at the top have other names, Python's
Markdown wants four spaces before a nested list item, and a diagram needs mermaid's program. It is not on PyPI: where
``npm ci`` of ``tests/npm`` has installed it, the site serves its own copy; elsewhere a page shows the diagram's text.
"""

import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples/README.md",
}
"""Pages from outside ``docs/``, and their names on the site."""

MERMAID: Final = ROOT / "tests" / "npm" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
_NESTED = re.compile(r"^( +)(?=[-*] )", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Draw diagrams where mermaid is installed."""
    if MERMAID.exists():
        from pymdownx.superfences import fence_code_format

        fence: dict[str, Any] = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
        config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
        config.extra_javascript.append("assets/mermaid.min.js")
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/``, and the examples as they are."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for example in sorted((ROOT / "examples").rglob("*")):
        if example.suffix in {".yaml", ".py"}:
            name = example.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(example)))
    if MERMAID.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fit links and nested lists to the site; what is fenced stays as it is."""
    del config, files
    parts = _FENCED.split(markdown)
    parts[::2] = [_NESTED.sub(r"\1\1", fitted(part, page.file.src_uri)) for part in parts[::2]]
    return "".join(parts)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Add the text of each page next to it: `llms.txt` names these files."""
    for page in (ROOT / "docs").rglob("*.md"):
        shutil.copyfile(page, Path(config.site_dir) / page.relative_to(ROOT / "docs"))


def fitted(text: str, page: str) -> str:
    """Return a text whose links lead from the page of that name on the site to pages of the site."""
    sources = {name: source for source, name in PAGES.items()}
    folder = posixpath.dirname(sources.get(page, f"docs/{page}"))

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        name = PAGES.get(target, target.removeprefix("docs/"))
        return os.path.relpath(name, posixpath.dirname(page) or ".")

    return _LINK.sub(on_site, text)
