"""The report of one or several runs, and the page of a comparison: lists of sections on the shell of page.py."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    read_record,
)
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


def report_page(records: Records, samples: Mapping[str, Samples] | None = None) -> str:
    """The page of these runs by name; `samples` are the images of those that have some to show."""
    verdicts = {name: find_verdict(record) for name, record in records.items()}
    specs, shown = make_charts(records), samples or {}
    sections: list[Section | str] = [
        to_html(_overview(records)),
        *_curves(specs),
        _evaluations(records),
        *(_predictions(records, name, one.answers) for name, one in shown.items() if one.answers is not None),
        Section("Data", "".join(_data(name, record, shown.get(name)) for name, record in records.items())),
        *_settings(records),
    ]
    title = f"Report: {next(iter(records))}" if len(records) == 1 else f"Report: {len(records)} runs"
    banners = [
        Banner(v.tone, f"{name}: {v.headline}." if len(records) > 1 else f"{v.headline}.", v.detail, v.state)
        for name, v in verdicts.items()
    ]
    return html_page(title, sections, banners=banners, data={"charts": specs}, scripts=["charts.js"] * bool(specs))


def comparison_page(table: Table, tone: Tone, findings: Sequence[str], runs: Sequence[str], out: Path) -> str:
    """What was found, the table, curves of the runs in this folder, and links to their reports."""
    records, rows = {name: read_record(out / name) for name in runs}, []
    for name, record in records.items():
        label, report = html.escape(name), record.folder / "report.html"
        if report.is_file():
            label = f'<a href="{html.escape(os.path.relpath(report, out))}">{label}</a>'
        sentence = html.escape(find_verdict(record).sentence)
        rows.append(f'<tr><td class="word">{label}</td><td class="word long">{sentence}</td></tr>')
    specs = make_charts(records)
    notes = "".join(f'<p class="small">{html.escape(note)}</p>' for note in [*table.notes, *findings[1:]])
    headline = {"good": "A clear difference.", "unclear": "No clear difference.", "bad": "No winner."}[tone]
    sections: list[Section | str] = [
        to_html(table) + notes,
        *_curves(specs),
        Section("Runs", f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""),
    ]
    banners, title = [Banner(tone, headline, findings[0])], table.caption[:1].upper() + table.caption[1:]
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


def _figure_cell(result: Result) -> Cell:
    suffix = "last check" if "is_last_check" in result else ""
    return Cell(figure_text(result) if figure_of(result) else "", suffix=suffix)


# --- evaluations ------------------------------------------------------------------------------------------------------


def _evaluations(records: Records) -> Section:
    """Every result, and those of its levels, with its interval, chance and baselines."""
    rows: list[Row] = []
    for name, record in records.items():
        for stem, result in record.evaluations.items():
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
    cell = Cell(f"S_W/S_T {ratio:.3f}") if is_number(ratio) else _figure_cell(result)
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


@dataclass(frozen=True)
class Samples:
    """Training images by class, largest first, answers, and why some images are not shown."""

    counts: Sequence[tuple[str, int]] = ()
    answers: Answers | None = None
    problem: str = ""


def open_samples(record: RunRecord) -> Samples:
    """Those of a run whose data can still be opened. Answers need an evaluation, which has computed the features."""
    samples, recipe = Samples(), record.recipe
    try:
        if recipe is None:
            raise ValueError("this version cannot build the recipe")
        data = peek_data(recipe.data, recipe.encoder.channels)
        if data.train.is_streamed:
            raise ValueError("they are streamed from shards")
        counts = data.train.all_labels.counts(len(data.classes)).tolist()
        named = [*zip(data.classes, counts, strict=True), ("(unlabelled)", len(data.train) - data.train.num_labelled)]
        samples = Samples(sorted((item for item in named if item[1]), key=lambda item: -item[1]))
        if record.about("data").get("fingerprint") not in (None, data.summary.get("fingerprint")):
            raise ValueError("the files or labels have changed since the run")
        is_evaluated = any("is_last_check" not in result for result in own_results(record).values())
        if is_evaluated and data.train.all_labels.has_one_each and data.classes == tuple(record.classes):
            samples = replace(samples, answers=find_answers(record.folder))
    except (SupanclError, OSError, ValueError, RuntimeError, ImportError) as error:
        line = str(error) if isinstance(error, SupanclError) else reason(error)
        return replace(samples, problem=f"Some images are not shown: {line}.")
    return samples


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


def _data(name: str, record: RunRecord, samples: Samples | None) -> str:
    """The source of a run with its counts and its classes."""
    about = record.about("data")
    keys = ("train", "labelled", "held_out", "classes", "skipped")
    counts = ", ".join(f"{key.replace('_', ' ')}: {about[key]:,}" for key in keys if is_number(about.get(key)))
    source = str(about.get("source") or record.settings.get("data.source") or "not known")
    text = f"<p>{html.escape(name)}: {html.escape(source)}. {counts}</p>"
    if samples is None:
        return text
    text += f'<p class="small">{html.escape(samples.problem)}</p>' * bool(samples.problem)
    rows = [(name, float(count), f"{count:,}") for name, count in _both_ends(samples.counts)]
    return text + (f"<h3>Training images by class: {len(samples.counts)}</h3>{bars(rows)}" if rows else "")


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
    made = ((name, record.about("versions"), record.content.get("commit")) for name, record in records.items())
    versions = "".join(
        f"<p>{html.escape(f'{name}: {versions}, commit {commit}')}</p>" for name, versions, commit in made
    )
    return [Section("Recipe", tables[0]), Section("All other settings", tables[1] + versions, is_folded=True)]


# --- curves -----------------------------------------------------------------------------------------------------------


MAX_POINTS = 1500  # of a curve: more than a chart has pixels
BOUND_COLOUR = 6  # grey
COLOURS = (0, 1, 2, 3, 4, 5, 7)  # of runs, or of the curves of one run
# a chart of one run: its title, and its measures by their names in metrics.jsonl; of several runs each has a chart
MAIN_CHARTS = (
    ("Loss", {"loss": "loss", "ssl": "self-supervised", "sup": "supervised"}),
    ("Held-out accuracy (%)", {"knn": "k-NN", "linear": "linear"}),
    ("Held-out mAP (%)", {"knn_map": "k-NN"}),
    ("Effective rank of the targets", {"effective_rank": ""}),
)
MORE_CHARTS = (
    ("Relative std of the targets", {"std": ""}),
    ("S_W/S_T of held-out images", {"s_w/s_t": ""}),
    ("Pool: fraction of classes covered", {"pool_coverage": ""}),
    ("Learning rate", {"lr": "encoder and projector", "predictor_lr": "predictor"}),
    ("Momentum of the target branch", {"momentum": ""}),
    ("Images per second", {"images_per_second": ""}),
)


def _curves(specs: Mapping[str, Any]) -> list[Section]:
    """The main charts, and the others folded."""
    main = [name for _, measures in MAIN_CHARTS for name in measures if name in specs]
    more = charts(name for name in specs if name not in main)
    note = "Arrow keys read values; drag to zoom in."
    return [
        Section("Curves", charts(main) or "<p>Nothing is logged.</p>", note),
        Section("More curves", more, is_folded=True),
    ]


def make_charts(records: Records) -> dict[str, dict[str, Any]]:
    """The charts that have a value; `records` are the runs by name."""
    specs: dict[str, dict[str, Any]] = {}
    for title, measures in (*MAIN_CHARTS, *MORE_CHARTS):
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
