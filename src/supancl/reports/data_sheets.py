"""`show_data`: what a source holds, with a picture of its images and one of their views; and its caches and layout."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.config import replaced
from supancl.data.opening import absolute_source, check_source
from supancl.data.sources import benchmarks
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import DataSpec, Source
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, CheckFailed
from supancl.files import check_is_new, left_over_files, make_folder
from supancl.recipes import Recipe, recipe
from supancl.recipes.shorthands import FIELDS, parse_set
from supancl.reporter import say, show, warn
from supancl.reports.tables import plain_table
from supancl.reports.terminal import block_letter
from supancl.runs.folder import next_folder

if TYPE_CHECKING:
    from supancl.data.store.cache import CachedImages

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
    """
    from supancl.data.opening import open_source
    from supancl.data.show import describe_source, image_sizes
    from supancl.training.start import with_short_side

    name, folder = str(source), Path(out) if out else next_folder("show")
    if "@" not in name:
        check_source(name)
    for picture in ("images.png", "views.png"):
        check_is_new(folder / picture)  # before the work, not after it
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise BadInput(f"cannot write in {folder} ({existing} is a file); choose another out")
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
    from supancl.recipes.auto import default_recipe, fit_recipe
    from supancl.training.start import with_short_side

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


# --- caches -----------------------------------------------------------------------------------------------------------


def cache(
    source: str | None = None,
    *,
    recipe: str = "imagenet100.supsiam",
    short_side: int | None = None,
    skip_bad_images: bool = False,
    verify: bool = False,
    remove: bool = False,
    list: bool = False,
    keep_gb: float | None = None,
) -> dict[str, Any]:
    """Decode images once and cache them on disk; list or remove caches.

    Parameters
    ----------
    source
        a source that is read from files
    recipe
        recipe whose image size is used
    short_side
        decode to this size instead
    skip_bad_images
        leave out unreadable images
    verify
        compare every checksum
    remove
        remove the source's caches of every size
    list
        list what is cached
    keep_gb
        remove the longest unused caches until at most this much is left

    Examples
    --------
    $ supancl data cache photos
    $ supancl data cache --list
    """
    if keep_gb is not None and keep_gb < 0:
        raise BadInput(f"keep_gb = {keep_gb:g}: must be at least 0")
    if remove:
        result = remove_caches(source)
        evict_caches(keep_gb)
        return result
    if list or source is None:
        if not list and keep_gb is None:
            raise BadInput("name a source to cache, or give list or keep_gb")
        evict_caches(keep_gb)
        return print_caches()
    check_source(source)
    if short_side is not None and short_side < 1:
        raise BadInput(f"short_side = {short_side}: must be at least 1")
    result = build_cache(source, recipe, short_side, skip_bad_images, verify)
    evict_caches(keep_gb, Path(result["folder"]))  # afterwards, so as to keep what was just built
    return result


def evict_caches(keep_gb: float | None, spared: Path | None = None) -> None:
    """Remove the longest unused caches."""
    from supancl.data.store.cache_folders import evict, list_caches

    if keep_gb is None:
        return
    for old in evict(keep_gb * 1e9, on_wait=say_waiting, keep=spared):
        say(f"removed {old.folder} ({old.nbytes / 1e9:.2f} GB, of {old.source})")
    left = sum(cached.nbytes for cached in list_caches()) / 1e9
    if spared is not None and left > keep_gb:
        say(f"{left:.3f} GB are left, more than keep_gb {keep_gb:g}: {spared} itself is kept")


def say_waiting(owner: str) -> None:
    say(f"process {owner} is building it; waiting")


