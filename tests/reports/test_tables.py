"""One table in every format: what is marked, what is escaped, where sections begin."""

from __future__ import annotations

import csv
import io
import math

from supancl.reports.tables import (
    Cell,
    Table,
    cell_text,
    mark_for_rank,
    mean_text,
    to_html,
    to_latex,
    to_markdown,
    write_table,
)

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
