"""`supancl data show|cache|check|where`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.data.opening import absolute_source, open_source
from supancl.data.show import copies, described, image_sizes
from supancl.data.sources import benchmarks
from supancl.data.sources.folder import check_apart
from supancl.data.splits import DataSpec, Source
from supancl.data.store.cache import CachedImages, cache_root, evict, list_caches, remove_cache
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, CheckFailed, counted
from supancl.recipes import Recipe, recipe
from supancl.reports.contact_sheet import image_sheet, view_sheet
from supancl.training.preflight import with_short_side
from supancl.weights.run_folder import next_folder

SHOWN_CLASSES = 12  # on screen, from either end; the JSON has all


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    return {"show": show, "cache": cache, "check": check, "where": where}[args.what](args, console)


# --- show -------------------------------------------------------------------------------------------------------------


def show(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    terminal = Terminal(console)
    out = Path(args.out) if args.out else next_folder("show")
    check_sheets(out)  # before the work, not after it
    check_apart(args.source, out)
    chosen = with_short_side(recipe(args.recipe)) if args.recipe else None
    channels = chosen.encoder.channels if chosen else 3
    side = chosen.data.short_side if chosen else 256
    # looking leaves nothing behind: every image is decoded once, and kept only where they are few
    spec = DataSpec(source=args.source, skip_bad_images=True, short_side=side, cache="never", memory_gb=0.25)
    found = open_source(spec, channels, terminal.reading, lenient=True)
    sizes = image_sizes(found, terminal.reading)
    if chosen is None:
        chosen = fitting_recipe(float(np.median(sizes.min(1))))
    facts = described(found, replace(spec, short_side=chosen.data.short_side), channels, sizes)
    facts["copies"] = copies(found, terminal.reading)
    print_facts(facts, console)
    print_copies(facts["copies"], console)
    facts["pictures"] = draw(found, chosen, out, console)
    return facts


def check_sheets(out: Path) -> None:
    for name in ("images.png", "views.png"):
        if (out / name).exists():
            raise BadInput(f"{out / name} exists; remove it or choose another --out")
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise BadInput(f"cannot write in {out} ({there} is a file); choose another --out")


def fitting_recipe(short_side: float) -> Recipe:
    return with_short_side(recipe("cifar100.supsiam" if short_side <= 64 else "imagenet100.supsiam"))


def draw(found: Source, chosen: Recipe, out: Path, console: Console) -> list[str]:
    train = found.splits["train"]
    if train.batch(train.index[:1] * 0).pixels.ndim != 4 or not isinstance(chosen.views, Crops):
        console.print("vectors have no contact sheet")
        return []
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write in {out} ({error.strerror}); choose another --out") from None
    image_sheet(train, found.classes, out / "images.png")
    view_sheet(train, chosen, out / "views.png")
    console.print(f"contact sheets: {out / 'images.png'} and, of the views of {chosen.name}, {out / 'views.png'}")
    return [str(out / "images.png"), str(out / "views.png")]


def print_facts(facts: dict[str, Any], console: Console) -> None:
    rows = [
        [name, *(f"{counts[key]:,}" for key in ("images", "labelled", "classes"))]
        for name, counts in facts["splits"].items()
    ]
    console.print(table(facts["source"], ["split", "images", "labelled", "classes"], rows))
    names = list(facts["splits"])
    lines = sorted(facts["histogram"].items(), key=lambda item: -sum(item[1].values()))
    most = max((sum(counts.values()) for _, counts in lines), default=1)
    shown = lines if len(lines) <= 2 * SHOWN_CLASSES else [*lines[:SHOWN_CLASSES], None, *lines[-SHOWN_CLASSES:]]
    rows = []
    for line in shown:
        if line is None:
            rows.append([f"... {len(lines) - 2 * SHOWN_CLASSES} more", *["" for _ in names], ""])
            continue
        kind, counts = line
        bar = "█" * max(1, round(24 * sum(counts.values()) / most)) if sum(counts.values()) else ""
        rows.append([kind, *[f"{counts[name]:,}" for name in names], bar])
    console.print(table("images by class", ["class", *names, ""], rows))
    for what, (low, middle, high) in facts["sizes"].items():
        console.print(f"{what}: {low} to {high} px, median {middle}" if low < high else f"{what}: {low} px")
    side = f" at short side {facts['short_side']}" if facts["short_side"] else ""
    console.print(f"decoded{side}: {facts['bytes'] / 1e6:,.1f} MB, kept {facts['kept']} when training")
    for remark in facts["remarks"]:
        console.print(f"remark: {remark}")
    unreadable = facts["unreadable"]
    console.print(f"{len(unreadable)} unreadable" + "".join(f"\n  {name}" for name in unreadable[:20]))
    empty = facts["empty_class_folders"]
    if empty:
        them = "it" if len(empty) == 1 else "them"
        console.print(
            f"{counted(len(empty), 'class folder')} without an image; pretrain refuses {them}: fill or "
            f"remove {them}" + "".join(f"\n  {name}" for name in empty[:20])
        )


def print_copies(found: dict[str, Any] | None, console: Console) -> None:
    if not found or not found["files"]:
        return
    images = counted(found["images"], "image", form=",")
    console.print(
        f"{found['files']:,} files are byte-for-byte copies of one another, of {images}; copies may fall on "
        "both sides of what is held out: keep one of each"
    )
    if found["in_several_splits"]:
        console.print(f"of {found['in_several_splits']:,} of these images there are copies in more than one split")
    if found["labels_differ"]:
        console.print(
            f"of {found['labels_differ']:,} of these images the copies have different labels"
            + "".join(f"\n  the same image as {one} and {other}" for one, other in found["examples"])
        )


# --- cache ------------------------------------------------------------------------------------------------------------


def cache(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.keep_gb is not None and args.keep_gb < 0:
        raise BadInput(f"--keep-gb {args.keep_gb:g}: must be at least 0")
    if args.remove:
        result = remove(args, console)
        keep(args, console)
        return result
    if args.list or args.source is None:
        if not args.list and args.keep_gb is None:
            raise BadInput("name a source to cache, or --list, or --keep-gb N")
        keep(args, console)
        return listed(console)
    result = build(args, console)
    keep(args, console, Path(result["folder"]))  # afterwards: what was just asked for is not what goes
    return result


def keep(args: argparse.Namespace, console: Console, spared: Path | None = None) -> None:
    """What --keep-gb asks for."""
    if args.keep_gb is None:
        return
    for old in evict(args.keep_gb * 1e9, waiting=waiting(console), spared=spared):
        console.print(f"removed {old.folder} ({old.nbytes / 1e9:.2f} GB, of {old.source})")
    left = sum(each.nbytes for each in list_caches()) / 1e9
    if spared is not None and left > args.keep_gb:
        console.print(f"{left:.3f} GB are left, more than --keep-gb {args.keep_gb:g}: {spared} itself is kept")


def listed(console: Console) -> dict[str, Any]:
    caches = list_caches()
    rows = [
        [
            str(each.folder.name),
            each.source,
            f"{each.images:,}",
            f"{each.nbytes / 1e9:.3f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.last_used)),
        ]
        for each in caches
    ]
    console.print(table(f"caches in {cache_root()}", ["folder", "source", "images", "GB", "last used"], rows))
    told = [
        {"folder": str(each.folder), "source": each.source, "images": each.images, "bytes": each.nbytes}
        for each in caches
    ]
    return {"root": str(cache_root()), "caches": told}


def waiting(console: Console) -> Callable[[str], None]:
    return lambda owner: console.print(f"process {owner} is building it; waiting")


def remove(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.source is None:
        raise BadInput("--remove: name the source whose cache is to go; --list shows them")
    # the folder of a source may be gone, and a cache may have lost the name of its source: any name will do
    # (but a source called features goes before the folder of that name in the cache)
    caches, paths = list_caches(), (absolute_source(args.source), str(Path(args.source).resolve()))
    gone = [each for each in caches if each.source in paths]
    gone = gone or [each for each in caches if args.source in (each.source, each.folder.name, str(each.folder))]
    if not gone:
        raise BadInput(f"nothing is cached of {args.source}; supancl data cache --list shows what is")
    for each in gone:
        remove_cache(each.folder, waiting(console))
        console.print(f"removed {each.folder} ({each.nbytes / 1e9:.3f} GB)")
    return {"removed": [str(each.folder) for each in gone]}


def build(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    chosen, terminal = with_short_side(recipe(args.recipe)), Terminal(console)
    if args.short_side is not None and args.short_side < 1:
        raise BadInput(f"--short-side {args.short_side}: must be at least 1")
    side = args.short_side or chosen.data.short_side
    spec = replace(
        chosen.data, source=args.source, short_side=side, cache="always", skip_bad_images=args.skip_bad_images
    )
    since = time.perf_counter()
    found = open_source(spec, chosen.encoder.channels, terminal.reading)
    store = found.splits["train"].store
    if not isinstance(store, CachedImages):
        raise BadInput(f"{args.source} is in memory already; a cache is for files")
    for remark in found.remarks:
        terminal.warn(remark)
    if args.verify:
        store.verify(terminal.reading)
    mended = store.mended if args.verify else None  # opening it has looked at some
    seconds = time.perf_counter() - since
    verified = "" if mended is None else f"; every checksum compared, {counted(mended, 'image')} mended"
    console.print(
        f"{store.cache.folder}: {counted(len(store), 'image', form=',')} at short side {side}, "
        f"{store.nbytes / 1e9:.3f} GB, {seconds:.1f} s{verified}"
    )
    return {
        "folder": str(store.cache.folder),
        "images": len(store),
        "bytes": store.nbytes,
        "short_side": side,
        "seconds": seconds,
        "mended": mended,
        "skipped": len(found.skipped),
    }


# --- benchmarks -------------------------------------------------------------------------------------------------------


def check(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    outcome = benchmarks.check_benchmark(args.name, Path(args.root))
    for line in outcome.lines:
        console.print(line)
    result = {**asdict(outcome), "folder": str(outcome.folder), "ok": outcome.ok}
    if not outcome.ok:
        raise CheckFailed(f"{args.name} in {args.root} is not whole; see: supancl data where {args.name}", result)
    return result


def where(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    text = benchmarks.where_text(args.name)
    console.print(text)
    return {"name": args.name, "where": text}
