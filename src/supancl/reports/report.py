"""The report of one or several runs, and the page of a comparison: lists of sections on the shell of page.py."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from supancl.data.opening import peek_data
from supancl.errors import SupanclError
from supancl.evaluation.results import data_name, figure_of, figure_text, source_of
from supancl.files import reason
from supancl.reports.page import (
    Banner,
    Section,
    bars,
    beside,
    charts,
    html_page,
    pictures,
    thumbnail,
    to_image,
    wrappable,
)
from supancl.reports.tables import Cell, Row, Table, mean_text, to_html
from supancl.reports.verdict import (
    RunRecord,
    find_verdict,
    is_number,
    own_results,
    quality_of_result,
    rank_bound,
)
from supancl.runs.folder import check_same_data
from supancl.stats import Tone, duration
from supancl.training.monitor import COLLAPSED_STD

if TYPE_CHECKING:
    from PIL.Image import Image

Records = Mapping[str, RunRecord]
Result = Mapping[str, Any]
MAIN_SETTINGS = (
    "method", "data.source", "encoder.name", "loss.alpha", "train.epochs", "train.batch_size", "optimizer.lr",
)  # fmt: skip
MOST_CLASSES = 24  # in a histogram, a matrix and a list of accuracies; of more the largest and the smallest are listed
TILE, SHOWN = 112, 8  # side of a picture, and how many predictions of a kind are shown


class Comparison(NamedTuple):
    """What heads the page of a comparison: its verdict, what was found besides, its table, and where it is."""

    tone: Tone
    findings: Sequence[str]
    table: Table
    out: Path


def report_page(
    records: Records, answers: Mapping[str, Answers | str] | None = None, comparison: Comparison | None = None
) -> str:
    """The page of these runs by name, with what a classifier answers, or why it does not."""
    specs, title = make_charts(records), f"Report: {len(records)} runs"
    problems = {name: found for name, found in (answers or {}).items() if isinstance(found, str)}
    if comparison is not None:
        tone, findings, table, out = comparison
        headline = {"good": "A clear difference.", "unclear": "No clear difference.", "bad": "No winner."}[tone]
        top, title = to_html(table), table.caption[:1].upper() + table.caption[1:]
        top += "".join(f'<p class="small">{html.escape(note)}</p>' for note in [*table.notes, *findings[1:]])
        pages = {name: record.path / "report.html" for name, record in records.items()}
        for name, page in pages.items():
            if page.is_file():
                place = html.escape(os.path.relpath(page, out))
                top += f'<p class="small"><a href="{place}">Report: {html.escape(name)}</a></p>'
        banners = [Banner(tone, headline, findings[0])]
    else:
        top, banners = "", list[Banner]()
        for name, record in records.items():
            state, tone, headline, detail = find_verdict(record)
            banners.append(Banner(tone, f"{name}: {headline}." if len(records) > 1 else f"{headline}.", detail, state))
            title = title if len(records) > 1 else f"Report: {name}"
    sections: list[Section | str] = [
        top or to_html(_overview(records)),
        Section("Curves", charts(specs) or "<p>Nothing is logged.</p>", "Arrow keys read values; drag to zoom in."),
        _evaluations(records),
        *(_predictions(records, name, found) for name, found in (answers or {}).items() if isinstance(found, Answers)),
        _data(records, problems),
        *_settings(records),
    ]
    return html_page(title, sections, banners=banners, data={"charts": specs}, scripts=["charts.js"] * bool(specs))


def name_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """A short name for each run folder: the last component, or the whole path if several share it."""
    names = [path.name or str(path) for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def _overview(records: Records) -> Table:
    rows: list[Row] = []
    for name, record in records.items():
        results = own_results(record)
        accuracies = [_figure_cell(results.get(key, {})) for key in ("linear", "knn")]
        epochs = f"{record.epochs_done} of {record.count('train.epochs') or 0}"
        rank, time = mean_text(record.last("effective_rank"), None, 1), duration(record.seconds or 0)
        rows.append([name, *accuracies, epochs, rank, time, str(record.settings.get("name", ""))])
    return Table(["run", "linear", "k-NN", "epochs", "rank", "training", "recipe"], rows, "lrrrrrl")


def _figure_cell(result: Result) -> str:
    return f"{figure_text(result)}{' at the last check' * ('is_last_check' in result)}" if figure_of(result) else ""


# --- evaluations ------------------------------------------------------------------------------------------------------


def _evaluations(records: Records) -> Section:
    """Every result, and those of its levels, with its interval, chance and baselines."""
    rows: list[Row] = []
    for name, record in records.items():
        for stem, result in record.results.items():
            rows.append([name, *_evaluation_row(stem, result)])
            for level in _listed(result.get("levels")):
                rows.append([name, *_evaluation_row(f"{stem}, level {level.get('level')}", level)])
    columns = ["run", "evaluation", "data", "accuracy", "images", "chance", "random weights", "finding"]
    nothing = "<p>There are none yet: supancl evaluate RUN measures k-NN and linear accuracy.</p>"
    body = to_html(Table(columns, rows, "lllrrrrw")) if rows else nothing
    return Section("Evaluations", body, "In brackets 95% intervals." if rows else "")


def _evaluation_row(title: str, result: Result) -> Row:
    baselines = _listed(result.get("baselines"))
    untrained: Result = next((row for row in baselines if row.get("name") == "random weights"), {})
    images = result.get("tested_images", result.get("queries", result.get("images")))
    data = data_name(source_of(result) or str(result.get("data") or "-"))
    numbers = [f"{images:,}" if is_number(images) else "", mean_text(result.get("chance"), None, 1)]
    found, ratio = quality_of_result(result) if baselines else None, result.get("ratio")
    cell = f"S_W/S_T {ratio:.3f}" if is_number(ratio) else _figure_cell(result)
    return [title, data, cell, *numbers, _figure_cell(untrained), found.text if found else ""]


def _listed(value: Any) -> list[Result]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


# --- predictions ------------------------------------------------------------------------------------------------------


class Answers(NamedTuple):
    """What a linear classifier on the run's features answers about labelled held-out images, and some of them."""

    truth: Tensor
    predicted: Tensor
    right: Sequence[tuple[Image, str]]  # the most confident ones
    wrong: Sequence[tuple[Image, str]]


