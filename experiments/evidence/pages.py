"""Fill the tables of Markdown pages from the numbers, draw the figures, and write runs.csv.

A table is a query in a comment (a line that begins with a space goes on); what follows it is replaced:

    <!-- numbers: cifar100
    first: pretraining
    rows: supsiam = SupSiam (alpha 0.5); supsiam - simsiam = SupSiam - SimSiam
    columns: linear = CIFAR-100; cifar10/linear = CIFAR-10; seeds; other data
    -->
    | ... |
    <!-- end numbers -->
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.evidence.numbers import ALPHAS, LABELS, LOSSES, RESULTS, WAYS, Number, numbers, read_results
from supancl.files import write_text
from supancl.recipes import recipe
from supancl.reports.pictures import COLOURS, MARKERS, Panel, Sheet, draw_panels
from supancl.reports.tables import Table, to_markdown

ROOT = Path(__file__).parents[2]
PAGES = ("RESULTS.md", "docs/starts.md", *map(str, Path("docs").glob("results/*.md")))
TABLE = re.compile(r"(<!-- numbers: (.*?)\n-->\n)(?:\|[^\n]*\n)*(?=<!-- end numbers -->)", re.DOTALL)
DECIMALS = {"ratio": 3, "within": 3, "total": 3, "ssl": 3, "sup": 3, "loss": 3, "std": 3, "rank": 2, "next": 2}
VERDICTS = {"helps": "better", "hurts": "worse"}
Numbers = Mapping[tuple[str, ...], Number]  # by study, row and column

# --- tables -----------------------------------------------------------------------------------------------------------


def by_name(folder: Path = RESULTS) -> Numbers:
    return {found[:3]: found for found in numbers(folder)}


def fill(text: str, found: Numbers) -> str:
    """The page with every table made anew."""
    return TABLE.sub(lambda match: match[1] + table(match[2], found), text)


def table(query: str, found: Numbers) -> str:
    study, _, lines = query.partition("\n")
    asked = {key: " ".join(text.split()) for key, text in re.findall(r"^(\w+): (.*(?:\n .*)*)", lines, re.MULTILINE)}
    rows, columns = (
        {name: title or name for name, _, title in (part.partition(" = ") for part in asked[key].split("; "))}
        for key in ("rows", "columns")
    )
    cells = [[title, *(cell(found, study, row, column) for column in columns)] for row, title in rows.items()]
    return to_markdown(Table([asked.get("first", "method"), *columns.values()], cells)).replace("\\*", "*")


def cell(found: Numbers, study: str, row: str, column: str) -> str:
    *other, column = column.split("/")
    study = other[0] if other else study
    mine = {key[2]: each for key, each in found.items() if key[:2] == (study, row)}
    if column == "seeds":
        return max((each[6] for each in mine.values() if re.fullmatch(r"[\d and]+", each[6])), default="0")
    if column == "other data":
        return other_data(mine)
    return shown(mine[column]) if column in mine else "-"


def shown(each: Number) -> str:
    """`57.3 ± 1.3`; of a difference `+16.7 [+15.9, +17.5]`, with a star where its deviation is borrowed."""
    _, row, column, value, low, high, n, _ = each
    decimals = DECIMALS.get(re.split("[ _]", column)[-1] if column != "effective_rank" else "", 1)
    if " - " in row:
        star = "*" if low and 1 in map(int, re.findall(r"\d+", n)) and "images" not in n else ""
        interval = f" [{float(low):+.{decimals}f}, {float(high):+.{decimals}f}]{star}" if low else ""
        return f"{float(value):+.{decimals}f}{interval}"
    half = f" ± {(float(high) - float(low)) / 2:.{decimals}f}" if low else ""
    return f"{float(value):.{decimals}f}{half}"


def other_data(mine: Mapping[str, Number]) -> str:
    """In how many accuracies on other data a difference is better, worse or neither."""
    kinds = [kind for kind in ("transfer", "few-shot") if f"{kind}: helps" in mine]
    counts = {word: sum(int(float(mine[f"{kind}: {verdict}"][3])) for kind in kinds)
              for verdict, word in VERDICTS.items()}  # fmt: skip
    of = sum(int(mine[f"{kind}: helps"][6].split()[0]) for kind in kinds)
    counts["unclear"] = of - sum(counts.values())
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "-"


# --- runs.csv ---------------------------------------------------------------------------------------------------------

COPIED = ("stage", "method", "seed", "epochs", "status", "train_seconds", "images_per_second", "shared", "hardware",
          "commit")  # fmt: skip


def runs_table(folder: Path = RESULTS) -> str:
    """One row per run, for any program that reads tables: what it is, what it cost, what it measured, its command."""
    rows = [run_row(each) for study in ("cifar100", "imagenet", "supbyol", "cifar10")
            for each in read_results(study, folder)]  # fmt: skip
    measures = sorted({key for row in rows for key in row["values"]})
    facts = [name for name in rows[0] if name not in ("values", "command")]
    written = io.StringIO()
    writer = csv.DictWriter(written, [*facts, *measures, "command"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row.pop("values"), **row} for row in rows)
    return written.getvalue()


def run_row(result: Mapping[str, Any]) -> dict[str, Any]:
    name, settings = shlex.split(result["commands"][0])[2], result["settings"]
    rates: dict[str, Any] = dict.fromkeys(("lr", "weight_decay"))
    if result["stage"] != "detect":
        optimizer = recipe(name).optimizer
        rates = {name: settings.get(f"optimizer.{name}", getattr(optimizer, name)) for name in rates}
    return {
        "plan": result["plan"],
        "run": result["name"],
        **{name: result.get(name) for name in COPIED},
        **rates,
        "train_images": result["data"].get("train"),
        "evaluate_seconds": result["judge_seconds"],
        "values": {name: value for name, value in result["values"].items() if name not in LOSSES},
        "command": result["commands"][0],
    }


# --- figures ----------------------------------------------------------------------------------------------------------

Panels = Mapping[str, Mapping[str, Sequence[Number | None]]]  # title -> label -> a number of each series
SETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "imagenet": "photographs"}
ASKED = {"SupSiam - SimSiam": "supsiam - simsiam", "SupBYOL - BYOL": "supbyol - byol",
         "SupSiam - SupCon": "supsiam - supcon", "SupSiam - cross-entropy": "supsiam - crossentropy"}  # fmt: skip
SWEPT = {"ratio": "S_W/S_T", "linear": "CIFAR-100, linear", "crossed": "CIFAR-10, linear", "pets": "Pets, linear",
         "omniglot_5": "Omniglot, 5-shot", "traffic-signs_5": "GTSRB, 5-shot"}  # fmt: skip


def draw(folder: Path, found: Numbers, results: Path = RESULTS) -> None:
    """Every figure that there are numbers for."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = {
        title: {name: [found.get((study, row, place)) for place in ("linear", "pets")] for study, name in SETS.items()}
        for title, row in ASKED.items()
    }
    forest(folder / "results.png", questions, "difference in points", ("own classes", "Pets"), line=0)
    alphas = {
        title: {f"alpha {alpha}": [found["cifar100", f"alpha {alpha}", measure]] for alpha in ALPHAS}
        for measure, title in SWEPT.items()
    }
    forest(folder / "cifar100-alpha.png", alphas, "accuracy in percent (S_W/S_T: a ratio)")
    maps = {alpha: json.loads((results / "maps" / f"{name}.json").read_text()) for alpha, name in MAPS.items()}
    classes = [name.replace("_", " ") for name in next(iter(maps.values()))["classes"]]
    panels = [Panel(f"alpha = {alpha}", np.array(each["points"]), np.array(each["labels"]))
              for alpha, each in maps.items()]  # fmt: skip
    draw_panels(panels, classes, folder / "cifar100-maps.png", sheet=Sheet(width=16, side=4.2, font=10, dpi=110))
    places = sorted({place for study, _, place in found if study == "starts" and ":" not in place})
    datasets, starts = ([*dict.fromkeys(place.split()[part] for place in places)] for part in (0, 1))
    trained = {
        f"{data}, {'all labels' if labels == 'all' else f'{labels} labels a class'}": {
            way: [found.get(("starts", f"{labels} {way}", f"{data} {start}")) for start in starts] for way in WAYS
        }
        for labels in LABELS[:2]
        for data in datasets
    }
    if trained:
        forest(folder / "starts.png", trained, "accuracy in percent", starts)


