"""The Markdown report of an audit: a table, the findings of each package, and what they do not cover."""

from typing import Any

KINDS = {
    "swallowed_exception": "swallowed exceptions",
    "unsafe_deserialisation": "unsafe deserialisation",
    "shell_true": "shell=True",
    "mutable_default": "mutable defaults",
    "marker": "TODO/FIXME",
    "long_function": "functions over 80 lines",
    "untested_file": "files without tests",
}
HOW = """\
- The survey listed every folder but hidden ones, environments, caches and build output.
- Each package was reviewed by an agent of its own: ripgrep found candidate lines ({candidates} in all), then every \
file was read in full and parsed, never run.
- Swallowed exceptions are bare or broad `except` clauses whose body only passes, continues, breaks, or returns \
nothing or a constant; broad handlers that do anything else are not listed.
- Unsafe deserialisation, `shell=True` and mutable defaults come from the syntax tree, so text in comments and strings \
does not count; names are followed through imports, not through variables.
- TODO/FIXME are lines with these words as ripgrep finds them; it passes by what the tree's own .gitignore excludes.
- A function's length counts from its `def` to its last line.
- A module has tests when a file test_<module>.py or <module>_test.py is anywhere in the tree; a module tested \
otherwise is listed all the same.
"""
NO_TESTS = "- No test file was found in this tree, so every module counts as one without tests."


def report_of(project: str, reviews: list[dict[str, Any]], inputs: dict[str, Any]) -> str:
    findings = [one for review in reviews for one in review["findings"]]
    notes = notes_of(reviews, inputs) or ["- Every file listed was read in full."]
    lines = [
        f"# Audit of `{project}`",
        "",
        f"{len(findings)} findings in {len(reviews)} packages.",
        "",
        *table_of(reviews, findings),
        "",
        "## Findings",
        *(line for review in reviews for line in section_of(review)),
        "",
        "## Limits",
        "",
        *([] if inputs["tested"] else [NO_TESTS]),
        *notes,
        "",
        "## How it was made",
        "",
    ]
    return "\n".join(lines) + "\n" + HOW.format(candidates=sum(review["candidates"] for review in reviews))


def table_of(reviews: list[dict[str, Any]], findings: list[dict[str, Any]]) -> list[str]:
    head = ["package", "files", *KINDS.values(), "all"]
    rows = [[f"`{one['package']}`", one["files_read"], *counts_of(one["findings"])] for one in reviews]
    rows.append(["**all**", sum(one["files_read"] for one in reviews), *counts_of(findings)])
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return [row_of(head), ruler, *map(row_of, rows)]


def row_of(cells: list[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def counts_of(findings: list[dict[str, Any]]) -> list[int]:
    kinds = [one["kind"] for one in findings]
    return [*map(kinds.count, KINDS), len(findings)]


def section_of(review: dict[str, Any]) -> list[str]:
    """Return a package's findings; its files without tests are one line together."""
    lines = ["", f"### `{review['package']}`", ""]
    untested = [f"`{one['path']}:1`" for one in review["findings"] if one["kind"] == "untested_file"]
    for one in review["findings"]:
        if one["kind"] != "untested_file":
            detail = one["detail"].replace("`", "'")
            lines.append(f"- `{one['path']}:{one['line']}` {one['kind'].replace('_', ' ')}: `{detail}`")
    if untested:
        lines.append(f"- files without tests: {', '.join(untested)}")
    return lines if review["findings"] else [*lines, "No finding."]


def notes_of(reviews: list[dict[str, Any]], inputs: dict[str, Any]) -> list[str]:
    reviewed = {review["package"] for review in reviews}
    failed = [
        f"- the review of `{package['path']}` failed; its {len(package['files'])} files are not covered"
        for package in inputs["packages"]
        if package["path"] not in reviewed
    ]
    cut = [f"- `{folder}` has more entries than were listed" for folder in inputs["cut"]]
    return [*failed, *cut, *(f"- {note}" for review in reviews for note in review["notes"])]
