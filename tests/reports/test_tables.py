"""One table in every format: what is marked, what is escaped, where sections begin."""

from __future__ import annotations

import csv
import io
import math

import pytest

from supancl.errors import BadInput
from supancl.reports.tables import (
    FORMATS,
    LEGEND,
    Cell,
    Table,
    cell_text,
    mark_for_rank,
    mean_text,
    to_html,
    to_latex,
    to_markdown,
    to_text,
    to_text_within,
    write_table,
)
from tests.files import assert_mentions, mentions

TABLE = Table(
    ["name", Cell("alpha", latex=r"$\alpha$")],
    [
        "first_part",
        ["a|b", Cell("80.0", "0.5", "best", "(81.0)")],
        ["c & d", Cell("7.0", mark="second")],
        "second part",
        ["<e>", ""],
    ],
    align="lr",
    caption="A table",
    notes=["a note"],
)


def test_text_has_columns_of_equal_width() -> None:
    assert to_text(TABLE) == (
        "A table\n\n"
        "name                alpha\n"
        "-----  ------------------\n"
        "first_part\n"
        "a|b    80.0 ± 0.5* (81.0)\n"
        "c & d                7.0+\n"
        "second part\n"
        "<e>\n"
        "\n"
        "* best, + second best\n"
        "a note\n"
    )


def test_text_without_a_caption_is_the_table_alone() -> None:
    assert to_text(Table(["a", "b"], [["x", "1.5"]], "lr")) == "a    b\nx  1.5\n"


def test_a_table_wider_than_the_terminal_is_divided_by_columns() -> None:
    """Every block names its rows and its sections; caption, legend and notes are there once, wrapped."""
    names = [f"data set {i}" for i in range(9)]
    numbers = [Cell(f"{i}0.5", "0.3", "best" if i == 7 else "") for i in range(9)]
    wide = Table(["method", "EMA", *names], ["part", ["supsiam", "no", *numbers]], "ll" + 9 * "r", "A", ["a " * 60])
    lines = to_text(wide, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split("  ")[0] for line in lines if line.startswith(("method", "part", "supsiam"))] == 3 * [
        "method",
        "part",
        "supsiam",
    ]
    shown = " ".join(lines)
    assert all(shown.count(text) == 1 for text in (*names, *(f"{i}0.5 ± 0.3" for i in range(9)), LEGEND))
    assert len(to_text(wide).splitlines()) == 9  # a file has no edge
    # words of half a line or more: the first alone names a row
    long = Table(["run", "what", "a", "b"], [["x", "w" * 50, "1" * 30, "2" * 30]], "llrr")
    assert [line.split() for line in to_text(long, 70).splitlines()] == [
        ["run", "what"], ["x", "w" * 50], [], ["run", "a", "b"], ["x", "1" * 30, "2" * 30]
    ]  # fmt: skip


def test_optional_columns_are_left_out_if_the_others_fit_then() -> None:
    table = Table(["run", "a", "b"], [["x", "1" * 30, "2" * 30]], "lrr", "A table")
    assert "left out" not in to_text_within(table, 70, ["a"], "FILE")
    assert_mentions(to_text_within(table, 40, ["a"], "FILE"), "left out", "FILE")
    in_blocks = to_text_within(table, 20, ["a"], "FILE")
    assert "left out" not in in_blocks
    assert "1" * 30 in in_blocks


def test_markdown_escapes_what_ends_a_cell() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "**A table**",
        "",
        "| name | alpha |",
        "| --- | ---: |",
        "| *first_part* |  |",
        "| a\\|b | **80.0 ± 0.5** (81.0) |",
        "| c & d | <u>7.0</u> |",
        "| *second part* |  |",
        "| <e> |  |",
        "",
        "- a note",
    ]
    assert to_markdown(Table(["a*"], [["b*"]]), {"*": r"\*"}) == "| a\\* |\n| --- |\n| b\\* |\n"


def test_latex_has_its_own_signs_columns_and_rules() -> None:
    lines = to_latex(TABLE, "l|c", {" d": r" \delta"}).splitlines()
    assert lines[:6] == [
        "% A table",
        "% a note",
        r"\begin{tabular}{l|c}",
        r"\toprule",
        r"name & $\alpha$ \\",
        r"\midrule",
    ]
    assert lines[6:] == [
        r"\multicolumn{2}{l}{first\_part} \\",
        r"a|b & \textbf{80.0 $\pm$ 0.5} (81.0) \\",
        r"c \& \delta & \underline{7.0} \\",
        r"\midrule",
        r"\multicolumn{2}{l}{second part} \\",
        r"<e> &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert to_latex(Table(["a"], [["~\\"]])).splitlines() == [
        r"\begin{tabular}{l}",
        r"\toprule",
        r"a \\",
        r"\midrule",
        r"\textasciitilde{}\textbackslash{} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_html_escapes_every_cell() -> None:
    text = to_html(Table(["<a>", "b", "c"], [["x & y", Cell("−1.0", "0.5", "best"), "long"]], "lrw"))
    assert '<th class="word">&lt;a&gt;</th><th>b</th><th class="word long">c</th>' in text
    assert '<td class="word">x &amp; y</td><td><b>&minus;1.0</b> <span class="spread">&plusmn; 0.5</span></td>' in text


def test_csv_is_read_back() -> None:
    rows = list(csv.reader(io.StringIO(write_table(Table(["a", "b"], [["x, y", "1.5"]]), "csv"))))
    assert rows == [["a", "b"], ["x, y", "1.5"]]


def test_only_formats_that_there_are() -> None:
    assert set(FORMATS) == {"text", "markdown", "latex", "csv"}
    with pytest.raises(BadInput, match=mentions("latx", "latex")):
        write_table(TABLE, "latx")


def test_cells() -> None:
    assert [mark_for_rank(place) for place in range(4)] == ["best", "second", "", ""]
    assert cell_text(Cell("1", "2", "best", "(3)")) == "1 ± 2* (3)"
    assert cell_text(Cell("", suffix="(3)")) == "(3)"
    assert [mean_text(*values, 1) for values in ((1.0, 0.5), (1.0, None), (1.0, math.nan), (None, 0.5))] == [
        "1.0 ± 0.5",
        "1.0",
        "1.0",
        "-",
    ]
