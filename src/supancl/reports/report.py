"""The report of one or several runs: verdict, curves, evaluations, predictions, data and settings on one page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supancl.evaluation.naming import data_name, figure_of, source_of
from supancl.reports.page import Banner, Section, bars, beside, charts, html_page, pictures, wrappable
from supancl.reports.run_record import RunRecord, format_interval, is_number
from supancl.reports.samples import Answers, Samples
from supancl.reports.tables import Cell, Row, Table, to_html
from supancl.reports.verdict import Verdict, find_verdict, judge_result, own_evaluations, rank_bound
from supancl.stats import duration
from supancl.training.monitor import COLLAPSED_STD

Records = Mapping[str, RunRecord]
Result = Mapping[str, Any]
# shown first; all others are behind a click
MAIN_SETTINGS = (
    "method", "data.source", "data.limit", "data.labelled", "encoder.name", "views.size", "loss.kind", "loss.alpha",
    "loss.temperature", "pool.kind", "pool.size", "branches.target", "branches.momentum", "optimizer.name",
    "optimizer.lr", "optimizer.reference_batch", "optimizer.weight_decay", "schedule.warmup_epochs", "train.epochs",
    "train.batch_size", "train.seed", "train.precision", "compat",
)  # fmt: skip
NOT_A_SETTING = ("name", "paper")
WORDS = {
    "k-NN, linear": "share of held-out images that get their label from the nearest training images, or from a linear "
    "classifier on the features; the linear accuracy in the table is that of evaluate linear where it was measured",
    "targets": "what the network has to predict for a batch: its projections of the images",
    "effective rank": "how many directions the targets use; a fall towards 1 is a collapse",
    "relative std": "how far the targets are spread: 1 evenly, 0 all images get the same one",
    "S_W/S_T": "share of the features' variance that lies within classes; the lower, the tighter the classes",
    "pool": "the stored targets of earlier batches; an image is drawn to those of its class",
}
KEYS = "Point at a chart or use arrow keys to read values; drag to zoom in, double-click to see everything."
MOST_CLASSES = 24  # in a histogram, a matrix and a list of accuracies; of more the largest and the smallest are listed
MOST_CONFUSED = 10  # pairs of classes


def report_page(records: Records, samples: Mapping[str, Samples] | None = None) -> str:
    """The page of these runs by name; `samples` are the images of those that have some to show."""
    verdicts = {name: find_verdict(record) for name, record in records.items()}
    specs, shown = make_charts(records), samples or {}
    first = [name for name in MAIN_CHARTS if name in specs]
    words = "".join(f"<li><b>{word}</b>: {text}</li>" for word, text in WORDS.items())
    sections: list[Section | str] = [
        to_html(_overview(records, verdicts)),
        Section("Curves", charts(first) or "<p>Nothing is logged.</p>", KEYS if first else ""),
        Section("More curves", charts(name for name in specs if name not in first), is_folded=True),
        Section("What do the words mean?", f"<ul>{words}</ul>", is_folded=True),
        _evaluations(records),
        *(_predictions(records, name, one.answers) for name, one in shown.items() if one.answers is not None),
        _data(records, shown),
        *_recipe(records),
        _conditions(records),
    ]
    title = f"Report: {next(iter(records))}" if len(records) == 1 else f"Report: {len(records)} runs"
    banners = [
        Banner(v.tone, f"{name}: {v.headline}." if len(records) > 1 else f"{v.headline}.", v.detail, v.state)
        for name, v in verdicts.items()
    ]
    scripts = ["charts.js"] * bool(specs)
    return html_page(title, sections, banners=banners, data={"charts": specs}, scripts=scripts)


def name_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """A short name for each run folder: the last component, or the whole path if several share it."""
    names = [path.name or str(path) for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def _overview(records: Records, verdicts: Mapping[str, Verdict]) -> Table:
    columns = ["run", "state", "linear %", "k-NN %", "epochs", "rank", "std", "training", "recipe"]
    rows: list[Row] = []
    for name, record in records.items():
        done = record.epochs if record.end_step is not None else record.epochs_done
        epochs = f"{done}" if done == record.epochs else f"{done} of {record.epochs}" if record.epochs else ""
        rows.append(
            [
                name,
                verdicts[name].state,
                *(_accuracy(record, key) for key in ("linear", "knn")),
                epochs,
                _text(record.last("effective_rank"), "{:.1f}"),
                _text(record.last("std"), "{:.3f}"),
                duration(record.seconds) if record.seconds else "",
                str(record.settings.get("name", "")),
            ]
        )
    return Table(columns, rows, "llrrrrrrl")


def _accuracy(record: RunRecord, key: str) -> Cell:
    """That of `evaluate` on the run's own data; without one that of the last check, which says so."""
    if result := own_evaluations(record).get(key):
        return _figure_cell(result)
    check = record.checks[-1] if record.checks else {}
    prefix = "mAP " if not is_number(check.get(key)) and is_number(check.get(f"{key}_map")) else ""
    key = f"{key}_map" if prefix else key
    if not is_number(check.get(key)):
        return Cell("")
    return Cell(f"{prefix}{check[key]:.1f}", suffix=f"{format_interval(check.get(f'{key}_interval'))} last check")