def print_caches() -> dict[str, Any]:
    from supancl.data.store.cache import cache_root
    from supancl.data.store.cache_folders import list_caches

    caches = list_caches()
    rows = [
        [
            str(cached.folder.name),
            cached.source,
            f"{cached.images:,}",
            f"{cached.nbytes / 1e9:.3f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(cached.last_used)),
        ]
        for cached in caches
    ]
    show(plain_table(f"caches in {cache_root()}", ["folder", "source", "images", "GB", "last used"], rows))
    left_over = [file for cached in caches for file in left_over_files(cached.folder)]
    if left_over:
        say(f"temporary files of killed processes: {len(left_over)}; the next command that writes there removes them")
    entries = [
        {"folder": str(cached.folder), "source": cached.source, "images": cached.images, "bytes": cached.nbytes}
        for cached in caches
    ]
    return {"root": str(cache_root()), "caches": entries, "left_over": [str(file) for file in left_over]}


def remove_caches(source: str | None) -> dict[str, Any]:
    from supancl.data.store.cache_folders import list_caches, remove_cache

    if source is None:
        raise BadInput("remove: name the source whose cache to remove; list shows them")
    # the source may be gone, or its name lost from the cache: the cache's folder is accepted too
    # (a source called features takes precedence over the cache folder of that name)
    caches, paths = list_caches(), (absolute_source(source), str(Path(source).resolve()))
    removed = [cached for cached in caches if cached.source in paths]
    removed = removed or [c for c in caches if source in (c.source, c.folder.name, str(c.folder))]
    if not removed:
        raise BadInput(f"{source} is not cached; supancl data cache --list shows what is")
    for cached in removed:
        remove_cache(cached.folder, say_waiting)
        say(f"removed {cached.folder} ({cached.nbytes / 1e9:.3f} GB)")
    return {"removed": [str(cached.folder) for cached in removed]}


def build_cache(
    name: str, recipe_name: str, short_side: int | None, skip_bad_images: bool, verify: bool
) -> dict[str, Any]:
    from supancl.data.opening import open_source
    from supancl.data.store.cache import CachedImages
    from supancl.training.start import with_short_side

    selected = with_short_side(recipe(recipe_name))
    side = short_side or selected.data.short_side
    spec = replace(selected.data, source=name, short_side=side, cache="always", skip_bad_images=skip_bad_images)
    started = time.perf_counter()
    source = open_source(spec, selected.encoder.channels)
    store: CachedImages = source.splits["train"].store  # type: ignore[assignment]
    if not isinstance(store, CachedImages):
        raise BadInput(f"{name} is already in memory; only sources of files can be cached")
    for remark in source.remarks:
        warn(remark)
    if verify:
        store.verify()
    seconds = time.perf_counter() - started
    verified = "; every checksum compared" if verify else ""
    say(f"{store.cache.folder}: images: {len(store):,} at short side {side}, {store.nbytes / 1e9:.3f} GB{verified}")
    return {
        "folder": str(store.cache.folder),
        "images": len(store),
        "bytes": store.nbytes,
        "short_side": side,
        "seconds": seconds,
        "skipped": len(source.skipped),
    }


# --- benchmarks -------------------------------------------------------------------------------------------------------


def check(name: str, *, root: str) -> dict[str, Any]:
    """Check whether a benchmark data set is complete and in the right layout.

    Parameters
    ----------
    name
        a benchmark, such as pets
    root
        the folder that contains it

    Examples
    --------
    $ supancl data check pets --root benchmarks
    """
    outcome = benchmarks.check_benchmark(name, Path(root))
    for line in outcome.lines:
        say(line)
    result = {**asdict(outcome), "folder": str(outcome.folder), "ok": outcome.ok}
    if not outcome.ok:
        raise CheckFailed(f"{name} in {root} is incomplete; see: supancl data where {name}", result)
    return result


def where(name: str) -> dict[str, Any]:
    """Say what to download for a benchmark, and where to put it.

    Parameters
    ----------
    name
        a benchmark, such as pets

    Examples
    --------
    $ supancl data where pets
    """
    text = benchmarks.download_instructions(name)
    show(f"{text}\n")
    return {"name": name, "where": text}
