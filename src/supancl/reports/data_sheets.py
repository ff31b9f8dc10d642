"""`show_data`: what a source holds, with a picture of its images and one of their views; and checks of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.config import replaced
from supancl.data.decode import image_problem, map_in_order, shrunk_size, upright_size
from supancl.data.labels import describe_labels
from supancl.data.opening import SKIPPED, check_source
from supancl.data.sources import benchmarks
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import DataSpec, Source, Split
from supancl.data.store.building import AUTO_CACHE_BYTES
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, CheckFailed
from supancl.files import Output, make_folder
from supancl.recipes import Recipe, recipe
from supancl.recipes.shorthands import FIELDS, parse_set
from supancl.reporter import report_progress, say, show
from supancl.reports.tables import plain_table
from supancl.reports.terminal import block_letter
from supancl.runs.folder import next_folder

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

MAX_CLASSES = 12  # printed from either end; the JSON has all


def show_data(
    source: str | Path,
    *,
    recipe: str | None = None,
    columns: str = "",
    set: Mapping[str, Any] | list[str] | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Summarize a source: images, labels and classes, unreadable files, and pictures of images and views.

    Parameters
    ----------
    source
        a folder, .npz, .csv, .parquet, .tar shards, torchvision:NAME@ROOT, hf:NAME or a built-in name
    recipe
        recipe whose views are drawn (default: the one that pretrain would choose)
    columns
        columns of a .csv, if they have other names: image=file,label=species[,split=part]
    set
        any field of data, such as data.limit=1000
    out
        folder for the pictures (default: runs/show-NNN)

    Returns
    -------
    dict
        counts, sizes, unreadable files and the paths of the pictures

    Examples
    --------
    $ supancl data show photos
    $ supancl data show labels.csv --out sheet
    """
    from supancl.data.opening import open_source
    from supancl.recipes.auto import with_short_side

    name, folder = str(source), Path(out) if out else next_folder("show")
    if "@" not in name:
        check_source(name)
    for picture in ("images.png", "views.png"):
        Output(folder / picture, (".png",)).check()
    check_out_folder(name, folder)
    shown = with_short_side(find_named_recipe(recipe)) if recipe else None
    channels, side = (shown.encoder.channels, shown.data.short_side) if shown else (3, 256)
    # writes no cache: every image is decoded once, and kept in memory only if there are few
    spec = DataSpec(source=name, skip_bad_images=True, short_side=side, cache="never", memory_gb=0.25, columns=columns)
    for field, value in parse_set(set).items():
        section, _, inner = FIELDS.get(field, field).partition(".")
        if section != "data" or not inner:
            raise BadInput(f"{field}: only fields of data say how a source is read; leave it out")
        spec = replaced(spec, inner, value, "data")
    opened = open_source(spec, channels, lenient=True)
    sizes = image_sizes(opened)
    if shown is None:
        shown = fitting_recipe(opened, round(float(np.median(sizes.min(1)))))
    facts = describe_source(opened, replace(spec, short_side=shown.data.short_side), channels, sizes)
    print_facts(facts)
    facts["pictures"] = draw_sheets(opened, shown, folder)
    return facts


def find_named_recipe(name: str) -> Recipe:
    return recipe(name)


def fitting_recipe(source: Source, short_side: int) -> Recipe:
    """The recipe that `pretrain` would fit to these images."""
    from supancl.core.precision import pick_device
    from supancl.data.survey import Survey
    from supancl.recipes.auto import default_recipe, fit_recipe, with_short_side

    train = source.splits["train"]
    survey = Survey(len(train), train.num_labelled, len(train.class_ids()), short_side)
    return with_short_side(fit_recipe(recipe(default_recipe(survey)), survey, pick_device("auto").type == "cuda"))


