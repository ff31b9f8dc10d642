"""The suite's page: a table a protocol, the paired differences, and what was measured how; and the tables as files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supancl.errors import plural
from supancl.evaluate import queries_of, rankings, trained_on, unlike
from supancl.files import digest, jsonable, write_text
from supancl.reports.page import html_page
from supancl.reports.score_table import TableFormat, layout, score_table
from supancl.reports.tables import Cell, Table, to_html

FILES: dict[TableFormat, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
TABLE = re.compile(r"[A-Za-z0-9-]+\.(md|tex|csv)")  # no path that leads elsewhere
STYLE = """
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
        f"<h2>{html.escape(_title(protocol))}</h2><p>{html.escape(_how(protocol, results))}</p>"
        f"{to_html(layout(ranking))}"
        for protocol, ranking in tables.items()
    )
    several = any(ranking.compares for ranking in tables.values())
    marked = "; best in bold, second best underlined" if several else ""
    ranks = " Average ranks run over the data sets that every encoder has." if several else ""
    unfair = "".join(f"<li>{html.escape(line)}</li>" for line in (*unlike(results), *trained_on(results)))
    unfair = f"<p>Columns that do not compare:</p><ul>{unfair}</ul>" if unfair else ""
    body = f"""<h1>Evaluation suite</h1>
<p>Accuracy in percent{marked}. &plusmn; is the standard deviation over seeds of one
recipe, or, of a single few-shot result, the 95% interval over episodes.{ranks}</p>
{unfair}
{sections}
{_differences(told["differences"])}
{_data_sets(results)}
{_failures(told.get("failures", ()))}
{_conditions(results)}"""
    write_text(out / "index.html", html_page("Evaluation suite", body, STYLE))
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
    episodes = plural(one["episodes"], "episode", number_format=",")
    return f"{episodes} of {used}, seed {one['seed']}, the same for every encoder."


# --- tables -----------------------------------------------------------------------------------------------------------


def _differences(gaps: Sequence[dict[str, Any]]) -> str:
    if not gaps:
        return ""
    rows = [[f"{gap['a']} − {gap['b']}", _title(gap["protocol"]), gap["data"], _signed(gap)] for gap in gaps]
    return (
        "<h2>Differences on the same episodes</h2><p>Mean and 95% interval of the paired difference, in points; "
        "bold where the interval excludes zero. Seeds of one recipe are averaged first; the interval is that over "
        f"episodes.</p>{to_html(Table(['encoders', 'protocol', 'data', 'difference'], rows, 'lllr'))}"
    )


def _signed(gap: Mapping[str, Any]) -> Cell:
    """The difference with its interval, in bold where the interval excludes zero."""
    excludes_zero = abs(gap["difference"]) > gap["interval"]
    number = f"{gap['difference']:+.2f}".replace("-", "−")
    return Cell(number, f"{gap['interval']:.2f}", "best" if excludes_zero else "")


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
            f"{plural(len(dropped), 'class', 'classes')} too small: "
            f"{', '.join(dropped[:8])}{' ...' if len(dropped) > 8 else ''}"
        ]
        odd = (odd if dropped else []) + list(result.get("remarks", ()))
        metric = result["metric"] if result["protocol"] == "transfer" else "top-1"
        rows[result["task"], result["data"]] = [
            result["data"],
            _title(result["task"]),
            sizes,
            f"{result['classes']:,}",
            str(metric),
            "; ".join(odd),
        ]
    columns = ["data", "protocol", "images", "classes", "metric", "remarks"]
    return (
        "<h2>Data</h2><p>Images: references / queries of k-NN; train / validation / test of transfer; all of which "
        f"episodes are drawn.</p>{to_html(Table(columns, list(rows.values()), 'llrrlw'))}"
    )


def _failures(failures: Sequence[dict[str, str]]) -> str:
    if not failures:
        return ""
    rows = [[fault["encoder"], _title(fault["task"]), fault["data"], fault["why"]] for fault in failures]
    return f"<h2>Not measured</h2>{to_html(Table(['encoder', 'protocol', 'data', 'why'], rows, 'lllw'))}"


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
        f"<h2>Conditions</h2><ul>{encoders}</ul><p class='small'>{plural(len(results), 'result')}, "
        f"{seconds:.0f} s together; {html.escape(hardware)}; {html.escape(made)}; commit {html.escape(commits)}; "
        f"features of layer {html.escape(first['layer'])}{unit}.</p>"
    )
