"""Public text is plain technical English: documents, help, errors, log messages and docstrings."""

from tests.architecture.language import (
    ALLOWED,
    RULES,
    SENTENCE_RULES,
    problems_in,
    prose_of_comments,
    prose_of_python,
    sentences_of_python,
)
from tests.spec_document import ROOT

BAD = (
    "The worker registers anew.",
    "The message says how to mend it.",
    "The file has one offence.",
    "The value is no number.",
    "It takes 1.4 ms a step.",
    "The store writes one transaction a hop.",
    "It makes 330 steps a second.",
    "The owner is told when a run ends.",
    "The row stands in the table.",
    "It wakes whoever waits.",
    "The run claims a further step.",
    "The whole input is shown.",
    "A comer-back never reuses its ID.",
    "The how-manieth run this is.",
    "The command lists the forebears of a run.",
    "A client writes a wish.",
    "A file lies beside the plan.",
    "The run goes on.",
    "The worker asks in vain.",
    "The page shows what came of it.",
    "Each step that is asked of.",
    "The row says which run it is.",
    "It ends. What is not set is left to the provider.",
    "- Where a rule is missing, a person is asked.",
    "| audit | Who answered what |",
    "1. Of all steps, one runs.",
    "## What a step may ask for",
    "[What a run leaves](runs.md) is listed.",
)


def test_each_rule_finds_one_of_the_bad_sentences() -> None:
    rules = (*RULES, *SENTENCE_RULES)
    idle = [rule.pattern.pattern for rule in rules if not any(rule.pattern.search(sentence) for sentence in BAD)]

    assert idle == []


def test_words_broken_over_two_lines_are_found_where_they_begin() -> None:
    [problem] = problems_in("page.md", [(5, "First line.\nThen the run goes\non.")])

    assert str(problem) == "page.md:6: 'goes on': write continue"


def test_comments_of_configuration_are_read_and_its_values_are_not() -> None:
    text = "whole: told # registers anew\n-- stands\nname: offence\ndescription: beside it\n"

    assert [problem.line for problem in problems_in("a.yaml", prose_of_comments(text))] == [1, 2, 4]


def test_docstrings_and_messages_of_code_are_read_and_sql_and_single_words_are_not() -> None:
    code = '"""Registers anew."""\nkey = "whole"\nsql = "SELECT told FROM wish"\nmessage = f"{key} is no name"\n'

    assert [problem.line for problem in problems_in("a.py", prose_of_python(code))] == [1, 4]


def test_docstrings_and_comments_begin_with_a_subject_and_other_strings_need_not() -> None:
    code = '"""First.\n\n    What follows.\n    """\nA = 1\n"""Of one run."""\n# Where it is.\nmessage = "Who asks"\n'

    assert [problem.line for problem in problems_in("a.py", sentences_of_python(code), SENTENCE_RULES)] == [3, 6, 7]


def test_each_exception_exists() -> None:
    unused = [phrase for path, phrase, _ in ALLOWED if phrase not in (ROOT / path).read_text(encoding="utf-8")]

    assert unused == []