def open_answers(record: RunRecord) -> Answers | str:
    """Those of a run that was evaluated, and whose data can still be opened; else why there are none."""
    try:
        if all("is_last_check" in result for result in own_results(record).values()):
            return "No predictions yet: supancl evaluate RUN."
        if record.recipe is None:
            raise ValueError("this version cannot build the recipe")
        data = peek_data(record.recipe.data, record.recipe.encoder.channels)
        if not data.train.all_labels.has_one_each or data.train.is_streamed:
            raise ValueError("images have several labels, or are streamed from shards")
        check_same_data(record, data)
        return find_answers(record.path)
    except (SupanclError, OSError, ValueError, RuntimeError, ImportError) as error:
        return f"No predictions: {str(error) if isinstance(error, SupanclError) else reason(error)}."


def find_answers(run: Path) -> Answers:
    """Fit a linear classifier on the training images, as `predict` does, and predict the held-out ones."""
    from supancl.distributed.ranks import pick_device
    from supancl.evaluation.data import data_for
    from supancl.evaluation.encoder import EvaluationOptions, open_evaluated_encoder
    from supancl.probes import Features
    from supancl.probes.classifiers import Calibration, fit_linear_classifier, rank_classes

    evaluated = open_evaluated_encoder(str(run), EvaluationOptions(pick_device("auto")))
    data = data_for(evaluated, None, "margin")
    train, held_out = (evaluated.features(split.labelled()) for split in (data.train, data.held_out))
    chooses = data.summary.get("held_out_from") != "test"
    choosing = held_out if chooses else Features(held_out.values[:0], held_out.labels[:0])
    classifier, _ = fit_linear_classifier(train, choosing, len(data.classes), evaluated.options.device)
    temperature = Calibration(classifier.logits(held_out.values), held_out.labels).temperature
    ranked = rank_classes(classifier, held_out.values, len(data.classes), temperature=temperature)
    predicted, confidence = ranked.labels[:, 0], ranked.confidence
    order, is_right = confidence.argsort(descending=True), predicted == held_out.labels
    images = data.held_out.labelled()

    def show(positions: Tensor) -> list[tuple[Image, str]]:
        shown = []
        for position in positions[:SHOWN].tolist():
            answer, truth = data.classes[int(predicted[position])], data.classes[int(held_out.labels[position])]
            text = f"{answer} {100 * float(confidence[position]):.0f}%" + f", is {truth}" * (answer != truth)
            shown.append((thumbnail(to_image(images.batch(torch.tensor([position])).image(0)), TILE, True), text))
        return shown

    return Answers(held_out.labels, predicted, show(order[is_right[order]]), show(order[~is_right[order]]))


