"""`supancl detect train|eval|compare|crops|export`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.detect.comparing import compared, open_finished
from supancl.detect.crops import check_crops, write_crops
from supancl.detect.export import export_detector
from supancl.detect.layouts import DetectData, open_scenes, open_test
from supancl.detect.metrics import coco_counter, coco_scores
from supancl.detect.model import absolute_encoder, laid_out
from supancl.detect.saving import DetectFolder, load_detector
from supancl.detect.scenes import for_testing, relabelled
from supancl.detect.spec import DetectSpec, detect_spec
from supancl.detect.testing import detect
from supancl.detect.train import DetectRun, precision_of, spread, told, train_detector
from supancl.errors import BadInput, Interrupted, counted
from supancl.files import check_place, jsonable, write_text
from supancl.reports.detection_table import COLUMNS, comparison_markdown, comparison_row
from supancl.reports.detections import class_bars, comparison_curves, detection_curves, detection_sheet
from supancl.training.preflight import pick_device
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    what = {"train": train, "eval": evaluate, "compare": compare, "crops": crops, "export": export}
    return what[args.what](args, console)


def data_of(args: argparse.Namespace, kept: DetectData | None = None) -> DetectData:
    if args.data is None and kept is None:
        raise BadInput("name the images with --data: a VOC root, COCO's folder, or a COCO JSON")
    data = kept if args.data is None else DetectData(str(Path(args.data).resolve()))
    assert data is not None
    given: dict[str, str] = {"year": args.year} if args.year else {}
    given |= {name: str(Path(getattr(args, name)).resolve()) for name in ("test", "images") if getattr(args, name)}
    return replace(data, **given)


# --- train ------------------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    if args.resume and args.out is None:
        raise BadInput("--resume continues the run in --out; name it")
    out = Path(args.out) if args.out else next_folder("detect")
    encoder, data, spec = settings_of(args, out)
    folders = [out] if args.seeds == 1 else [out / f"seed-{spec.seed + i}" for i in range(args.seeds)]
    if args.seeds > 1 and DetectFolder(out).holds_run:
        raise BadInput(f"{out} holds a single run; choose another --out for --seeds {args.seeds}")
    if args.seeds == 1 and not DetectFolder(out).holds_run and any(out.glob("seed-*/detect.json")):
        raise BadInput(f"{out} holds runs of several seeds; say of how many with --seeds N, or choose another --out")
    for folder in folders:  # asked of all before the first is begun
        if DetectFolder(folder).holds_run and not args.resume:
            raise BadInput(f"{folder} already holds a run; continue it with --resume, or choose another --out")
    runs: dict[str, DetectRun] = {}
    for number, folder in enumerate(folders):
        one = replace(spec, seed=spec.seed + number)
        try:
            run = train_detector(encoder, data, one, folder, resume=args.resume, reporter=Terminal(console))
        except Interrupted as stop:
            if args.seeds == 1:
                raise
            how = f"supancl detect train --resume --seeds {args.seeds} --out {shlex.quote(str(out))}"
            raise Interrupted(
                f"{str(stop).partition(';')[0]} (seed {one.seed}); continue with: {how}", stop.signal_number
            ) from None
        detection_sheet(run.test, run.found, folder / "detections.png")
        runs[f"seed {one.seed}"] = run
    detection_curves({name: run.metrics for name, run in runs.items()}, out / "curves.png")
    result = {
        "out": str(out),
        "encoder": encoder,
        "runs": {name: run.scores for name, run in runs.items()},
        "spread": spread([run.scores for run in runs.values()]),
        "pictures": [str(out / "curves.png"), *(str(folder / "detections.png") for folder in folders)],
    }
    if args.seeds > 1:
        text = json.dumps(jsonable(result), indent=2) + "\n"
        write_text(out / "seeds.json", text)
    print_scores(result, console)
    return result


def settings_of(args: argparse.Namespace, out: Path) -> tuple[str, DetectData, DetectSpec]:
    """What is asked for; a run that is continued brings its own settings, and what is asked for must agree."""
    overrides = {name: value for name, (value, _) in args.overrides.items()}
    if isinstance(overrides.get("freeze"), str):
        overrides["freeze"] = [name for name in overrides["freeze"].split(",") if name]
    # the shorter number first: seed-5 before seed-10
    several = sorted(out.glob("seed-*/detect.json"), key=lambda file: (len(file.parent.name), file.parent.name))
    kept = [out / "detect.json", *several] if args.resume else []
    begun = next((file.parent for file in kept if file.exists()), None)
    if begun is None:
        if args.encoder is None:
            raise BadInput(
                "name an encoder: a run folder, an encoder.safetensors, a checkpoint or random:resnet50"
                + (f"; {out} holds no run to continue" if args.resume else "")
            )
        return args.encoder, data_of(args), detect_spec("c4", overrides)
    spec, data, encoder, _ = DetectFolder(begun).read_settings()
    asked = detect_spec(spec.arch, {"iters": spec.iters, **overrides})
    for name in overrides:
        if getattr(asked, name) != getattr(spec, name):
            raise BadInput(
                f"{name} = {getattr(asked, name)!r} differs from {getattr(spec, name)!r} in "
                f"{begun / 'detect.json'}; a run continues with its own settings"
            )
    if args.encoder is not None and absolute_encoder(args.encoder) != encoder:
        raise BadInput(f"{begun} began from {encoder}, not from {args.encoder}; leave it out to continue")
    return encoder, data_of(args, data), spec


def print_scores(result: dict[str, Any], console: Console) -> None:
    names = ("AP", "AP50", "AP75")
    rows = [[name, *(cell(scores[key]) for key in names)] for name, scores in result["runs"].items()]
    if len(rows) > 1:
        spreads = result["spread"]
        rows.append(["mean", *(cell(spreads[key]["mean"]) for key in names)])
        rows.append(["std", *(cell(spreads[key]["std"]) for key in names)])
    console.print(table(f"{result['encoder']} -> {result['out']}", ["run", *names], rows))
    console.print(f"pictures: {', '.join(result['pictures'])}")


def cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- what goes before, what comes after -------------------------------------------------------------------------------


def crops(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    check_crops(Path(args.out), args.margin, args.least)
    train, test = open_scenes(data_of(args))
    terminal = Terminal(console)
    for remark in (*train.remarks, *test.remarks):
        terminal.warn(remark)
    how = {"margin": args.margin, "least": args.least, "difficult": args.difficult}
    result = write_crops(train, test, Path(args.out), **how, progress=terminal.reading)
    terminal.ends()
    rows = [
        [name, *(str(result[name][key]) for key in ("images", "boxes", "crops")), str(len(result[name]["classes"]))]
        for name in ("train", "val")
    ]
    console.print(table(f"crops -> {args.out}", ["split", "images", "boxes", "crops", "classes"], rows))
    console.print(f"pretrain on them: supancl pretrain imagenet100.supsiam --data {shlex.quote(args.out)}")
    return result


def compare(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    runs = [run for text in args.runs for run in open_finished(text)]
    result, out = compared(runs), Path(args.out)
    made_folder(out)
    for remark in result["remarks"]:
        Terminal(console).warn(remark)
    groups = {name: [run.rows for run in runs if run.name == name] for name in result["groups"]}
    comparison_curves(groups, out / "curves.png")
    class_bars({name: group["classes_AP50"] for name, group in result["groups"].items()}, out / "classes.png")
    texts = {"compare.json": json.dumps(jsonable(result), indent=2) + "\n", "compare.md": comparison_markdown(result)}
    for name, text in texts.items():
        write_text(out / name, text)
    rows = [comparison_row(name, group) for name, group in result["groups"].items()]
    console.print(table(f"{counted(len(runs), 'run')} -> {out}", COLUMNS, rows))
    return result


def made_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write in {out} ({error.strerror}); choose another --out") from None


# --- eval and export --------------------------------------------------------------------------------------------------


def evaluate(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    coco_counter()
    saved, device, terminal = load_detector(args.detector), pick_device(args.device), Terminal(console)
    folder = DetectFolder(Path(args.detector) if Path(args.detector).is_dir() else Path(args.detector).parent)
    kept = folder.read_settings()[1] if folder.holds_run else None
    asked, out = data_of(args, kept), Path(args.out) if args.out else folder.path / "evaluate"
    check_place(out)
    test = open_test(asked)
    for remark in test.remarks:
        terminal.warn(remark)
    test = for_testing(relabelled(test, saved.classes))
    detector = laid_out(saved.detector, device)
    precision = precision_of(saved.detector.spec, device)
    found = detect(detector, test, device, precision, terminal.reading)
    scores = coco_scores(test, found)
    made_folder(out)
    # the run's own scores, which `compare` reads, are those on its own test images
    name = "detect" if args.out or asked == kept else f"detect-{label_of(asked)}"
    picture = out / ("detections.png" if name == "detect" else f"{name}.png")
    detection_sheet(test, found, picture)
    result = {
        **scores,
        "data": test.where,
        "detector": str(args.detector),
        "precision": precision,
        "picture": str(picture),
        "out": str(out / f"{name}.json"),
    }
    text = json.dumps(jsonable(result), indent=2) + "\n"
    write_text(out / f"{name}.json", text)
    rows = [[name, *(cell(row[key]) for key in ("AP", "AP50", "AP75"))] for name, row in scores["classes"].items()]
    console.print(table(f"{test.where}: {told(scores)}", ["class", "AP", "AP50", "AP75"], rows))
    return result


def label_of(data: DetectData) -> str:
    """Data in the name of a file: voc-2007, or the COCO file's own name."""
    place = Path(data.test or data.root)
    return place.stem if place.suffix == ".json" else f"{place.name}-{data.year}"


def export(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = export_detector(args.detector, args.format, args.out)
    console.print(
        f"{result['out']}: {result['tensors']} tensors of the {result['what']} under {args.format}'s names"
        + (f"; its settings: {result['settings']}" if result["settings"] else "")
    )
    return result