def _text(value: Any, form: str) -> str:
    return form.format(value) if is_number(value) else ""


# --- evaluations ------------------------------------------------------------------------------------------------------


def _evaluations(records: Records) -> Section:
    """Every result with its interval, chance and baselines; on the same images the best run is bold."""
    rows, variances = [], []
    values: dict[tuple[str, str], list[float]] = {}
    for record in records.values():
        for stem, result in record.evaluations.items():
            if (figure := figure_of(result)) is not None and is_number(figure.value):
                values.setdefault((stem, str(result.get("tested_on"))), []).append(figure.value)
    for name, record in records.items():
        run = [name] * (len(records) > 1)
        for stem, result in record.evaluations.items():
            if is_number(result.get("ratio")):
                cells = (_text(result.get(key), "{:.3f}") for key in ("ratio", "effective_rank"))
                variances.append([*run, stem, _data_name(result), *cells])
            if (figure := figure_of(result)) is None or not is_number(figure.value):
                continue
            shared = values[stem, str(result.get("tested_on"))]
            is_best = len(shared) > 1 and figure.value == max(shared)
            rows.append([*run, *_figure_row(stem, result, is_best)])
            levels = result.get("levels")
            for level in levels if isinstance(levels, list) else ():
                if isinstance(level, Mapping):
                    rows.append([*run, *_figure_row(f"{stem}, level {level.get('level')}", {**level, "source": ""})])
    first, align = ["run"] * (len(records) > 1), "l" * (len(records) > 1)
    columns = [*first, "evaluation", "data", "accuracy %", "images", "chance", "random weights", "finding"]
    body = to_html(Table(columns, rows, f"{align}llrrrrw")) if rows else ""
    if variances:
        columns = [*first, "evaluation", "data", "S_W/S_T", "effective rank"]
        body += to_html(Table(columns, variances, f"{align}llrr"))
    nothing = "<p>There are none yet: supancl evaluate RUN measures k-NN and linear accuracy.</p>"
    return Section("Evaluations", body or nothing, "In brackets 95% intervals." if rows else "")


def _figure_row(stem: str, result: Result, is_best: bool = False) -> Row:
    baselines = result.get("baselines")
    rows = [row for row in (baselines if isinstance(baselines, list) else ()) if isinstance(row, Mapping)]
    untrained = next((row for row in rows if row.get("name") == "random weights"), {})
    images = result.get("tested_images", result.get("queries", result.get("images")))
    found = judge_result(result) if rows else None
    return [
        stem,
        _data_name(result),
        _figure_cell(result)._replace(mark="best" if is_best else ""),
        _text(images, "{:,}"),
        _text(result.get("chance"), "{:.1f}"),
        _figure_cell(untrained),
        found.text if found else "",
    ]


def _figure_cell(result: Result) -> Cell:
    """The accuracy or mAP with its interval: two ends, or half its width for few-shot episodes."""
    figure = figure_of(result)
    if figure is None or not is_number(figure.value):
        return Cell("")
    ends = format_interval(figure.interval)
    half_width = "" if ends else _text(result.get("interval"), "{:.2f}")
    return Cell(f"{'' if figure.name == 'accuracy' else 'mAP '}{figure.value:.2f}", half_width, suffix=ends)


def _data_name(result: Result) -> str:
    return data_name(source_of(result) or str(result.get("data") or "")) if result.get("source") != "" else ""


# --- predictions ------------------------------------------------------------------------------------------------------


