"""The paper's LaTeX source against the tables that the repository's tests compare with."""

import re

import pytest

from tests.facts import read_tables


def numbers(text: str) -> list[str]:
    return re.findall(r"-?\d+(?:\.\d+)?", text)


@pytest.mark.parametrize("name", read_tables())
def test_the_facts_are_the_papers(shared, name):
    """Row by row, the numbers of the facts are those of the paper in the same order."""
    text, facts = (shared / "paper" / "supervised-ancl.tex").read_text(encoding="utf-8"), read_tables()[name]
    start = text.index(r"\midrule", text.index(rf"\label{{{facts.label}}}"))
    commands = r"\\(citep|cmidrule|multicolumn|multirow)(\(\w+\))?\{[^}]*\}(\{[^}]*\})?"
    body = re.sub(commands, "", text[start : text.index(r"\bottomrule", start)])
    lines = [line for line in re.split(r"\\\\\s*(?:\n|$)", body) if "&" in line]  # the others are titles of sections
    printed = [found for line in lines if (found := numbers(line))]
    rows = [found for row in facts.rows if (found := numbers(" ".join(row)))]
    assert rows == printed
