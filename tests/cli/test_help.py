"""`supancl --help` is a table of contents."""

from __future__ import annotations

import pytest

from supancl.cli.commands import COMMANDS, PAPER
from supancl.cli.dispatch import build_parser
from tests.files import assert_refused, supancl


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(("words", "listed"), [((), COMMANDS), (("paper",), PAPER)])
def test_the_help_is_a_table_of_contents(words, listed, capsys):
    said = supancl(capsys, *words, "--help")
    lines = said.out.splitlines()
    assert said.code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert [name for name in named if name in {**COMMANDS, **PAPER}] == list(listed)


def test_whoever_names_no_command_sees_the_contents_and_has_done_nothing(capsys):
    said = supancl(capsys)
    assert said.code == 2
    assert said.err == build_parser().format_help()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("toy",), ("'paper toy'",)),
        (("thery",), ("'paper theory'",)),
        (("tabels",), ("'paper table'",)),
        (("evalute",), ("'evaluate'",)),
        (("paper", "tables"), ("'table'",)),
        (("knn",), ("'evaluate knn'",)),
        (("zzz",), tuple(COMMANDS)),
        (("paper",), tuple(PAPER)),
    ],
)
def test_an_unknown_command_is_answered_with_the_spelling_of_today(words, told, capsys):
    said = supancl(capsys, *words)
    assert_refused(said, *told)


@pytest.mark.parametrize("name", [*sorted({*COMMANDS} - {"paper"}), *(f"paper {name}" for name in PAPER)])
def test_every_command_that_reads_a_run_takes_a_plugin(name, capsys):
    words = {"evaluate": ["evaluate", "knn"], "data": ["data", "show"], "detect": ["detect", "train"]}
    assert "--plugin FILE" in supancl(capsys, *words.get(name, name.split()), "--help").out
