"""The suite's page: a table a protocol, the paired differences, and what was measured how; and the tables as files."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supancl.judge.suite import rankings
from supancl.report.alpha_page import STYLE
from supancl.report.score_table import score_table
from supancl.run import jsonable

FILES = {"markdown": "md", "latex": "tex", "csv": "csv"}


def write_suite(results: Sequence[dict[str, Any]], told: dict[str, Any], out: Path) -> Path:
    """index.html, suite.json and every table as Markdown, LaTeX and CSV."""
    slim = [{key: value for key, value in result.items() if key != "accuracies"} for result in results]
    content = {**told, "results": slim}
    (out / "suite.json").write_text(json.dumps(jsonable(content), indent=2) + "\n", encoding="utf-8")
    tables = rankings(results)
    for protocol, ranking in tables.items():
        for form, suffix in FILES.items():
            path = out / f"{protocol.replace(' ', '-')}.{suffix}"
            path.write_text(score_table(ranking, form), encoding="utf-8")  # type: ignore[arg-type]
    sections = "".join(f"<h2>{html.escape(protocol)}</h2>{_table(score_table(ranking, 'markdown'))}"
                       for protocol, ranking in tables.items())
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Evaluation suite</title><style>{STYLE}
td:first-child, th:first-child {{ text-align: left; }}</style></head><body>
<h1>Evaluation suite</h1>
<p>Accuracy in percent; best in bold, second best underlined; seeds of one recipe are averaged, &plusmn; is their
standard deviation. Average ranks run over the data sets that every encoder has.</p>
{sections}
{_differences(told["differences"])}
{_conditions(results)}
</body></html>
"""
    path = out / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _table(markdown: str) -> str:
    """Our own Markdown tables as HTML: cells hold numbers, ** and <u>."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in markdown.splitlines() if line]

    def cell(text: str, kind: str) -> str:
        bold = text.startswith("**")
        lined = text.startswith("<u>")
        plain = html.escape(text.strip("*").removeprefix("<u>").removesuffix("</u>"))
        inner = f"<b>{plain}</b>" if bold else f"<u>{plain}</u>" if lined else plain
        return f"<{kind}>{inner}</{kind}>"

    body = "".join("<tr>" + "".join(cell(text, "td") for text in row) + "</tr>" for row in rows)
    top = "".join(cell(text, "th") for text in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _differences(gaps: Sequence[dict[str, Any]]) -> str:
    if not gaps:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(gap['a'])} &minus; {html.escape(gap['b'])}</td><td>{html.escape(gap['protocol'])}</td>"
        f"<td>{html.escape(gap['data'])}</td><td>{gap['difference']:+.2f} &plusmn; {gap['interval']:.2f}</td></tr>"
        for gap in gaps
    )
    return ("<h2>Differences on the same episodes</h2><p>Mean and 95% interval of the paired difference, in points.</p>"
            f"<table><thead><tr><th>encoders</th><th>protocol</th><th>data</th><th>difference</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>")


def _conditions(results: Sequence[dict[str, Any]]) -> str:
    first = results[0]
    made = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    encoders = "".join(f"<li>{html.escape(where)}</li>" for where in dict.fromkeys(r["encoder"] for r in results))
    seconds = sum(result["seconds"] for result in results)
    return (f"<h2>Conditions</h2><ul>{encoders}</ul><p class='small'>{len(results)} results, {seconds:.0f} s; "
            f"{html.escape(str(first['hardware']))}; {html.escape(made)}; commit {html.escape(str(first['commit']))}; "
            f"features of layer {html.escape(first['layer'])}.</p>")