def _predictions(records: Records, name: str, answers: Answers) -> Section:
    """Accuracy per class, which classes are confused, and the images that the classifier is most sure about."""
    classes = records[name].classes
    truth, predicted = answers.truth.tolist(), answers.predicted.tolist()
    counts = [[0] * len(classes) for _ in classes]
    for label, answer in zip(truth, predicted, strict=True):
        counts[label][answer] += 1
    tested = [number for number, row in enumerate(counts) if sum(row)]
    share = {number: 100 * counts[number][number] / sum(counts[number]) for number in tested}
    ordered = sorted(tested, key=lambda number: share[number])
    listed = ordered if len(ordered) <= MOST_CLASSES else [*ordered[:12], *ordered[-12:]]
    per_class = [(classes[n], share[n], f"{share[n]:.0f}% of {sum(counts[n])}") for n in listed]
    missed = sorted(((counts[a][b], a, b) for a in tested for b in tested if a != b and counts[a][b]), reverse=True)
    pairs = [[f"{count}", classes[a], classes[b]] for count, a, b in missed[:MOST_CONFUSED]]
    confused = to_html(Table(["images", "label", "predicted"], pairs, "rll")) if pairs else "<p>None.</p>"
    matrix = _matrix(counts, classes) if len(classes) <= MOST_CLASSES else ""
    blocks = [f"<h3>Accuracy per class</h3>{bars(per_class)}"]
    blocks.append(f"<h3>Confusion matrix</h3>{matrix}" if matrix else f"<h3>Most often confused</h3>{confused}")
    seen = [
        f"<h3>{title}</h3>{pictures(tiles)}"
        for title, tiles in (("Most confident and wrong", answers.wrong), ("Most confident and right", answers.right))
        if tiles
    ]
    title = f"Predictions: {name}" if len(records) > 1 else "Predictions"
    note = f"Held-out images: {len(truth):,}; by a linear classifier on the features of the training images."
    return Section(title, beside(*blocks) + beside(*seen), note)