def draw_sheets(source: Source, shown: Recipe, out: Path) -> list[str]:
    from supancl.reports.samples import draw_image_sheet, draw_view_sheet

    train = source.splits["train"]
    if train.batch(train.index[:1] * 0).pixels.ndim != 4 or not isinstance(shown.views, Crops):
        say("vectors have no contact sheet")
        return []
    make_folder(out)
    draw_image_sheet(train, source.classes, out / "images.png")
    draw_view_sheet(train, shown, out / "views.png")
    say(f"contact sheets: {out / 'images.png'} and, of the views of {shown.name}, {out / 'views.png'}")
    return [str(out / "images.png"), str(out / "views.png")]


def print_facts(facts: dict[str, Any]) -> None:
    rows = [
        [name, *(f"{counts[key]:,}" for key in ("images", "labelled", "classes"))]
        for name, counts in facts["splits"].items()
    ]
    show(plain_table(facts["source"], ["split", "images", "labelled", "classes"], rows))
    for name, counts in facts["splits"].items():
        if labels := counts.get("labels_per_image"):
            least, largest = labels["least_weight"], labels["largest_weight"]
            weights = f"of weight {least:g}" if least == largest else f"with weights from {least:g} to {largest:g}"
            say(f"labels of {name}: up to {labels['most']} per image, {labels['mean']:g} on average, {weights}")
    if "levels" in facts:
        say(
            f"levels: {len(facts['levels'])}; classes, the coarsest level first: {', '.join(map(str, facts['levels']))}"
        )
    show(plain_table("images by class", ["class", *facts["splits"], ""], histogram_rows(facts)))
    for side_name, (low, middle, high) in facts["sizes"].items():
        say(f"{side_name}: {low} to {high} px, median {middle}" if low < high else f"{side_name}: {low} px")
    limit = facts["short_side"]
    side = f" at short side {limit}" if limit and facts["sizes"].get("short side", (0, 0, 0))[2] > limit else ""
    say(f"decoded{side}: {facts['bytes'] / 1e6:,.1f} MB, kept {facts['kept']} when training")
    for remark in facts["remarks"]:
        say(f"remark: {remark}")
    say(f"unreadable images: {len(facts['unreadable'])}")
    print_indented([f"{path}: {reason}" for path, reason in facts["unreadable"].items()][:20])
    if empty := facts["empty_class_folders"]:
        say(f"class folders without an image: {len(empty)}; pretrain refuses them: fill or remove them")
        print_indented(empty[:20])


def histogram_rows(facts: dict[str, Any]) -> list[list[str]]:
    """Images by class and split with a bar; of many classes the largest and the smallest."""
    names, block = list(facts["splits"]), block_letter()
    lines: list[Any] = sorted(facts["histogram"].items(), key=lambda item: -sum(item[1].values()))
    most = max((sum(counts.values()) for _, counts in lines), default=1)
    rows = []
    for class_name, counts in lines:
        total = sum(counts.values())
        bar = block * max(1, round(24 * total / most)) if total else ""
        rows.append([class_name, *[f"{counts[name]:,}" for name in names], bar])
    left_out = len(rows) - 2 * MAX_CLASSES
    if left_out <= 0:
        return rows
    return [*rows[:MAX_CLASSES], [f"... {left_out} more", *["" for _ in names], ""], *rows[-MAX_CLASSES:]]


def print_indented(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"  {line}")


# --- counts and sizes -------------------------------------------------------------------------------------------------


