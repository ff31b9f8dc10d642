"""`supancl paper`: what exists to reproduce the paper, its toy study, theory, ablations, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Unpack

from supancl.config import Count, Natural, checked
from supancl.distributed import require_single_process
from supancl.errors import BadInput, CheckFailed, did_you_mean
from supancl.files import Output, make_folder, write_json, write_text
from supancl.reporter import report_progress, say, show
from supancl.reports.page import picture_output
from supancl.reports.tables import plain_table
from supancl.runs.folder import next_folder
from supancl.sweeps import Sweep, SweepSettings, check_overrides, select_rows
from supancl.use import EncoderArgument, EncoderOptions, check_named_source, open_encoders
from supancl.use.look import listed_classes, split_title

if TYPE_CHECKING:
    from supancl.paper.layouts import Layout

STUDIES = Literal["pool", "positives", "batch", "memory", "alpha"]
ENDINGS = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}


# --- toy --------------------------------------------------------------------------------------------------------------


def toy(
    *, seeds: int = 3, quick: bool = False, reading: Literal["literal", "near"] = "near", out: str | Path | None = None
) -> dict[str, Any]:
    """Run the toy study of Sec. 4.3: Tables 1 and 2 and the t-SNE figure.

    Parameters
    ----------
    seeds
        seeds 0 to N - 1
    quick
        a quarter of the dimensions, samples and batch, half the epochs
    reading
        of App. B: literal, or near, which matches the paper's levels better (docs/measurements/toy-readings.md)
    out
        folder for tables, figure and toy.json (default: runs/toy-NNN)

    Examples
    --------
    $ supancl paper toy --quick
    $ supancl paper toy --out toy
    """
    checked(seeds, Count, "seeds")
    folder = Path(out) if out else next_folder("toy")
    Output(folder, replaces=lambda path: not (path / "toy.json").exists()).check()
    make_folder(folder)
    from supancl.paper import toy_study as study
    from supancl.paper.layouts import LAYOUTS
    from supancl.paper.pivot import as_table, fill, write
    from supancl.paper.results import read_entries
    from supancl.reports.pictures import tsne_panels

    size, task = study.QUICK if quick else study.FULL, f"epochs of {len(study.ALPHAS)} alphas x {seeds} seeds"
    progress = partial(report_progress, task)
    result, panels = study.run(study.READINGS[reading], size, list(range(seeds)), progress)
    write_json(folder / "toy.json", result)
    for name in ("1", "2"):
        filled = fill(LAYOUTS[name], read_entries([str(folder)]))
        show(as_table(filled))
        write_text(folder / f"table{name}.md", write(filled, "markdown"))
    for line in study.findings(result):
        say(line)
    tsne_panels(panels, tuple("ABC"), folder / "tsne.png")
    say(f"written to {folder}: toy.json, table1.md, table2.md, tsne.png")
    return {**result, "folder": str(folder)}


# --- theory -----------------------------------------------------------------------------------------------------------


def theory(*, seed: int = 0, samples: int = 8000) -> dict[str, Any]:
    """Check every statement of Sec. 4 and App. A on the shipped loss.

    Parameters
    ----------
    seed
        of populations, weights and samples
    samples
        size of the largest Monte-Carlo samples

    Examples
    --------
    $ supancl paper theory
    $ supancl paper theory --json theory.json
    """
    from supancl.paper.theory_checks import Settings
    from supancl.paper.theory_theorems import LARGEST_SEED, MIN_SAMPLES, run_and_time, theory_table

    if samples < MIN_SAMPLES:
        raise BadInput(f"samples = {samples}: must be at least {MIN_SAMPLES}")
    if not 0 <= seed <= LARGEST_SEED:
        raise BadInput(f"seed = {seed}: must be from 0 to {LARGEST_SEED}")
    checks, result = run_and_time(Settings(seed, samples))
    show(theory_table(checks))
    failed = [check for check in checks if check.passed is False]
    asserted = sum(check.asserted for check in checks)
    say(
        f"{asserted - len(failed)} of {asserted} asserted checks hold; {len(checks) - asserted} figures are reported "
        f"only ({result['seconds']} s, seed {seed})"
    )
    if failed:
        first = failed[0]
        message = f"{len(failed)} of {asserted} checks failed, first {first.statement}: {first.quantity}"
        raise CheckFailed(message, result)
    return result


# --- ablations --------------------------------------------------------------------------------------------------------


def collapse(recipe: str, **settings: Unpack[SweepSettings]) -> dict[str, Any]:
    """Measure whether a pool or a momentum branch prevents collapse (Table 8).

    Parameters
    ----------
    recipe
        a SupSiam or SupBYOL recipe, shared by all four cells

    Examples
    --------
    $ supancl paper collapse cifar100.supsiam --epochs 20
    $ supancl paper collapse digits.supsiam --seeds 3
    """
    return run_study("collapse", recipe, None, False, settings)


def study(
    what: STUDIES, recipe: str, *, rows: str | None = None, on_test: bool = False, **settings: Unpack[SweepSettings]
) -> dict[str, Any]:
    """Train the rows of an ablation: pool, positives, batch, memory or alpha.

    Parameters
    ----------
    what
        pool: the target pool's design (Table 7), and none; positives: M, the number of positives drawn from the pool
        (Table F.2); batch: batch size 128 and 256 (Table F.3); memory: SupCon with a memory bank at both batch sizes
        (Table F.3); alpha: alpha, trained on all classes (Tables 1, 3, F.1)
    recipe
        a recipe; rows differ from it only in what the study varies
    rows
        only these rows, a,b (default: all)
    on_test
        evaluate on the test split, to report, not to choose (default: held-out images)

    Examples
    --------
    $ supancl paper study pool cifar100.supsiam --data cifar100
    $ supancl paper study alpha imagenet100.supsiam --data photos
    """
    return run_study(what, recipe, rows, on_test, settings)


def run_study(what: str, recipe: str, rows: str | None, on_test: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    require_single_process("a study")
    from supancl.paper.studies import STUDIES, study_rows, train_rows, varied_fields
    from supancl.sweeps.runner import check_folder, check_monitored

    sweep = Sweep("collapse" if what == "collapse" else f"study-{what}", settings, seeds=1)
    base = sweep.recipe(recipe)
    STUDIES[what].check(base)
    check_overrides(sweep.given, {**varied_fields(what), "train.seed": "seeds"})
    check_monitored(base)
    selected = select_rows(study_rows(what, base), rows, "study")
    check_folder(sweep, base)
    result = train_rows(what, base, selected, sweep, on_test)
    say(f"the paper's table: supancl paper table {STUDIES[what].table} {sweep.out}")
    return result


# --- tables -----------------------------------------------------------------------------------------------------------


def table(
    name: str,
    *runs: str,
    format: Literal["text", "markdown", "latex", "csv"] = "text",
    benchmarks: str | None = None,
    family: Literal["imagenet100", "cifar100", "cifar10", "vit", "digits"] | None = None,
    recipe: str | None = None,
    rows: str | None = None,
    dry_run: bool = False,
    **settings: Unpack[SweepSettings],
) -> dict[str, Any]:
    """Print a table next to the paper's, from your runs or from runs that it trains.

    Parameters
    ----------
    name
        1 to 8, F.1, F.2, F.3, G.1 or H.1; table5 and f1 work too
    runs
        run folders, studies, detectors, toy studies, folders with evaluate/*.json; without runs and data: the paper's
        numbers alone
    format
        of the table
    benchmarks
        folder with the data sets of the columns
    family
        recipes to train (default: the paper's)
    recipe
        recipe to vary, for tables that vary one (default: supsiam)
    rows
        train only these rows, a,b (default: all)
    dry_run
        show the plan and the expected time, then stop

    Examples
    --------
    $ supancl paper table 4
    $ supancl paper table H.1 runs/a runs/b --format latex
    """
    from supancl.paper.layouts import LAYOUTS, table_name
    from supancl.paper.pivot import as_table, fill, write
    from supancl.paper.results import read_entries

    layout, out = LAYOUTS[table_name(name)], settings.get("out")
    trains = bool(set(settings) - {"out"}) or any((benchmarks, family, recipe, rows, dry_run))
    if trains and runs:
        raise BadInput(f"{runs[0]}: a table is filled from runs or trained, not both; name runs, or settings to train")
    if trains:
        sweep = Sweep(f"table-{layout.name}", {"out": f"runs/table-{layout.name}", **settings}, seeds=1)
        details = {"rows": rows, "family": family, "recipe": recipe, "benchmarks": benchmarks}
        return make_table(layout, sweep, details, format, dry_run)
    filled = fill(layout, read_entries(runs))
    if out is None:
        show(as_table(filled) if format == "text" else write(filled, format))
    else:
        Output(Path(out), tuple({"", Path(out).suffix.lower()}), replaces=Path.is_file).write(
            lambda path: path.write_text(write(filled, format), encoding="utf-8")
        )
        say(f"Table {layout.name} in {out}")
    return filled.to_json()


def make_table(layout: Layout, sweep: Sweep, details: Mapping[str, Any], form: str, dry_run: bool) -> dict[str, Any]:
    """Train and evaluate what is missing, then fill the table; the same command again continues."""
    require_single_process("a table")
    from supancl.paper.make import complete, make_plan
    from supancl.paper.pivot import write
    from supancl.sweeps.runner import RunsFailed

    out, plan = sweep.out, make_plan(layout, sweep, **details)
    states = {name: plan.state(name) for name in plan.runs}
    rows = [[name, recipe.name, states[name]] for name, recipe in plan.runs.items()]
    show(plain_table(f"Table {layout.name}, runs: {len(rows)}", ["run", "recipe", "state"], rows))
    if plan.without_recipe:
        say(f"not trained, because there is no recipe: {', '.join(plan.without_recipe)}")
    if dry_run:
        return {"table": layout.name, "out": str(out), "plan": states}
    filled, failed = complete(plan, sweep)
    text, file = write(filled, form), out / f"table.{ENDINGS[form]}"
    show(text)
    write_text(file, text)
    say(f"runs and {file.name} in {out}")
    result = filled.to_json() | {"out": str(out), "plan": {name: plan.state(name) for name in plan.runs}}
    if failed:
        raise RunsFailed(failed, result | {"rows": list(plan.runs)}, out)
    return result


# --- figures ----------------------------------------------------------------------------------------------------------


def figure(
    number: str | None = None,
    *runs: EncoderArgument,
    data: str | None = None,
    classes: str | None = None,
    groups: list[str] | None = None,
    split: Literal["held-out", "test", "train"] = "held-out",
    per_class: int = 50,
    seed: int = 0,
    out: str | Path = "figure3.png",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Draw a figure from your runs: t-SNE of chosen classes.

    Parameters
    ----------
    number
        number of the paper's figure (default: list them)
    runs
        [TITLE=]RUN, one panel each
    data
        the images (default: the runs' training data)
    classes
        class names a,b, or a file with one per line (default: the paper's 15 dogs and 5 birds if the data have them,
        else all if at most 20)
    groups
        GROUP=A,B: classes that share a family of colours; may be repeated
    split
        evaluated images
    per_class
        images per class at most
    seed
        of the choice of images and of t-SNE
    out
        a .png, .svg or .pdf; the numbers go to a .json next to it

    Examples
    --------
    $ supancl paper figure
    $ supancl paper figure 3 runs/a runs/b --classes cat,dog
    """
    require_single_process("a figure")
    wanted = re.sub(r"^fig(ure)?\.?\s*", "", (number or "").strip().lower())
    if wanted and wanted not in FIGURES:
        raise BadInput(f"unknown figure {number!r}{did_you_mean(wanted, FIGURES)}")
    if wanted != "3" or not runs:
        listed = {wanted: FIGURES[wanted]} if wanted else FIGURES
        for name, text in listed.items():
            say(f"Figure {name}: {text}")
        return {"figures": listed}
    picture = Path(out)
    picture_output(picture).check()
    make_folder(picture.parent)
    checked(per_class, Count, "per_class")
    checked(seed, Natural, "seed")
    if data is not None:
        check_named_source(data)
    titles, named = zip(*(split_title(run) for run in runs), strict=True)
    opened = open_encoders(list(named), options, saves_results=False)
    from supancl.paper.figure_3 import FigureRequest, draw_figure, panel_note

    layer = options.get("layer", "pooled")
    request = FigureRequest(data, listed_classes(classes), grouped_classes(groups), split, per_class, seed, layer)
    result = draw_figure(opened, list(titles), request, picture)
    for panel in result["panels"]:
        say(f"{panel['title']}: {panel_note(panel)}")
    say(
        f"{picture}: images: {len(result['labels'])}, classes: {len(result['classes'])}; numbers in "
        f"{picture.with_suffix('.json')}"
    )
    return result


FIGURES = {
    "1": "the framework, a drawing and not a result",
    "2": "t-SNE of SupSiam's features of the toy data by alpha; draw it with: supancl paper toy",
    "3": "t-SNE of 15 dog and 5 bird classes of ImageNet-100, SupSiam by alpha; draw it, or any classes of any runs, "
    "with: supancl paper figure 3 [TITLE=]RUN... --data SOURCE [--classes A,B,C] --out figure3.png",
}


def grouped_classes(groups: Sequence[str] | None) -> dict[str, list[str]]:
    """The class names of each GROUP=A,B."""
    grouped: dict[str, list[str]] = {}
    for text in groups or ():
        group, equals, members = text.partition("=")
        names = [name.strip() for name in members.split(",") if name.strip()]
        if not equals or not group.strip() or not names:
            raise BadInput(f"groups {text}: must be GROUP=A,B, such as dogs=Doberman,Rottweiler")
        grouped.setdefault(group.strip(), []).extend(names)
    return grouped
