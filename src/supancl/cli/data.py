"""`supancl data show|cache|check|where`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.config import replaced
from supancl.data.opening import absolute_source, open_source
from supancl.data.show import describe_source, find_copies, image_sizes
from supancl.data.sources import benchmarks
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import DataSpec, Source
from supancl.data.store.cache import CachedImages, cache_root
from supancl.data.store.cache_folders import evict, list_caches, remove_cache
from supancl.data.survey import Survey
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, CheckFailed, plural
from supancl.files import check_is_new, left_over_files, make_folder
from supancl.recipes import Recipe, recipe
from supancl.recipes.auto import default_recipe
from supancl.reports.contact_sheet import draw_image_sheet, draw_view_sheet
from supancl.training.fitting import choose_settings
from supancl.training.preflight import with_short_side
from supancl.weights.run_folder import next_folder

MAX_CLASSES = 12  # printed from either end; the JSON has all


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    return {"show": show, "cache": cache, "check": check, "where": where}[args.action](args, console)


# --- show -------------------------------------------------------------------------------------------------------------


def show(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    out = Path(args.out) if args.out else next_folder("show")
    check_sheets(out)  # before the work, not after it
    check_out_folder(args.source, out)
    shown_recipe = with_short_side(recipe(args.recipe)) if args.recipe else None
    channels = shown_recipe.encoder.channels if shown_recipe else 3
    side = shown_recipe.data.short_side if shown_recipe else 256
    # writes no cache: every image is decoded once, and kept in memory only if there are few
    spec = DataSpec(source=args.source, skip_bad_images=True, short_side=side, cache="never", memory_gb=0.25)
    spec = with_data_fields(spec, args.overrides)
    source = open_source(spec, channels, lenient=True)
    sizes = image_sizes(source)
    if shown_recipe is None:
        shown_recipe = fitting_recipe(source, round(float(np.median(sizes.min(1)))))
    facts = describe_source(source, replace(spec, short_side=shown_recipe.data.short_side), channels, sizes)
    facts["copies"] = find_copies(source)
    print_facts(facts, console)
    print_copies(facts["copies"], console)
    facts["pictures"] = draw_sheets(source, shown_recipe, out, console)
    return facts


def with_data_fields(spec: DataSpec, overrides: Mapping[str, tuple[Any, str]]) -> DataSpec:
    """The settings with these fields of data, by their dotted names."""
    for field, (value, argument) in overrides.items():
        section, _, name = field.partition(".")
        if section != "data" or not name:
            raise BadInput(f"{argument}: only fields of data say how a source is read; leave it out")
        spec = replaced(spec, name, value, "data")
    return spec


def check_sheets(out: Path) -> None:
    for name in ("images.png", "views.png"):
        check_is_new(out / name)
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise BadInput(f"cannot write in {out} ({existing} is a file); choose another --out")


def fitting_recipe(source: Source, short_side: int) -> Recipe:
    """The recipe that `pretrain` would fit to these images."""
    train = source.splits["train"]
    survey = Survey(len(train), train.num_labelled, len(train.class_ids()), short_side)
    return with_short_side(choose_settings(recipe(default_recipe(survey)), survey))


def draw_sheets(source: Source, shown_recipe: Recipe, out: Path, console: Console) -> list[str]:
    train = source.splits["train"]
    if train.batch(train.index[:1] * 0).pixels.ndim != 4 or not isinstance(shown_recipe.views, Crops):
        console.print("vectors have no contact sheet")
        return []
    make_folder(out)
    draw_image_sheet(train, source.classes, out / "images.png")
    draw_view_sheet(train, shown_recipe, out / "views.png")
    console.print(f"contact sheets: {out / 'images.png'} and, of the views of {shown_recipe.name}, {out / 'views.png'}")
    return [str(out / "images.png"), str(out / "views.png")]


def print_facts(facts: dict[str, Any], console: Console) -> None:
    rows = [
        [name, *(f"{counts[key]:,}" for key in ("images", "labelled", "classes"))]
        for name, counts in facts["splits"].items()
    ]
    console.print(table(facts["source"], ["split", "images", "labelled", "classes"], rows))
    for name, counts in facts["splits"].items():
        if labels := counts.get("labels_per_image"):
            console.print(f"labels of {name}: {describe_labels(labels)}")
    if "levels" in facts:
        counts = ", ".join(plural(count, "class", "classes") for count in facts["levels"])
        console.print(f"{len(facts['levels'])} levels, the coarsest first: {counts}")
    names, block = list(facts["splits"]), "█" if console.encoding.startswith("utf") else "#"
    all_lines = sorted(facts["histogram"].items(), key=lambda item: -sum(item[1].values()))
    most = max((sum(counts.values()) for _, counts in all_lines), default=1)
    lines = (
        all_lines if len(all_lines) <= 2 * MAX_CLASSES else [*all_lines[:MAX_CLASSES], None, *all_lines[-MAX_CLASSES:]]
    )
    rows = []
    for line in lines:
        if line is None:
            rows.append([f"... {len(all_lines) - 2 * MAX_CLASSES} more", *["" for _ in names], ""])
            continue
        class_name, counts = line
        bar = block * max(1, round(24 * sum(counts.values()) / most)) if sum(counts.values()) else ""
        rows.append([class_name, *[f"{counts[name]:,}" for name in names], bar])
    console.print(table("images by class", ["class", *names, ""], rows))
    for side_name, (low, middle, high) in facts["sizes"].items():
        console.print(f"{side_name}: {low} to {high} px, median {middle}" if low < high else f"{side_name}: {low} px")
    limit = facts["short_side"]
    side = f" at short side {limit}" if limit and facts["sizes"].get("short side", (0, 0, 0))[2] > limit else ""
    console.print(f"decoded{side}: {facts['bytes'] / 1e6:,.1f} MB, kept {facts['kept']} when training")
    for remark in facts["remarks"]:
        console.print(f"remark: {remark}")
    unreadable = facts["unreadable"]
    console.print(f"{len(unreadable)} unreadable")
    print_indented([f"{path}: {reason}" for path, reason in unreadable.items()][:20], console)
    empty = facts["empty_class_folders"]
    if empty:
        them = "it" if len(empty) == 1 else "them"
        console.print(
            f"{plural(len(empty), 'class folder')} without an image; pretrain refuses {them}: fill or remove {them}"
        )
        print_indented(empty[:20], console)


def describe_labels(labels: dict[str, Any]) -> str:
    """Several or soft labels in words."""
    least, largest = labels["least_weight"], labels["largest_weight"]
    weights = f"of weight {least:g}" if least == largest else f"with weights from {least:g} to {largest:g}"
    return f"up to {labels['most']} per image, {labels['mean']:g} on average, {weights}"


def print_indented(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(f"  {line}")


def print_copies(copies: dict[str, Any] | None, console: Console) -> None:
    if not copies or not copies["files"]:
        return
    images = plural(copies["images"], "image", number_format=",")
    console.print(
        f"{copies['files']:,} files are byte-for-byte copies of {images}; copies may be both in training and "
        "held out: keep one of each"
    )
    if copies["in_several_splits"]:
        console.print(f"{copies['in_several_splits']:,} of these images have copies in more than one split")
    if copies["labels_differ"]:
        console.print(f"{copies['labels_differ']:,} of these images have copies with different labels")
        print_indented([f"the same image: {first} and {second}" for first, second in copies["examples"]], console)


# --- cache ------------------------------------------------------------------------------------------------------------


def cache(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.keep_gb is not None and args.keep_gb < 0:
        raise BadInput(f"--keep-gb {args.keep_gb:g}: must be at least 0")
    if args.remove:
        result = remove_caches(args, console)
        evict_caches(args, console)
        return result
    if args.list or args.source is None:
        if not args.list and args.keep_gb is None:
            raise BadInput("name a source to cache, or give --list or --keep-gb N")
        evict_caches(args, console)
        return print_caches(console)
    result = build_cache(args, console)
    evict_caches(args, console, Path(result["folder"]))  # afterwards, so as to keep what was just built
    return result


def evict_caches(args: argparse.Namespace, console: Console, spared: Path | None = None) -> None:
    """Remove the longest unused caches as --keep-gb says."""
    if args.keep_gb is None:
        return
    for old in evict(args.keep_gb * 1e9, on_wait=print_waiting(console), keep=spared):
        console.print(f"removed {old.folder} ({old.nbytes / 1e9:.2f} GB, of {old.source})")
    left = sum(cache.nbytes for cache in list_caches()) / 1e9
    if spared is not None and left > args.keep_gb:
        console.print(f"{left:.3f} GB are left, more than --keep-gb {args.keep_gb:g}: {spared} itself is kept")


def print_caches(console: Console) -> dict[str, Any]:
    caches = list_caches()
    rows = [
        [
            str(cache.folder.name),
            cache.source,
            f"{cache.images:,}",
            f"{cache.nbytes / 1e9:.3f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(cache.last_used)),
        ]
        for cache in caches
    ]
    console.print(table(f"caches in {cache_root()}", ["folder", "source", "images", "GB", "last used"], rows))
    left_over = [file for cache in caches for file in left_over_files(cache.folder)]
    if left_over:
        files = plural(len(left_over), "temporary file")
        console.print(f"{files} of killed processes; the next command that writes there removes them")
    entries = [
        {"folder": str(cache.folder), "source": cache.source, "images": cache.images, "bytes": cache.nbytes}
        for cache in caches
    ]
    return {"root": str(cache_root()), "caches": entries, "left_over": list(map(str, left_over))}


def print_waiting(console: Console) -> Callable[[str], None]:
    return lambda owner: console.print(f"process {owner} is building it; waiting")


def remove_caches(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.source is None:
        raise BadInput("--remove: name the source whose cache to remove; --list shows them")
    # the source may be gone, or its name lost from the cache: the cache's folder is accepted too
    # (a source called features takes precedence over the cache folder of that name)
    caches, paths = list_caches(), (absolute_source(args.source), str(Path(args.source).resolve()))
    removed = [cache for cache in caches if cache.source in paths]
    removed = removed or [
        cache for cache in caches if args.source in (cache.source, cache.folder.name, str(cache.folder))
    ]
    if not removed:
        raise BadInput(f"{args.source} is not cached; supancl data cache --list shows what is")
    for cache in removed:
        remove_cache(cache.folder, print_waiting(console))
        console.print(f"removed {cache.folder} ({cache.nbytes / 1e9:.3f} GB)")
    return {"removed": [str(cache.folder) for cache in removed]}


def build_cache(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    selected, terminal = with_short_side(recipe(args.recipe)), Terminal(console)
    if args.short_side is not None and args.short_side < 1:
        raise BadInput(f"--short-side {args.short_side}: must be at least 1")
    side = args.short_side or selected.data.short_side
    spec = replace(
        selected.data, source=args.source, short_side=side, cache="always", skip_bad_images=args.skip_bad_images
    )
    started = time.perf_counter()
    source = open_source(spec, selected.encoder.channels)
    store = source.splits["train"].store
    if not isinstance(store, CachedImages):
        raise BadInput(f"{args.source} is already in memory; only sources of files can be cached")
    for remark in source.remarks:
        terminal.warn(remark)
    if args.verify:
        store.verify()
    mended = store.repaired if args.verify else None  # opening alone checks only some
    seconds = time.perf_counter() - started
    verified = "" if mended is None else f"; every checksum compared, {plural(mended, 'image')} repaired"
    console.print(
        f"{store.cache.folder}: {plural(len(store), 'image', number_format=',')} at short side {side}, "
        f"{store.nbytes / 1e9:.3f} GB, {seconds:.1f} s{verified}"
    )
    return {
        "folder": str(store.cache.folder),
        "images": len(store),
        "bytes": store.nbytes,
        "short_side": side,
        "seconds": seconds,
        "mended": mended,
        "skipped": len(source.skipped),
    }


# --- benchmarks -------------------------------------------------------------------------------------------------------


def check(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    outcome = benchmarks.check_benchmark(args.name, Path(args.root))
    for line in outcome.lines:
        console.print(line)
    result = {**asdict(outcome), "folder": str(outcome.folder), "ok": outcome.ok}
    if not outcome.ok:
        raise CheckFailed(f"{args.name} in {args.root} is incomplete; see: supancl data where {args.name}", result)
    return result


def where(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    text = benchmarks.download_instructions(args.name)
    console.print(f"{text}\n", end="")
    return {"name": args.name, "where": text}