def _predictions(records: Records, name: str, answers: Answers) -> Section:
    """Accuracy per class, which classes are confused, and the images that the classifier is most sure about."""
    classes, truth = records[name].classes, answers.truth.tolist()
    counts = [[0] * len(classes) for _ in classes]
    for label, answer in zip(truth, answers.predicted.tolist(), strict=True):
        counts[label][answer] += 1
    shares = sorted((100 * row[number] / sum(row), number) for number, row in enumerate(counts) if sum(row))
    per_class = [(classes[n], share, f"{share:.0f}% of {sum(counts[n])}") for share, n in _both_ends(shares)]
    if len(classes) <= MOST_CLASSES:
        confused = f"<h3>Confusion matrix</h3>{_matrix(counts, classes)}"
    else:
        missed = [(n, a, b) for a, row in enumerate(counts) for b, n in enumerate(row) if a != b and n]
        pairs = [[f"{n}", classes[a], classes[b]] for n, a, b in sorted(missed, reverse=True)[:10]]
        confused = f"<h3>Most often confused</h3>{to_html(Table(['images', 'label', 'predicted'], pairs, 'rll'))}"
    seen = [
        f"<h3>{title}</h3>{pictures(tiles)}"
        for title, tiles in (("Most confident and wrong", answers.wrong), ("Most confident and right", answers.right))
        if tiles
    ]
    title = f"Predictions: {name}" if len(records) > 1 else "Predictions"
    note = f"Held-out images: {len(truth):,}; by a linear classifier on the features of the training images."
    return Section(title, beside(f"<h3>Accuracy per class</h3>{bars(per_class)}", confused) + beside(*seen), note)


def _both_ends(rows: Sequence[Any]) -> Sequence[Any]:
    half = MOST_CLASSES // 2
    return rows if len(rows) <= MOST_CLASSES else [*rows[:half], *rows[-half:]]


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


# --- data and settings ------------------------------------------------------------------------------------------------


def _data(records: Records, problems: Mapping[str, str]) -> Section:
    """The source of each run with its counts, why images of it are not shown, and with which code it was trained."""
    texts, keys = list[str](), ("train", "labelled", "held_out", "classes", "skipped")
    for name, record in records.items():
        about, versions = record.about("data"), record.about("versions")
        counts = ", ".join(f"{key.replace('_', ' ')}: {about[key]:,}" for key in keys if is_number(about.get(key)))
        source = str(about.get("source") or record.settings.get("data.source") or "not known")
        texts += [f"{name}: {source}. {counts}", problems.get(name, "")]
        texts.append(f"{name}: {versions}, commit {record.read('commit', 'not known')}")
    return Section("Data and versions", "".join(f"<p>{html.escape(text)}</p>" for text in texts if text))


