"""The report of one or several runs: one HTML page with a verdict, curves, evaluations, recipe, data and conditions."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from supancl.errors import plural
from supancl.reports.evaluation_tables import evaluations_html
from supancl.reports.page import charts, html_page
from supancl.reports.run_record import RunRecord, format_interval, is_number
from supancl.reports.tables import Cell, Row, Table, to_html
from supancl.reports.training_images import TrainingImages, images_html
from supancl.reports.verdict import Verdict, find_verdict, rank_bound
from supancl.stats import duration
from supancl.training.monitor import COLLAPSED_STD
from supancl.version import __version__

# shown first; all others are behind a click
MAIN_SETTINGS = (
    "method", "data.source", "data.limit", "data.labelled", "encoder.name", "views.size", "loss.kind", "loss.alpha",
    "loss.temperature", "pool.kind", "pool.size", "branches.target", "branches.momentum", "optimizer.name",
    "optimizer.lr", "optimizer.reference_batch", "optimizer.weight_decay", "schedule.warmup_epochs", "train.epochs",
    "train.batch_size", "train.seed", "train.precision", "compat",
)  # fmt: skip
# a setting -> the one that it belongs to, and the values with which it is not used
USED_UNLESS = {
    "pool.size": ("pool.kind", ("none",)),
    "branches.momentum": ("branches.target", ("shared", "stop-gradient")),
}
NOT_A_SETTING = ("name", "paper")
LAST_CHECK = (
    '<p class="small">Values of the last check while training, in brackets 95% intervals. The linear accuracy to '
    "report is that of <code>supancl evaluate linear</code>, which tunes the classifier and uses all training "
    "images.</p>"
)
WORDS = {
    "k-NN, linear": "share of held-out images that get their label from the nearest training images, or from a linear "
    "classifier on the features",
    "targets": "what the network has to predict for a batch: its projections of the images",
    "effective rank": "how many directions the targets use; a fall towards 1 is a collapse",
    "relative std": "how far the targets are spread: 1 evenly, 0 all images get the same one",
    "S_W/S_T": "share of the features' variance that lies within classes; the lower, the tighter the classes",
    "pool": "the stored targets of earlier batches; an image is drawn to those of its class",
}


def report_page(records: Mapping[str, RunRecord], images: Mapping[str, TrainingImages] | None = None) -> str:
    """The page of these runs by name; `images` are those of the runs that have some to show."""
    verdicts = {name: find_verdict(record) for name, record in records.items()}
    specs = make_charts(records)
    title = f"Report: {next(iter(records))}" if len(records) == 1 else f"Report: {len(records)} runs"
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        _verdicts(verdicts),
        to_html(_overview(records, verdicts)) + LAST_CHECK * any(record.checks for record in records.values()),
        _curves(specs, records),
        evaluations_html(records),
        _recipe(records),
        _data(records, images or {}),
        _conditions(records),
    ]
    now = datetime.now().astimezone().isoformat(" ", "minutes")
    body = "\n".join(filter(None, sections)) + f'<p class="small">supancl {__version__}, {now}</p>'
    data = {"charts": specs}
    scripts = ["charts.js"] * bool(specs)
    return html_page(title, body, data=data, scripts=scripts)


def name_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """A short name for each run folder: the last component, or the whole path if several share it."""
    names = [path.name or str(path) for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def _verdicts(verdicts: Mapping[str, Verdict]) -> str:
    lines = []
    for name, verdict in verdicts.items():
        run = f"<b>{html.escape(name)}</b>: " if len(verdicts) > 1 else ""
        lines.append(
            f'<p class="answer {verdict.tone}" data-state="{verdict.state}">{run}{html.escape(verdict.sentence)}</p>'
        )
    return "\n".join(lines)


def _overview(records: Mapping[str, RunRecord], verdicts: Mapping[str, Verdict]) -> Table:
    columns = ["run", "state", "recipe", "epochs", "k-NN %", "linear %", "S_W/S_T", "rank", "std", "training"]
    rows: list[Row] = []
    for name, record in records.items():
        done = record.epochs if record.end_step is not None else record.epochs_done
        epochs = f"{done}" if done == record.epochs else f"{done} of {record.epochs}" if record.epochs else ""
        rows.append(
            [
                name,
                verdicts[name].state,
                str(record.settings.get("name", "")),
                epochs,
                *(_accuracy(record, key) for key in ("knn", "linear")),
                _number(record.last("s_w/s_t"), 3),
                _number(record.last("effective_rank"), 1),
                _number(record.last("std"), 3),
                duration(record.seconds) if record.seconds else "",
            ]
        )
    return Table(columns, rows, "lll" + "r" * (len(columns) - 3))


def _accuracy(record: RunRecord, key: str) -> Cell:
    """The last check's accuracy with its interval, or for several labels k-NN's mAP."""
    value = record.last(key)
    if value is None and key == "knn" and (precision := record.last("knn_map")) is not None:
        return Cell(f"mAP {_number(precision, 1)}")
    ends = record.checks[-1].get(f"{key}_interval") if record.checks else None
    return Cell(_number(value, 1), suffix=format_interval(ends))


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


def _curves(specs: Mapping[str, Mapping[str, Any]], records: Mapping[str, RunRecord]) -> str:
    if not specs:
        return "<h2>Curves</h2><p>Nothing is logged.</p>"
    is_thinned = any(len(record.train_rows) > MAX_POINTS for record in records.values())
    thinned = f" Of a long log at most {MAX_POINTS:,} points are drawn, each as it was logged." if is_thinned else ""
    hint = (
        "Move over a chart to read values, drag to zoom in, double-click to see everything; click a name to hide it. "
        "Keys: tab to a chart, arrows read, + zooms in, Escape sees everything."
    )
    words = "".join(f"<li><b>{word}</b>: {text}</li>" for word, text in WORDS.items())
    explained = f"<details><summary>What do the words mean?</summary><ul>{words}</ul></details>"
    return f'<h2>Curves</h2><p><span class="by-pointer">{hint}</span>{thinned}</p>{explained}{charts(specs)}'


# --- recipe -----------------------------------------------------------------------------------------------------------


def _recipe(records: Mapping[str, RunRecord]) -> str:
    if not any(record.settings for record in records.values()):
        return ""
    names = list(dict.fromkeys(name for record in records.values() for name in record.settings))
    names = [name for name in names if name not in NOT_A_SETTING]
    main = [name for name in MAIN_SETTINGS if name in names and _matters(records, name)]
    main += [name for name in names if name not in main and (_is_chosen(records, name) or _differs(records, name))]
    rest = [name for name in names if name not in main]
    more = f"<details><summary>All other settings</summary>{to_html(_settings_table(records, rest))}</details>"
    hint = "" if len(records) == 1 else "<p>Settings in which the runs differ are bold.</p>"
    return f"<h2>Recipe</h2>{hint}{to_html(_settings_table(records, main))}{more if rest else ''}"


def _matters(records: Mapping[str, RunRecord], name: str) -> bool:
    """Whether it has a value, and the setting that it belongs to is used, in one of the runs."""
    needed, unused = USED_UNLESS.get(name, ("", ()))
    return any(
        record.settings.get(name) is not None and record.settings.get(needed) not in unused
        for record in records.values()
    )


def _is_chosen(records: Mapping[str, RunRecord], name: str) -> bool:
    """Whether a flag set it."""
    return any(record.source_of(name).startswith("--") for record in records.values())


def _differs(records: Mapping[str, RunRecord], name: str) -> bool:
    return len({json.dumps(record.settings.get(name)) for record in records.values()}) > 1


def _settings_table(records: Mapping[str, RunRecord], names: Sequence[str]) -> Table:
    """One run: each value with its source. Several runs: a column for each."""
    if len(records) == 1:
        (record,) = records.values()
        rows: list[Row] = [[name, _setting_text(record, name), record.source_of(name)] for name in names]
        return Table(["setting", "value", "source"], rows, "lww")
    rows = [
        [
            name,
            *(
                Cell(_setting_text(record, name), mark="best" if _differs(records, name) else "")
                for record in records.values()
            ),
        ]
        for name in names
    ]
    return Table(["setting", *records], rows, "l" + "w" * len(records))


def _setting_text(record: RunRecord, name: str) -> str:
    value = record.settings.get(name)
    return value if isinstance(value, str) else "" if name not in record.settings else json.dumps(value)


# --- data and conditions ----------------------------------------------------------------------------------------------


def _data(records: Mapping[str, RunRecord], images: Mapping[str, TrainingImages]) -> str:
    """Each data set once, with the runs that use it."""
    runs_by_data: dict[str, list[str]] = {}
    for name, record in records.items():
        about = record.about("data")
        key = str(about.get("fingerprint") or about.get("source") or record.settings.get("data.source") or name)
        runs_by_data.setdefault(key, []).append(name)
    blocks = []
    for names in runs_by_data.values():
        described = _describe_data(records[names[0]])
        shared = f" ({html.escape(', '.join(names))})" if len(runs_by_data) > 1 else ""
        shown = next((images_html(images[name]) for name in names if name in images), "")
        if described or shown:
            blocks.append(f"<p>{html.escape(described)}{shared}</p>{shown}")
    return "<h2>Data</h2>" + "".join(blocks) if blocks else ""


def _describe_data(record: RunRecord) -> str:
    about = record.about("data")
    source = str(record.settings.get("data.source") or about.get("source") or "")
    counts = [
        f"{about[key]:,} {text}"
        for key, text in (
            ("train", "training images"),
            ("labelled", "of them labelled"),
            ("held_out", "held out"),
            ("classes", "classes"),
            ("skipped", "unreadable and skipped"),
        )
        if isinstance(about.get(key), int) and (about[key] or key != "skipped")
    ]
    return ": ".join(filter(None, (source, ", ".join(counts))))


def _conditions(records: Mapping[str, RunRecord]) -> str:
    """Time, speed, device, versions and commit of each run."""
    rows: list[Row] = []
    for name, record in records.items():
        versions = ", ".join(f"{package} {version}" for package, version in record.about("versions").items())
        hardware = str(record.content.get("hardware") or record.settings.get("train.device") or "")
        time = duration(record.seconds) if record.seconds else ""
        speed = f"{record.images_per_second:,.0f}" if record.images_per_second else ""
        init = record.about("init").get("from", "random weights")
        rows.append([name, time, speed, hardware, str(init), str(record.content.get("commit") or ""), versions])
    columns = ["run", "training", "images/s", "device", "started from", "commit", "versions"]
    text = f"{plural(len(records), 'run')}; training is the time of all logged steps, without the monitor's checks."
    return f"<h2>Time and environment</h2><p>{text}</p>{to_html(Table(columns, rows, 'lrrlllw'))}"


# --- curves -----------------------------------------------------------------------------------------------------------


MAX_POINTS = 1500  # of a curve: more than a chart has pixels
BOUND_COLOUR = 6  # grey
COLOURS = (0, 1, 2, 3, 4, 5, 7)  # of runs, or of the curves of one run


class Measure(NamedTuple):
    """A logged value: its name in metrics.jsonl, and on the page."""

    key: str
    title: str


class Group(NamedTuple):
    """Measures that one run shows in one chart; several runs show each in its own chart."""

    title: str
    measures: tuple[Measure, ...]


GROUPS = (
    Group("Loss", (Measure("loss", "loss"), Measure("ssl", "self-supervised"), Measure("sup", "supervised"))),
    Group("Held-out accuracy (%)", (Measure("knn", "k-NN"), Measure("linear", "linear"))),
    Group("Held-out mAP (%)", (Measure("knn_map", "k-NN"),)),
    Group("Effective rank of the targets", (Measure("effective_rank", "effective rank"),)),
    Group("Relative std of the targets", (Measure("std", "relative std"),)),
    Group("S_W/S_T of held-out images", (Measure("s_w/s_t", "S_W/S_T"),)),
    Group("Pool: fraction of classes covered", (Measure("pool_coverage", "pool coverage"),)),
    Group("Learning rate", (Measure("lr", "encoder and projector"), Measure("predictor_lr", "predictor"))),
    Group("Momentum of the target branch", (Measure("momentum", "momentum"),)),
    Group("Images per second", (Measure("images_per_second", "images per second"),)),
)


def make_charts(records: Mapping[str, RunRecord]) -> dict[str, dict[str, Any]]:
    """The charts that have a value; `records` are the runs by name."""
    specs: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        if len(records) == 1:
            (record,) = records.values()
            lines = [(measure.title, record, measure.key) for measure in group.measures]
            _add_chart(specs, group.measures[0].key, group.title, lines)
            continue
        for measure in group.measures:
            is_named = len(group.measures) == 1 or measure.title in group.title.lower()
            title = group.title if is_named else f"{group.title}: {measure.title}"
            _add_chart(specs, measure.key, title, [(name, record, measure.key) for name, record in records.items()])
    for spec in specs.values():
        spec["legend"] = len(records) > 1  # also of the only run that has such a value
    return specs


def _add_chart(
    specs: dict[str, dict[str, Any]], name: str, title: str, lines: Sequence[tuple[str, RunRecord, str]]
) -> None:
    curves = [
        {"name": line_name, "colour": COLOURS[number % len(COLOURS)], "points": points}
        for number, (line_name, record, key) in enumerate(lines)
        if (points := thin_out(curve_points(record, key)))
    ]
    if not curves:
        return
    bound = {"std": lambda record: COLLAPSED_STD, "effective_rank": rank_bound}.get(name)
    if bound is not None:
        level = max(bound(record) for _, record, _ in lines)
        ends = [x for curve in curves for x, _ in curve["points"]]  # type: ignore[attr-defined]
        points = [[x, level] for x in dict.fromkeys((min(ends), max(ends)))]
        curves.append({"name": "collapse below", "colour": BOUND_COLOUR, "points": points})
    axis = "epoch" if all(record.steps_per_epoch for _, record, _ in lines) else "step"
    specs[name] = {"title": title, "x": axis, "curves": curves}


def curve_points(record: RunRecord, key: str) -> list[list[float]]:
    """[x, value] of each logged value; x is in epochs, or in steps if the length of an epoch is not known."""
    if key in ("ssl", "sup") and record.recipe is not None and not record.recipe.loss.supervised:
        return []  # of one term alone the loss is the same number
    rows: Iterable[Mapping[str, Any]] = record.train_rows
    if not any(is_number(row.get(key)) for row in record.train_rows):
        rows = record.checks
    unit = record.steps_per_epoch or 1
    return [[round(row["step"] / unit, 6), float(row[key])] for row in rows if is_number(row.get(key))]


def thin_out(points: list[list[float]]) -> list[list[float]]:
    """At most MAX_POINTS of the points, evenly spaced, the last one included; each as it was logged."""
    if len(points) <= MAX_POINTS:
        return points
    every = -(-len(points) // (MAX_POINTS - 1))
    return [*points[:-1:every], points[-1]]