def describe_source(source: Source, spec: DataSpec, channels: int, sizes: np.ndarray) -> dict[str, Any]:
    """Counts by split and class, sizes as stored (from `image_sizes`), bytes of decoded pixels."""
    splits: dict[str, dict[str, Any]] = {}
    for name, split in source.splits.items():
        splits[name] = {"images": len(split), "labelled": split.num_labelled, "classes": len(split.class_ids())}
        if not split.all_labels.has_one_each:
            splits[name]["labels_per_image"] = describe_labels(split.all_labels)
    short_side = spec.short_side if source.items else None  # arrays are not shrunk
    decoded = np.array([shrunk_size((int(h), int(w)), short_side) for h, w in sizes], np.int64).reshape(-1, 2)
    # unreadable images have their own entry
    remarks = [remark for remark in source.remarks if not remark.startswith(SKIPPED)]
    in_memory = sum(split.store.nbytes for split in source.splits.values())
    levels = {"levels": np.bincount(source.levels).tolist()} if source.levels else {}
    nbytes = channels * int(decoded.prod(1).sum()) if source.items else in_memory
    return {
        "source": spec.source,
        "splits": splits,
        "classes": len(source.classes),
        **levels,
        "histogram": histogram(source),
        "sizes": summarize_sizes(sizes),
        "short_side": short_side,
        "bytes": nbytes,
        "kept": "in the packed cache" if source.items and nbytes > AUTO_CACHE_BYTES else "in memory",
        "unreadable": dict(source.skipped),
        "empty_class_folders": list(source.empty_folders),
        "remarks": remarks,
    }


def histogram(source: Source) -> dict[str, dict[str, int]]:
    """class -> split -> number of images, in label order, unlabelled images last."""
    counts, unlabelled = {}, {}
    for name, split in source.splits.items():
        counts[name] = split.all_labels.counts(len(source.classes)).tolist()
        unlabelled[name] = len(split) - split.num_labelled
    counts_by_class = {
        class_name: {name: counts[name][label] for name in counts} for label, class_name in enumerate(source.classes)
    }
    return counts_by_class | ({"(unlabelled)": unlabelled} if any(unlabelled.values()) else {})


def image_sizes(source: Source) -> np.ndarray:
    """(N, 2): height and width of every image as stored, read from file headers."""

    def read_size(item: Any) -> tuple[int, int]:
        try:
            return upright_size(item)
        except (OSError, ValueError) as error:
            raise _no_longer_readable(item, error) from None

    if source.items:
        sizes = []
        for done, size in enumerate(map_in_order(read_size, source.items), start=1):
            sizes.append(size)
            report_progress("reading sizes", done, len(source.items))
        return np.array(sizes, np.int64).reshape(-1, 2)
    return np.concatenate([_array_sizes(split) for split in source.splits.values()])


def _no_longer_readable(item: object, error: OSError | ValueError) -> BadInput:
    return BadInput(f"{item}: was readable before, now it is not ({image_problem(error)}); restore it and try again")


def _array_sizes(split: Split) -> np.ndarray:
    pixels = split.batch(torch.arange(len(split))[:1]).pixels
    height, width = pixels.shape[-2:] if pixels.ndim == 4 else (1, pixels.shape[-1])
    return np.tile([[height, width]], (len(split), 1))


def summarize_sizes(sizes: np.ndarray) -> dict[str, list[int]]:
    """[smallest, median, largest] of heights, widths and short sides."""

    def min_median_max(values: np.ndarray) -> list[int]:
        return [int(values.min()), int(np.median(values)), int(values.max())]

    return {
        "height": min_median_max(sizes[:, 0]),
        "width": min_median_max(sizes[:, 1]),
        "short side": min_median_max(sizes.min(1)),
    }


# --- benchmarks -------------------------------------------------------------------------------------------------------


def check(name: str, *, root: str | None = None) -> dict[str, Any]:
    """Check whether a benchmark data set is complete and in the right layout; without a root, say where to get it.

    Parameters
    ----------
    name
        a benchmark, such as pets
    root
        the folder that contains it

    Examples
    --------
    $ supancl data check pets
    $ supancl data check pets --root benchmarks
    """
    if root is None:
        text = benchmarks.download_instructions(name)
        show(f"{text}\n")
        return {"name": name, "where": text}
    outcome = benchmarks.check_benchmark(name, Path(root))
    for line in outcome.lines:
        say(line)
    result = {**asdict(outcome), "folder": str(outcome.folder), "ok": outcome.ok}
    if not outcome.ok:
        raise CheckFailed(f"{name} in {root} is incomplete; see: supancl data check {name}", result)
    return result
