"""The paper's text against what the repository says of it."""

import pytest

from supancl.paper.numbers import PAPER
from tests.facts import assert_package_has, read_tables
from tests.real.paper_text import LABELS, read_paper


@pytest.fixture(scope="module")
def paper(shared):
    return read_paper(shared / "paper" / "supervised-ancl.tex")


@pytest.mark.parametrize("name", LABELS)
def test_the_facts_are_the_papers(paper, name):
    assert read_tables()[name] == paper[name]


@pytest.mark.parametrize("name", PAPER)
def test_every_number_of_the_package_is_the_papers(paper, name):
    assert_package_has(name, paper[name])
