"""A ranking of encoders as text, CSV, Markdown, LaTeX or JSON: best in bold, second best underlined."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Literal

from supancl.errors import BadInput, nearest
from supancl.probes.ranking import Mark, Ranking, Score

TableFormat = Literal["text", "csv", "markdown", "latex", "json"]
LATEX_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def score_table(ranking: Ranking, form: TableFormat = "text", average: bool = False) -> str:
    """The table with a column for the average rank (of several encoders), and one for the average itself if wanted.

    >>> from supancl.probes.ranking import rank_encoders
    >>> print(score_table(rank_encoders({"byol": {"pets": 80.0}, "supbyol": {"pets": 82.5}}), "markdown"), end="")
    | Encoder | pets | Avg. rank |
    |---|---:|---:|
    | byol | <u>80.00</u> | 2.00 |
    | supbyol | **82.50** | 1.00 |
    """
    makers: dict[str, Callable[[Ranking, bool], str]] = {
        "text": _text,
        "csv": _csv,
        "markdown": _markdown,
        "latex": _latex,
        "json": _json,
    }
    if form not in makers:
        raise BadInput(f"table format {form!r}{nearest(form, makers)}")
    return makers[form](ranking, average)


def _header(ranking: Ranking, average: bool) -> list[str]:
    return ["Encoder", *ranking.datasets, *(["Avg."] if average else []), *(["Avg. rank"] if ranking.compares else [])]


def _fixed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def _rows(
    ranking: Ranking, average: bool, cell: Callable[[Score, Mark, int], str], name: Callable[[str], str] = str
) -> list[list[str]]:
    rows = []
    for row, encoder in enumerate(ranking.encoders):
        scores = [
            "" if score is None else cell(score, mark, ranking.digits)
            for score, mark in zip(ranking.cells[row], ranking.marks[row], strict=True)
        ]
        mean = [_fixed(ranking.averages[row], ranking.digits)] if average else []
        rank = [_fixed(ranking.average_ranks[row], 2)] if ranking.compares else []
        rows.append([name(encoder) + ranking.seeds(row), *scores, *mean, *rank])
    return rows


def _number(score: Score, digits: int, between: str) -> str:
    spread = "" if score.spread is None else f"{between}{score.spread:.{digits}f}"
    return f"{score.mean:.{digits}f}{spread}"


def _text(ranking: Ranking, average: bool) -> str:
    """Columns of equal width; * is the best, + the second best."""
    signs = {"best": "*", "second": "+", "": " " if ranking.compares else ""}
    body = _rows(ranking, average, lambda score, mark, digits: _number(score, digits, " ± ") + signs[mark])
    lines = [_header(ranking, average), *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def laid_out(line: Sequence[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        return "  ".join([line[0].ljust(widths[0]), *numbers]).rstrip()

    legend = ["* best, + second best"] if any(mark for row in ranking.marks for mark in row) else []
    if any(score is not None and score.spread is not None for row in ranking.cells for score in row):
        legend.append("± deviation over n seeds; without n, 95% interval over episodes")
    return "\n".join([*map(laid_out, lines), *legend]) + "\n"


def _csv(ranking: Ranking, average: bool) -> str:
    """Plain numbers: mean, spread and number of runs have columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = [name for data in ranking.datasets for name in (data, f"{data} spread", f"{data} n")]
    writer.writerow(["encoder", *parts, *["average"] * average, *["average rank"] * ranking.compares])
    for row, encoder in enumerate(ranking.encoders):
        cells: list[object] = []
        for score in ranking.cells[row]:
            cells += (
                ["", "", ""]
                if score is None
                else [score.mean, "" if score.spread is None else score.spread, score.runs]
            )
        ends = [ranking.averages[row]] * average + [ranking.average_ranks[row]] * ranking.compares
        writer.writerow([encoder, *cells, *("" if math.isnan(end) else end for end in ends)])
    return out.getvalue()


def _markdown(ranking: Ranking, average: bool) -> str:
    def cell(score: Score, mark: Mark, digits: int) -> str:
        number = _number(score, digits, " ± ")
        return f"**{number}**" if mark == "best" else f"<u>{number}</u>" if mark == "second" else number

    header = [name.replace("|", "\\|") for name in _header(ranking, average)]
    body = _rows(ranking, average, cell, lambda name: name.replace("|", "\\|"))
    lines = ["| " + " | ".join(line) + " |" for line in (header, *body)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(header) - 1), *lines[1:]]) + "\n"


def _latex(ranking: Ranking, average: bool) -> str:
    def cell(score: Score, mark: Mark, digits: int) -> str:
        number = _number(score, digits, r" $\pm$ ")
        return rf"\textbf{{{number}}}" if mark == "best" else rf"\underline{{{number}}}" if mark == "second" else number

    header = [name.translate(LATEX_SPECIAL) for name in _header(ranking, average)]
    body = _rows(ranking, average, cell, lambda name: name.translate(LATEX_SPECIAL))
    return (
        "\n".join(
            [
                rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
                r"\hline",
                " & ".join(header) + r" \\",
                r"\hline",
                *(" & ".join(line) + r" \\" for line in body),
                r"\hline",
                r"\end{tabular}",
            ]
        )
        + "\n"
    )


def _json(ranking: Ranking, average: bool) -> str:
    return json.dumps(ranking.to_json(), indent=2, ensure_ascii=False) + "\n"
