"""The suite's page: a table a protocol, the paired differences, and what was measured how; and the tables as files."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from supancl.errors import counted
from supancl.evaluate import queries_of, rankings, trained_on, unlike
from supancl.files import digest, write_text
from supancl.probes.ranking import Mark, Ranking, Score
from supancl.reports.alpha_page import STYLE
from supancl.reports.score_table import TableFormat, score_table
from supancl.weights.run_folder import jsonable

FILES: dict[TableFormat, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
TABLE = re.compile(r"[A-Za-z0-9-]+\.(md|tex|csv)")  # no path that leads elsewhere
MORE_STYLE = """
td, th { white-space: nowrap; } td.word, th.word { text-align: left; } td.word.long { white-space: normal; }
table { font-variant-numeric: tabular-nums; margin: .6rem 0 0; } .wide { overflow-x: auto; }
h2 { margin: 2rem 0 0; font-size: 1.25rem; } h2 + p { margin: .2rem 0 0; color: #555; font-size: .95rem; }
.spread { color: #888; font-size: .85em; } li { margin: .1rem 0; }
"""
TITLES = {"knn": "k nearest neighbours", "transfer": "Linear transfer"}


def write_suite(results: Sequence[dict[str, Any]], told: dict[str, Any], out: Path) -> Path:
    """index.html, suite.json and every table as Markdown, LaTeX and CSV.

    Tables of an earlier call that this page has not are removed: they would look like a part of it.
    """
    slim = [{key: value for key, value in result.items() if key != "accuracies"} for result in results]
    tables = rankings(results)
    texts = {
        f"{protocol.replace(' ', '-')}.{suffix}": score_table(ranking, form)
        for protocol, ranking in tables.items()
        for form, suffix in FILES.items()
    }
    _remove_earlier(out, keep=texts)
    for name, text in texts.items():
        write_text(out / name, text)
    files = {name: digest(out / name) for name in texts}
    write_text(out / "suite.json", json.dumps(jsonable({**told, "results": slim, "files": files}), indent=2) + "\n")
    sections = "".join(
        f"<h2>{html.escape(_title(protocol))}</h2><p>{html.escape(_how(protocol, results))}</p>{_ranked(ranking)}"
        for protocol, ranking in tables.items()
    )
    several = any(ranking.compares for ranking in tables.values())
    marked = "; best in bold, second best underlined" if several else ""
    ranks = " Average ranks run over the data sets that every encoder has." if several else ""
    unfair = "".join(f"<li>{html.escape(line)}</li>" for line in (*unlike(results), *trained_on(results)))
    unfair = f"<p>Columns that do not compare:</p><ul>{unfair}</ul>" if unfair else ""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Evaluation suite</title><style>{STYLE}{MORE_STYLE}</style></head><body>
<h1>Evaluation suite</h1>
<p>Accuracy in percent{marked}. &plusmn; is the standard deviation over seeds of one
recipe, or, of a single few-shot result, the 95% interval over episodes.{ranks}</p>
{unfair}
{sections}
{_differences(told["differences"])}
{_data_sets(results)}
{_failures(told.get("failures", ()))}
{_conditions(results)}
</body></html>
"""
    write_text(out / "index.html", page)
    return out / "index.html"


def _remove_earlier(out: Path, keep: Iterable[str]) -> None:
    """The tables that the last suite.json says it wrote, as long as they are still what was written."""
    try:
        files = json.loads((out / "suite.json").read_text(encoding="utf-8")).get("files", {})
        earlier = {str(name): str(checksum) for name, checksum in files.items()}
    except (OSError, ValueError, AttributeError):
        return
    for name in earlier.keys() - set(keep):
        path = out / name
        if TABLE.fullmatch(name) and path.is_file() and digest(path) == earlier[name]:
            path.unlink()


def _title(protocol: str) -> str:
    """`fewshot 5w1s` -> `Few-shot, 5-way 1-shot`."""
    kind, _, episode = protocol.partition(" ")
    if kind != "fewshot":
        return TITLES.get(protocol, protocol)
    ways, _, shots = episode.removesuffix("s").partition("w")
    return f"Few-shot, {ways}-way {shots}-shot"


def _how(protocol: str, results: Sequence[dict[str, Any]]) -> str:
    one = next(result for result in results if result["task"] == protocol)
    if one["protocol"] == "knn":
        return (
            f"k = {one['k']}, {one['metric']}, temperature {one['temperature']:g}; test images among training "
            "images, top-1."
        )
    if one["protocol"] == "transfer":
        among = one.get("tried") or one["weights"]  # the older name
        return (
            f"Logistic regression on frozen features; of {len(among)} regularisers the best on "
            "validation, refitted on train and validation, tested once."
        )
    used = queries_of([result for result in results if result["task"] == protocol])
    return f"{counted(one['episodes'], 'episode', form=',')} of {used}, seed {one['seed']}, the same for every encoder."


# --- tables -----------------------------------------------------------------------------------------------------------


def _html(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = (), long: str = "") -> str:
    """Cells are HTML already. The first column and those named hold words, the others numbers; `long` may wrap."""
    kinds = [
        ' class="word long"' if name == long else ' class="word"' if i == 0 or name in words else ""
        for i, name in enumerate(head)
    ]
    top = "".join(f"<th{kind}>{cell}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _ranked(ranking: Ranking) -> str:
    def cell(score: Score | None, mark: Mark) -> str:
        if score is None:
            return ""
        number = f"{score.mean:.{ranking.digits}f}"
        number = {"best": f"<b>{number}</b>", "second": f"<u>{number}</u>", "": number}[mark]
        if score.spread is None:
            return number
        return f'{number} <span class="spread">&plusmn; {score.spread:.{ranking.digits}f}</span>'

    rows = []
    for i, name in enumerate(ranking.encoders):
        seeds = f'<span class="spread">{ranking.seeds(i)}</span>' if ranking.seeds(i) else ""
        cells = [cell(score, mark) for score, mark in zip(ranking.cells[i], ranking.marks[i], strict=True)]
        rank = f"{ranking.average_ranks[i]:.2f}" if math.isfinite(ranking.average_ranks[i]) else ""
        rows.append([html.escape(name) + seeds, *cells, *[rank] * ranking.compares])
    return _html(["encoder", *map(html.escape, ranking.datasets), *["avg. rank"] * ranking.compares], rows)


def _differences(gaps: Sequence[dict[str, Any]]) -> str:
    if not gaps:
        return ""
    rows = [
        [
            f"{html.escape(gap['a'])} &minus; {html.escape(gap['b'])}",
            html.escape(_title(gap["protocol"])),
            html.escape(gap["data"]),
            _signed(gap["difference"], gap["interval"]),
        ]
        for gap in gaps
    ]
    return (
        "<h2>Differences on the same episodes</h2><p>Mean and 95% interval of the paired difference, in points; "
        "bold where the interval excludes zero. Seeds of one recipe are averaged first; the interval is that over "
        f"episodes.</p>{_html(['encoders', 'protocol', 'data', 'difference'], rows, ['protocol', 'data'])}"
    )


def _signed(difference: float, interval: float) -> str:
    number = f"{difference:+.2f}".replace("-", "&minus;")
    number = f"<b>{number}</b>" if abs(difference) > interval else number
    return f'{number} <span class="spread">&plusmn; {interval:.2f}</span>'


def _data_sets(results: Sequence[dict[str, Any]]) -> str:
    """What each figure was measured on: images, classes, metric, and what is odd about it."""
    rows = {}
    for result in results:
        images = result.get("images", "")
        if result["protocol"] == "knn":
            images = [result["references"], result["queries"]]
        sizes = " / ".join(f"{size:,}" for size in images) if isinstance(images, list) else f"{images:,}"
        dropped = result.get("dropped") or []
        odd = [
            f"{counted(len(dropped), 'class', 'classes')} too small: "
            f"{', '.join(dropped[:8])}{' ...' if len(dropped) > 8 else ''}"
        ]
        odd = (odd if dropped else []) + list(result.get("remarks", ()))
        metric = result["metric"] if result["protocol"] == "transfer" else "top-1"
        rows[result["task"], result["data"]] = [
            html.escape(result["data"]),
            html.escape(_title(result["task"])),
            sizes,
            f"{result['classes']:,}",
            html.escape(str(metric)),
            html.escape("; ".join(odd)),
        ]
    head = ["data", "protocol", "images", "classes", "metric", "remarks"]
    return (
        "<h2>Data</h2><p>Images: references / queries of k-NN; train / validation / test of transfer; all of which "
        f"episodes are drawn.</p>{_html(head, list(rows.values()), ['protocol', 'metric'], 'remarks')}"
    )


def _failures(failures: Sequence[dict[str, str]]) -> str:
    if not failures:
        return ""
    rows = [
        [
            html.escape(fault["encoder"]),
            html.escape(_title(fault["task"])),
            html.escape(fault["data"]),
            html.escape(fault["why"]),
        ]
        for fault in failures
    ]
    return f"<h2>Not measured</h2>{_html(['encoder', 'protocol', 'data', 'why'], rows, ['protocol', 'data'], 'why')}"


def _conditions(results: Sequence[dict[str, Any]]) -> str:
    first = results[0]
    made = "; ".join(
        dict.fromkeys(
            ", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results
        )
    )  # results of earlier calls may be of others
    encoders = "".join(
        f"<li>{html.escape(label)}: <code>{html.escape(where)}</code></li>"
        for where, label in {result["encoder"]: result["label"] for result in results}.items()
    )
    seconds = sum(result["seconds"] for result in results)
    hardware = "; ".join(dict.fromkeys(str(result["hardware"]) for result in results))
    commits = ", ".join(dict.fromkeys(str(result["commit"]) for result in results))
    unit = ", of unit length" if first["normalize"] else ""
    return (
        f"<h2>Conditions</h2><ul>{encoders}</ul><p class='small'>{counted(len(results), 'result')}, "
        f"{seconds:.0f} s together; {html.escape(hardware)}; {html.escape(made)}; commit {html.escape(commits)}; "
        f"features of layer {html.escape(first['layer'])}{unit}.</p>"
    )