def _matrix(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """A row per label and a column per predicted class, shaded by the share of the label's images."""
    head = "".join(f'<th><span title="{html.escape(name)}">{html.escape(name[:9])}</span></th>' for name in classes)
    rows = []
    for number, (name, row) in enumerate(zip(classes, counts, strict=True)):
        cells = []
        for other, count in enumerate(row):
            colour, share = "--good" if other == number else "--bad", round(80 * count / (sum(row) or 1))
            style = f"background: color-mix(in srgb, var({colour}) {share}%, transparent)"
            text = f"{name} as {classes[other]}: {count}"
            cells.append(f'<td style="{style}" title="{html.escape(text)}">{count or ""}</td>')
        rows.append(f'<tr><th class="word">{wrappable(name)}</th>{"".join(cells)}</tr>')
    body = f'<tr><th class="word">label</th>{head}</tr>{"".join(rows)}'
    return f'<div class="wide"><table class="matrix">{body}</table></div>'


# --- data, recipe, conditions -----------------------------------------------------------------------------------------


def _data(records: Records, samples: Mapping[str, Samples]) -> Section:
    """Each data set once, with the runs that use it."""
    runs_by_data: dict[str, list[str]] = {}
    for name, record in records.items():
        about = record.about("data")
        key = str(about.get("fingerprint") or about.get("source") or record.settings.get("data.source") or name)
        runs_by_data.setdefault(key, []).append(name)
    blocks = []
    for names in runs_by_data.values():
        about = records[names[0]].about("data")
        keys = {
            "train": "train",
            "labelled": "labelled",
            "held_out": "held out",
            "classes": "classes",
            "skipped": "skipped",
        }
        counts = ", ".join(f"{word}: {about[key]:,}" for key, word in keys.items() if is_number(about.get(key)))
        source = str(about.get("source") or records[names[0]].settings.get("data.source") or "not known")
        shared = f" ({', '.join(names)})" if len(runs_by_data) > 1 else ""
        blocks.append(f"<p>{html.escape(source)}{html.escape(shared)}. {counts}</p>")
        blocks += [_images(samples[name]) for name in names if name in samples]
    return Section("Data", "".join(blocks))


def _images(samples: Samples) -> str:
    problems = "".join(f'<p class="small">{html.escape(line)}</p>' for line in samples.problems)
    counts, half = list(samples.counts), MOST_CLASSES // 2
    listed = counts if len(counts) <= MOST_CLASSES else [*counts[:half], *counts[-half:]]
    left_out = f"<p>and {len(counts) - len(listed):,} more classes between them</p>" if listed != counts else ""
    rows = [(name, float(count), f"{count:,}") for name, count in listed]
    tiles = [
        (tile, name if number == 0 else f"view {(number - 1) % 2 + 1}")
        for name, row in samples.views
        for number, tile in enumerate(row)
    ]
    views = pictures(tiles, len(samples.views[0][1])) if samples.views else ""
    return problems + beside(
        f"<h3>Training images by class</h3>{bars(rows)}{left_out}" if rows else "",
        f"<h3>As the network sees them</h3>{views}" if views else "",
    )


def _recipe(records: Records) -> list[Section]:
    names = list(dict.fromkeys(name for record in records.values() for name in record.settings))
    names = [name for name in names if name not in NOT_A_SETTING]
    values = {name: [_setting_text(record, name) for record in records.values()] for name in names}
    differing = {name for name in names if len(set(values[name])) > 1}
    given = {name for name in names if any(one.source_of(name).startswith("--") for one in records.values())}
    known = [name for name in MAIN_SETTINGS if set(values.get(name, ())) - {"", "null"}]
    main = [*known, *(name for name in names if name in given | differing and name not in known)]

    def table(chosen: Sequence[str]) -> str:
        if len(records) == 1:
            (record,) = records.values()
            rows: list[Row] = [[name, values[name][0], record.source_of(name)] for name in chosen]
            return to_html(Table(["setting", "value", "source"], rows, "lww"))
        rows = [
            [name, *(Cell(text, mark="best" if name in differing else "") for text in values[name])] for name in chosen
        ]
        return to_html(Table(["setting", *records], rows, "l" + "w" * len(records)))

    note = "" if len(records) == 1 else "Settings in which the runs differ are bold."
    rest = [name for name in names if name not in main]
    return [
        Section("Recipe", table(main) if main else "", note),
        Section("All other settings", table(rest) if rest else "", is_folded=True),
    ]


def _setting_text(record: RunRecord, name: str) -> str:
    value = record.settings.get(name)
    return value if isinstance(value, str) else "" if name not in record.settings else json.dumps(value)


def _conditions(records: Records) -> Section:
    """Time, speed, device, versions and commit of each run."""
    rows: list[Row] = []
    for name, record in records.items():
        versions = ", ".join(f"{package} {version}" for package, version in record.about("versions").items())
        hardware = str(record.content.get("hardware") or record.settings.get("train.device") or "")
        time = duration(record.seconds) if record.seconds else ""
        init = record.about("init").get("from", "random weights")
        speed = _text(record.images_per_second, "{:,.0f}")
        rows.append([name, time, speed, hardware, str(init), str(record.content.get("commit") or ""), versions])
    columns = ["run", "training", "images/s", "device", "started from", "commit", "versions"]
    note = "Training is the time of all logged steps, without the monitor's checks."
    return Section("Time and environment", to_html(Table(columns, rows, "lrrlllw")), note, is_folded=True)


# --- curves -----------------------------------------------------------------------------------------------------------


MAX_POINTS = 1500  # of a curve: more than a chart has pixels
BOUND_COLOUR = 6  # grey
COLOURS = (0, 1, 2, 3, 4, 5, 7)  # of runs, or of the curves of one run
MAIN_CHARTS = ("loss", "knn", "knn_map", "effective_rank")
# a chart of one run: its title, and its measures by their names in metrics.jsonl; of several runs each has a chart
CHARTS = (
    ("Loss", {"loss": "loss", "ssl": "self-supervised", "sup": "supervised"}),
    ("Held-out accuracy (%)", {"knn": "k-NN", "linear": "linear"}),
    ("Held-out mAP (%)", {"knn_map": "k-NN"}),
    ("Effective rank of the targets", {"effective_rank": ""}),
    ("Relative std of the targets", {"std": ""}),
    ("S_W/S_T of held-out images", {"s_w/s_t": ""}),
    ("Pool: fraction of classes covered", {"pool_coverage": ""}),
    ("Learning rate", {"lr": "encoder and projector", "predictor_lr": "predictor"}),
    ("Momentum of the target branch", {"momentum": ""}),
    ("Images per second", {"images_per_second": ""}),
)


def make_charts(records: Records) -> dict[str, dict[str, Any]]:
    """The charts that have a value; `records` are the runs by name."""
    specs: dict[str, dict[str, Any]] = {}
    for title, measures in CHARTS:
        if len(records) == 1:
            (record,) = records.values()
            lines = [(name or title, record, key) for key, name in measures.items()]
            _add_chart(specs, next(iter(measures)), title, lines)
            continue
        for key, name in measures.items():
            named = f"{title}: {name}" if name and name != title.lower() else title
            _add_chart(specs, key, named, [(run, record, key) for run, record in records.items()])
    for spec in specs.values():
        spec["legend"] = len(records) > 1  # also of the only run that has such a value
    return specs


def _add_chart(
    specs: dict[str, dict[str, Any]], key: str, title: str, lines: Sequence[tuple[str, RunRecord, str]]
) -> None:
    curves: list[dict[str, Any]] = [
        {"name": name, "colour": COLOURS[number % len(COLOURS)], "points": points}
        for number, (name, record, measure) in enumerate(lines)
        if (points := thin_out(curve_points(record, measure)))
    ]
    if not curves:
        return
    bound = {"std": lambda record: COLLAPSED_STD, "effective_rank": rank_bound}.get(key)
    if bound is not None:
        level = max(bound(record) for _, record, _ in lines)
        ends = [x for curve in curves for x, _ in curve["points"]]
        points = [[x, level] for x in dict.fromkeys((min(ends), max(ends)))]
        curves.append({"name": "collapse below", "colour": BOUND_COLOUR, "points": points})
    axis = "epoch" if all(record.steps_per_epoch for _, record, _ in lines) else "step"
    specs[key] = {"title": title, "x": axis, "curves": curves}


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
