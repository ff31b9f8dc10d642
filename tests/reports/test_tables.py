"""One table in every format: what is marked, what is escaped, where sections begin."""

from __future__ import annotations

import csv
import io
import math

from supancl.reports.tables import (
    Cell,
    Table,
    mark_best,
    mean_text,
    to_html,
    to_latex,
    to_markdown,
    to_text,
    write_table,
)

TABLE = Table(
    ["name", "alpha*"],
    [
        "first_part",
        ["a|b", Cell("80.0 ± 0.5", "best")],
        ["c & d", Cell("7.0", "second")],
        "second part",
        ["<e>", ""],
    ],
    align="lr",
    caption="A table",
    notes=["a note"],
)


def test_text_is_aligned_and_drops_optional_columns_where_it_is_too_wide() -> None:
    lines = to_text(TABLE).splitlines()
    assert lines[:2] == ["A table", ""]
    assert [line.split() for line in lines[2:]] == [
        ["name", "alpha*"], ["-----", "-" * 11], ["first_part"], ["a|b", "80.0", "±", "0.5*"],
        ["c", "&", "d", "7.0+"], ["second", "part"], ["<e>"], [], ["*", "best,", "+", "second", "best"], ["a", "note"],
    ]  # fmt: skip
    assert {len(lines[number]) for number in (2, 3, 5, 6)} == {18}
    narrow = to_text(Table(["run", "data", "k-NN"], [["a" * 10, "b" * 10, "80"]], optional=("data",)), 20)
    assert narrow.splitlines()[:2] == ["run         k-NN", "aaaaaaaaaa  80"]


def test_markdown_escapes_what_ends_a_cell() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "**A table**",
        "",
        "| name | alpha\\* |",
        "| --- | ---: |",
        "| *first_part* |  |",
        "| a\\|b | **80.0 ± 0.5** |",
        "| c & d | <u>7.0</u> |",
        "| *second part* |  |",
        "| <e> |  |",
        "",
        "- a note",
    ]


def test_latex_has_its_own_signs_and_rules() -> None:
    assert to_latex(TABLE).splitlines() == [
        "% A table",
        "% a note",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & alpha$^*$ \\",
        r"\midrule",
        r"\multicolumn{2}{l}{first\_part} \\",
        r"a|b & \textbf{80.0 $\pm$ 0.5} \\",
        r"c \& d & \underline{7.0} \\",
        r"\midrule",
        r"\multicolumn{2}{l}{second part} \\",
        r"<e> &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert r"\textasciitilde{}\textbackslash{} \\" in to_latex(Table(["a"], [["~\\"]]))


def test_html_escapes_every_cell() -> None:
    text = to_html(Table(["<a>", "b", "c"], [["x & y", Cell("−1.0", "best"), "long"]], "lrw"))
    assert '<th class="word">&lt;a&gt;</th><th>b</th><th class="word long">c</th>' in text
    assert '<td class="word">x &amp; y</td><td><b>−1.0</b></td>' in text


def test_csv_is_read_back() -> None:
    rows = list(csv.reader(io.StringIO(write_table(Table(["a", "b"], [["x, y", "1.5"]]), "csv"))))
    assert rows == [["a", "b"], ["x, y", "1.5"]]


def test_means_and_marks() -> None:
    assert mark_best([80.001, 79.0, None, 80.0, math.nan], 2) == ["best", "second", "", "best", ""]
    assert mark_best([80.0, 80.0], 2) == ["", ""]
    values = ((1.0, 0.5), (1.0, None), (1.0, math.nan), (1.0, math.inf), (None, 0.5))
    assert [mean_text(*value, 1) for value in values] == ["1.0 ± 0.5", "1.0", "1.0", "1.0", "-"]