MAPS = {alpha: "final-supsiam-0" if alpha == "0.5" else f"alpha-{alpha}-0" for alpha in ALPHAS}  # file of each


def forest(path: Path, panels: Panels, unit: str, series: Sequence[str] = ("",), line: float | None = None) -> None:
    """A panel per title, a line per label: each number as a mark with its 95% interval."""
    wide = 3 if len(panels) == 6 else min(4, len(panels))
    high = -(-len(panels) // wide)
    labels = list(next(iter(panels.values())))
    size = (2 + 2.7 * wide, 0.9 + high * (0.9 + 0.3 * len(labels)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(high, wide, sharey=True, squeeze=False).flat
    for axis, (title, rows) in zip(axes, panels.items(), strict=False):
        for order, name in enumerate(series):
            for height, label in enumerate(labels):
                if each := rows[label][order]:
                    value, low, top = (float(text or each[3]) for text in each[3:6])
                    at = height + 0.25 * (order - (len(series) - 1) / 2)
                    axis.errorbar([value], [at], xerr=[[value - low], [top - value]], fmt=MARKERS[order],
                                  color=COLOURS[order], label=name if height == 0 else None)  # fmt: skip
        if line is not None:
            axis.axvline(line, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=11)
        axis.set_yticks(range(len(labels)), labels, fontsize=9)
        axis.set_ylim(len(labels) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
    if len(series) > 1:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=9)
    figure.supxlabel(unit, fontsize=10)
    figure.savefig(path, dpi=110)


def write_all(root: Path = ROOT, folder: Path = RESULTS) -> None:
    """Fill every page that is there, draw the figures, and write runs.csv."""
    found = by_name(folder)
    for page in (root / name for name in PAGES):
        if page.exists():
            write_text(page, fill(page.read_text(encoding="utf-8"), found))
    draw(root / "docs" / "figures", found, folder)
    write_text(folder / "runs.csv", runs_table(folder))
