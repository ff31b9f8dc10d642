"""Names with control characters: they are shown as escapes and cannot forge a line, a cell or a formula."""

from __future__ import annotations

import csv
import io
import unicodedata

import pytest

from supancl.cli.commands import print_error
from supancl.errors import make_visible
from supancl.reports.tables import FORMATS, Cell, Table, plain_table, write_table
from supancl.reports.terminal import SafeConsole, Terminal

NASTY = "cat\x1b[2K\r\nsupancl: all is well\u202e\udc80\x9b"
VISIBLE = r"cat\x1b[2K\r\nsupancl: all is well\u202e\udc80\x9b"


def assert_harmless(text: str, lines: int | None = None) -> None:
    """Nothing but line ends could act on a terminal, and none of the lines is forged."""
    assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Cf", "Zl", "Zp")], text
    assert not any(line.strip().startswith("supancl: all is well") for line in text.splitlines()), text
    assert lines is None or len(text.splitlines()) == lines, text


def test_make_visible():
    assert make_visible(NASTY) == VISIBLE
    assert make_visible("a\nb\x07", keep="\n") == "a\nb\\x07"
    assert make_visible("\U000e0041\u2028\x7f") == r"\U000e0041\u2028\x7f"
    for plain in ("Müller's cat 猫", "a\u00a0b", "\U0001f469\u200d\U0001f680", "می\u200cخواهم", "C:\\x1b"):
        assert make_visible(plain) == plain


@pytest.mark.parametrize("form", FORMATS)
def test_tables_keep_a_name_in_its_cell(form):
    made = Table(["name", NASTY], [[NASTY, Cell(NASTY, "best")]], "lr", caption=NASTY, notes=[NASTY])
    assert_harmless(write_table(made, form))
    plain = Table(["name", "value"], [["cat", Cell("1.5", "best")]], "lr", caption="c", notes=["n"])
    assert len(write_table(made, form).splitlines()) == len(write_table(plain, form).splitlines())


def test_csv_has_no_formula():
    texts = ["=1+1", "+1+1", "-x", "@SUM(A1)", " =1+1", "-0.5", "+3", "-1e-5", "-inf", "cat", "a=b", ""]
    written = list(csv.reader(io.StringIO(write_table(Table(["=name"], [[text] for text in texts]), "csv"))))
    expected = ["'=name", "'=1+1", "'+1+1", "'-x", "'@SUM(A1)", "' =1+1", *texts[5:-1]]
    assert [row[0] for row in written if row and row[0]] == expected


def test_every_exit_of_the_terminal(capsys):
    console = SafeConsole(stderr=False)
    console.width = 400
    terminal = Terminal(console)
    terminal.note(NASTY)
    terminal.warn(NASTY)
    terminal.on_progress(NASTY, 0, 0)
    terminal.show(plain_table(NASTY, ["name", NASTY], [[NASTY, NASTY]]))
    console.print(f"{make_visible(NASTY)}\n\x1b[31mtwo lines\n", end="")
    print_error(NASTY)
    said = capsys.readouterr()
    assert_harmless(said.out)
    assert_harmless(said.err, lines=2)
    assert VISIBLE in said.out
    assert VISIBLE in said.err
