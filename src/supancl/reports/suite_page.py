"""The suite's page: a table per protocol, paired differences and conditions; and the tables as files."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supancl.errors import plural
from supancl.evaluation import describe_queries_used, different_images_warnings, overlap_warnings, rankings
from supancl.evaluation.comparison import row_labels
from supancl.evaluation.naming import figure_of
from supancl.files import digest, jsonable, read_json, write_text
from supancl.probes.ranking import Ranking
from supancl.reports.page import html_page
from supancl.reports.score_table import TableFormat, ranking_table, score_table
from supancl.reports.tables import Cell, Table, to_html

SUFFIXES: dict[TableFormat, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
TABLE_NAME = re.compile(r"[A-Za-z0-9-]+\.(md|tex|csv)")  # never a path to another folder
TITLES = {"knn": "k nearest neighbours", "transfer": "Linear transfer"}


def write_suite(results: Sequence[dict[str, Any]], summary: dict[str, Any], out: Path) -> Path:
    """Write index.html, suite.json and every table as Markdown, LaTeX and CSV; returns the page's path.

    Tables of an earlier call that this page does not have are removed.
    """
    compact = [{key: value for key, value in result.items() if key != "accuracies"} for result in results]
    tables = rankings(results)
    texts = {
        f"{protocol.replace(' ', '-')}.{suffix}": score_table(ranking, form)
        for protocol, ranking in tables.items()
        for form, suffix in SUFFIXES.items()
    }
    _remove_earlier(out, keep=texts)
    for name, text in texts.items():
        write_text(out / name, text)
    files = {name: digest(out / name) for name in texts}
    write_text(
        out / "suite.json", json.dumps(jsonable({**summary, "results": compact, "files": files}), indent=2) + "\n"
    )
    sections = "".join(
        f"<h2>{html.escape(_title(protocol))}</h2><p>{html.escape(_describe(protocol, results))}</p>"
        f"{to_html(ranking_table(ranking))}"
        for protocol, ranking in tables.items()
    )
    figures = "Accuracy, or mAP where the column says so," if any("map" in result for result in results) else "Accuracy"
    has_marks = any(mark for ranking in tables.values() for row in ranking.marks for mark in row)
    marks_note = "; best in bold, second best underlined" if has_marks else ""
    has_ranks = any(ranking.has_ranks for ranking in tables.values())
    ranks_note = " Average ranks run over the data sets that every encoder has." if has_ranks else ""
    warnings = "".join(
        f"<li>{html.escape(line)}</li>" for line in (*different_images_warnings(results), *overlap_warnings(results))
    )
    warnings = f"<p>Columns that cannot be compared:</p><ul>{warnings}</ul>" if warnings else ""
    answer = suite_answer(tables.values(), summary["differences"])
    answer = f'<p class="answer">{html.escape(answer)}</p>' if answer else ""
    body = f"""<h1>Evaluation suite</h1>
{answer}
<p>{figures} in percent{marks_note}. &plusmn; is the standard deviation over seeds of one
recipe, or, for a single few-shot result, the 95% interval over episodes.{ranks_note}</p>
{warnings}
{sections}
{_differences(summary["differences"])}
{_data_sets(results)}
{_failures(summary.get("failures", ()))}
{_conditions(results)}"""
    write_text(out / "index.html", html_page("Evaluation suite", body))
    return out / "index.html"


def suite_answer(tables: Iterable[Ranking], gaps: Sequence[Mapping[str, Any]]) -> str:
    """Which encoder has the highest figures, and how many differences are clear; empty with nothing to compare.

    Only differences on the same episodes have an interval; a highest figure may be chance.

    >>> from supancl.probes.ranking import rank_encoders
    >>> table = rank_encoders({"a": {"pets": 80.0, "dtd": 60.0, "sun": 7.0}, "b": {"pets": 81.0, "dtd": 50.0}})
    >>> suite_answer([table], [{"difference": 2.0, "interval": 0.5}])
    'Of 3 columns, a is highest in 2, b in 1. Of 1 difference on the same episodes, 1 is clear.'
    """
    columns = [
        [name for name, mark in zip(table.encoders, marks, strict=True) if mark == "best"]
        for table in tables
        for marks in zip(*table.marks, strict=True)
        if "best" in marks
    ]
    if not columns:
        return ""
    wins = Counter(name for best in columns for name in best).most_common()
    shares = [f"{name}{' is highest' * (not place)} in {count}" for place, (name, count) in enumerate(wins)]
    clear = sum(_excludes_zero(gap) for gap in gaps)
    return f"Of {plural(len(columns), 'column')}, {', '.join(shares)}." + (
        f" Of {plural(len(gaps), 'difference')} on the same episodes, {clear} {'is' if clear == 1 else 'are'} clear."
        if gaps
        else ""
    )


def _remove_earlier(out: Path, keep: Iterable[str]) -> None:
    """Remove the tables listed in the last suite.json, unless they were edited since."""
    files = read_json(out / "suite.json").get("files")
    earlier = {str(name): str(checksum) for name, checksum in files.items()} if isinstance(files, dict) else {}
    for name in earlier.keys() - set(keep):
        path = out / name
        if TABLE_NAME.fullmatch(name) and path.is_file() and digest(path) == earlier[name]:
            path.unlink()


def _title(protocol: str) -> str:
    """`fewshot 5w1s` -> `Few-shot, 5-way 1-shot`."""
    kind, _, episode = protocol.partition(" ")
    if kind != "fewshot":
        return TITLES.get(protocol, protocol)
    ways, _, shots = episode.removesuffix("s").partition("w")
    return f"Few-shot, {ways}-way {shots}-shot"


def _describe(protocol: str, results: Sequence[dict[str, Any]]) -> str:
    result = next(result for result in results if result["task"] == protocol)
    if result["protocol"] == "knn":
        return (
            f"k = {result['k']}, {result['metric']}, temperature {result['temperature']:g}; test images among training "
            f"images, {'mAP' if 'map' in result else 'top-1'}."
        )
    if result["protocol"] == "transfer":
        return (
            f"Logistic regression on frozen features; the best of {len(result['tried'])} regularisers on "
            "validation, refitted on train and validation, tested once."
        )
    queries = describe_queries_used([result for result in results if result["task"] == protocol])
    episodes = plural(result["episodes"], "episode", number_format=",")
    return f"{episodes} of {queries}, seed {result['seed']}, the same for every encoder."


# --- tables -----------------------------------------------------------------------------------------------------------


def _differences(gaps: Sequence[dict[str, Any]]) -> str:
    if not gaps:
        return ""
    rows = [[f"{gap['a']} − {gap['b']}", _title(gap["protocol"]), gap["data"], _signed(gap)] for gap in gaps]
    return (
        "<h2>Differences on the same episodes</h2><p>Mean and 95% interval of the paired difference, in points; "
        "bold if the interval excludes zero. Seeds of one recipe are averaged first; the interval is over "
        f"episodes.</p>{to_html(Table(['encoders', 'protocol', 'data', 'difference'], rows, 'lllr'))}"
    )


def _excludes_zero(gap: Mapping[str, Any]) -> bool:
    return bool(abs(gap["difference"]) > gap["interval"])


def _signed(gap: Mapping[str, Any]) -> Cell:
    """The difference with its interval, in bold if the interval excludes zero."""
    number = f"{gap['difference']:+.2f}".replace("-", "−")
    return Cell(number, f"{gap['interval']:.2f}", "best" if _excludes_zero(gap) else "")


def _data_sets(results: Sequence[dict[str, Any]]) -> str:
    """The data of each result: images, classes, metric and remarks."""
    rows = {}
    halves: dict[tuple[str, str], float] = {}
    for result in results:
        key = result["task"], result["data"]
        halves[key] = max(halves.get(key, 0.0), _half_interval(result))
        images = result.get("images", "")
        if result["protocol"] == "knn":
            images = [result["references"], result["queries"]]
        sizes = " / ".join(f"{size:,}" for size in images) if isinstance(images, list) else f"{images:,}"
        dropped = result.get("dropped") or []
        remarks = [
            f"{plural(len(dropped), 'class', 'classes')} too small: "
            f"{', '.join(dropped[:8])}{' ...' if len(dropped) > 8 else ''}"
        ]
        remarks = (remarks if dropped else []) + list(result.get("remarks", ()))
        metric = result["metric"] if result["protocol"] == "transfer" and "map" not in result else "top-1"
        metric = "mAP" if "map" in result else metric
        rows[key] = [
            result["data"],
            _title(result["task"]),
            sizes,
            f"{result['classes']:,}",
            str(metric),
            f"± {halves[key]:.1f}" if halves[key] else "",
            "; ".join(remarks),
        ]
    columns = ["data", "protocol", "images", "classes", "metric", "interval", "remarks"]
    return (
        "<h2>Data</h2><p>Images: references / queries of k-NN; train / validation / test of transfer; all images "
        "of few-shot. Interval: half of the widest 95% interval of a single result, over test images or episodes, in "
        f"points.</p>{to_html(Table(columns, list(rows.values()), 'llrrlrw'))}"
    )


def _half_interval(result: Mapping[str, Any]) -> float:
    """Half of a result's 95% interval; 0 if it has none."""
    figure = figure_of(result)
    low, high = (figure.interval if figure else None) or (0.0, 0.0)
    return float(result.get("interval") or (high - low) / 2)