def _settings(records: Records) -> list[Section]:
    """Those that were given, differ between the runs or matter most, then all others."""
    columns = ["setting", *(["value", "source"] if len(records) == 1 else records)]
    main, others = list[Row](), list[Row]()
    for name in dict.fromkeys(name for record in records.values() for name in record.settings):
        found = [record.settings.get(name) for record in records.values()]
        values = [value if isinstance(value, str) else json.dumps(value) for value in found]
        sources, differs = [record.source_of(name) for record in records.values()], len(set(values)) > 1
        cells = [Cell(value, "best" if differs else "") for value in values]
        is_main = differs or name in MAIN_SETTINGS or "given" in sources
        (main if is_main else others).append([name, *cells, *(sources if len(records) == 1 else ())])
    tables = [to_html(Table(columns, rows, "l" + "w" * (len(columns) - 1))) for rows in (main, others)]
    return [Section("Recipe", tables[0]), Section("All other settings", tables[1], is_folded=True)]


# --- curves -----------------------------------------------------------------------------------------------------------


MAX_POINTS = 1500  # of a curve: more than a chart has pixels
BOUND_COLOUR = 6  # grey
COLOURS = (0, 1, 2, 3, 4, 5, 7)  # of runs, or of the curves of one run
# a chart of one run: its title, and its measures by their names in metrics.jsonl; of several runs each has a chart
CHARTS = (
    ("Loss", {"loss": "loss", "ssl": "self-supervised", "sup": "supervised"}),
    ("Held-out accuracy (%)", {"knn": "k-NN", "linear": "linear"}),
    ("Held-out mAP (%)", {"knn_map": "k-NN"}),
    ("Effective rank of the targets", {"effective_rank": ""}),
    ("Relative std of the targets", {"std": ""}),
    ("S_W/S_T of held-out images", {"s_w/s_t": ""}),
)


def make_charts(records: Records) -> dict[str, dict[str, Any]]:
    """The charts that have a value; `records` are the runs by name."""
    specs: dict[str, dict[str, Any]] = {}
    for title, measures in CHARTS:
        if len(records) == 1:
            (record,) = records.values()
            _add_chart(specs, title, [(name or title, record, key) for key, name in measures.items()])
            continue
        for key, name in measures.items():
            named = f"{title}: {name}" if name and name != title.lower() else title
            _add_chart(specs, named, [(run, record, key) for run, record in records.items()])
    return specs


def _add_chart(specs: dict[str, dict[str, Any]], title: str, lines: Sequence[tuple[str, RunRecord, str]]) -> None:
    curves: list[dict[str, Any]] = [
        {"name": name, "colour": COLOURS[number % len(COLOURS)], "points": points}
        for number, (name, record, measure) in enumerate(lines)
        if (points := curve_points(record, measure))
    ]
    if not curves:
        return
    key, is_several = lines[0][2], len({id(record) for _, record, _ in lines}) > 1
    if bound := {"std": lambda record: COLLAPSED_STD, "effective_rank": rank_bound}.get(key):
        level, ends = max(bound(record) for _, record, _ in lines), [x for curve in curves for x, _ in curve["points"]]
        points = [[x, level] for x in dict.fromkeys((min(ends), max(ends)))]
        curves.append({"name": "collapse below", "colour": BOUND_COLOUR, "points": points})
    axis = "epoch" if all(record.steps_per_epoch for _, record, _ in lines) else "step"
    specs[key] = {"title": title, "x": axis, "curves": curves, "legend": is_several}


def curve_points(record: RunRecord, key: str) -> list[list[float]]:
    """[x, value] of each logged value, at most MAX_POINTS evenly spaced; x is in epochs, or else in steps."""
    if key in ("ssl", "sup") and record.recipe is not None and not record.recipe.loss.supervised:
        return []  # of one term alone the loss is the same number
    is_logged = any(is_number(row.get(key)) for row in record.train_rows)
    unit = record.steps_per_epoch or 1
    rows = (row for row in (record.train_rows if is_logged else record.checks) if is_number(row.get(key)))
    points = [[round(row["step"] / unit, 6), float(row[key])] for row in rows]
    every = -(-len(points) // (MAX_POINTS - 1))
    return [*points[:-1:every], points[-1]] if len(points) > MAX_POINTS else points