def _failures(failures: Sequence[dict[str, str]]) -> str:
    if not failures:
        return ""
    rows = [[fault["encoder"], _title(fault["task"]), fault["data"], fault["why"]] for fault in failures]
    return f"<h2>Not measured</h2>{to_html(Table(['encoder', 'protocol', 'data', 'why'], rows, 'lllw'))}"


def _conditions(results: Sequence[dict[str, Any]]) -> str:
    first, names = results[0], row_labels(results)
    libraries = "; ".join(
        dict.fromkeys(
            ", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results
        )
    )  # earlier calls may have used other versions
    encoders = "".join(
        f"<li>{html.escape(name)}: <code>{html.escape(path)}</code></li>"
        for path, name in {result["encoder"]: names[result["group"]] for result in results}.items()
    )
    seconds = sum(result["seconds"] for result in results)
    hardware = "; ".join(dict.fromkeys(str(result["hardware"]) for result in results))
    commits = ", ".join(dict.fromkeys(str(result["commit"]) for result in results))
    unit = ", of unit length" if first["normalize"] else ""
    return (
        f"<h2>Conditions</h2><ul>{encoders}</ul><p class='small'>{plural(len(results), 'result')}, "
        f"{seconds:.0f} s in total; {html.escape(hardware)}; {html.escape(libraries)}; commit {html.escape(commits)}; "
        f"features of layer {html.escape(first['layer'])}{unit}.</p>"
    )
