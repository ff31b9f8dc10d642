"""`supancl detect train|eval|export`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.detect.export import export_detector
from supancl.detect.layouts import DetectData, open_test
from supancl.detect.metrics import coco_evaluator, coco_scores
from supancl.detect.model import absolute_encoder_name, move_to_device
from supancl.detect.saving import DetectFolder, load_detector
from supancl.detect.scenes import prepare_for_testing, relabelled
from supancl.detect.spec import DetectSpec, detect_spec
from supancl.detect.testing import detect
from supancl.detect.train import DetectRun, format_scores, precision_of, score_stats, train_detector
from supancl.errors import BadInput, Interrupted
from supancl.files import check_no_link, check_writable, jsonable, make_folder, write_sealed_json, write_text
from supancl.reports.detections import draw_detection_curves, draw_detection_sheet
from supancl.training.preflight import pick_device
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    return {"train": train, "eval": evaluate, "export": export}[args.action](args, console)


def data_from_flags(args: argparse.Namespace, saved: DetectData | None = None) -> DetectData:
    if args.data is None and saved is None:
        raise BadInput("name the images with --data: a VOC root, COCO's folder, or a COCO JSON")
    data = saved if args.data is None else DetectData(str(Path(args.data).resolve()))
    assert data is not None
    overrides: dict[str, str] = {"year": args.year} if args.year else {}
    overrides |= {name: str(Path(getattr(args, name)).resolve()) for name in ("test", "images") if getattr(args, name)}
    return replace(data, **overrides)


# --- train ------------------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    if args.resume and args.out is None:
        raise BadInput("--resume continues the run in --out; name it")
    out = Path(args.out) if args.out else next_folder("detect")
    encoder, data, spec = resolve_settings(args, out)
    folders = [out] if args.seeds == 1 else [out / f"seed-{spec.seed + i}" for i in range(args.seeds)]
    if args.seeds > 1 and DetectFolder(out).has_run:
        raise BadInput(f"{out} holds a single run; choose another --out for --seeds {args.seeds}")
    if args.seeds == 1 and not DetectFolder(out).has_run and any(out.glob("seed-*/detect.json")):
        raise BadInput(f"{out} holds runs of several seeds; give their number with --seeds N, or choose another --out")
    for folder in folders:  # all are checked before the first one starts
        if DetectFolder(folder).has_run and not args.resume:
            raise BadInput(f"{folder} already holds a run; continue it with --resume, or choose another --out")
    runs: dict[str, DetectRun] = {}
    for number, folder in enumerate(folders):
        seeded_spec = replace(spec, seed=spec.seed + number)
        try:
            run = train_detector(encoder, data, seeded_spec, folder, resume=args.resume, reporter=Terminal(console))
        except Interrupted as stop:
            if args.seeds == 1:
                raise
            command = f"supancl detect train --resume --seeds {args.seeds} --out {shlex.quote(str(out))}"
            raise Interrupted(
                f"{str(stop).partition(';')[0]} (seed {seeded_spec.seed}); continue with: {command}", stop.signal_number
            ) from None
        draw_detection_sheet(run.test, run.detections, folder / "detections.png")
        runs[f"seed {seeded_spec.seed}"] = run
    draw_detection_curves({name: run.metrics for name, run in runs.items()}, out / "curves.png")
    result = {
        "out": str(out),
        "encoder": encoder,
        "runs": {name: run.scores for name, run in runs.items()},
        "spread": score_stats([run.scores for run in runs.values()]),
        "pictures": [str(out / "curves.png"), *(str(folder / "detections.png") for folder in folders)],
    }
    if args.seeds > 1:
        text = json.dumps(jsonable(result), indent=2) + "\n"
        write_text(out / "seeds.json", text)
    print_scores(result, console)
    return result


def resolve_settings(args: argparse.Namespace, out: Path) -> tuple[str, DetectData, DetectSpec]:
    """Encoder, data and spec from the flags; a resumed run has saved ones, which the flags must match."""
    overrides = {name: value for name, (value, _) in args.overrides.items()}
    if isinstance(overrides.get("freeze"), str):
        overrides["freeze"] = [name for name in overrides["freeze"].split(",") if name]
    # the shorter number first: seed-5 before seed-10
    seed_files = sorted(out.glob("seed-*/detect.json"), key=lambda file: (len(file.parent.name), file.parent.name))
    candidates = [out / "detect.json", *seed_files] if args.resume else []
    started = next((file.parent for file in candidates if file.exists()), None)
    if started is None:
        if args.encoder is None:
            raise BadInput(
                "name an encoder: a run folder, an encoder.safetensors, a checkpoint or random:resnet50"
                + (f"; {out} holds no run to continue" if args.resume else "")
            )
        return args.encoder, data_from_flags(args), detect_spec("c4", overrides)
    spec, data, encoder, _ = DetectFolder(started).read_settings()
    requested = detect_spec(spec.arch, {"iters": spec.iters, **overrides})
    for name in overrides:
        if getattr(requested, name) != getattr(spec, name):
            raise BadInput(
                f"{name} = {getattr(requested, name)!r} differs from {getattr(spec, name)!r} in "
                f"{started / 'detect.json'}; a run continues with its own settings"
            )
    if args.encoder is not None and absolute_encoder_name(args.encoder) != encoder:
        raise BadInput(f"{started} began from {encoder}, not from {args.encoder}; leave it out to continue")
    return encoder, data_from_flags(args, data), spec


def print_scores(result: dict[str, Any], console: Console) -> None:
    names = ("AP", "AP50", "AP75")
    rows = [[name, *(score_cell(scores[key]) for key in names)] for name, scores in result["runs"].items()]
    if len(rows) > 1:
        stats = result["spread"]
        rows.append(["mean", *(score_cell(stats[key]["mean"]) for key in names)])
        rows.append(["std", *(score_cell(stats[key]["std"]) for key in names)])
    console.print(table(f"{result['encoder']} -> {result['out']}", ["run", *names], rows))
    console.print(f"pictures: {', '.join(result['pictures'])}")


def score_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- eval and export --------------------------------------------------------------------------------------------------


def evaluate(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    coco_evaluator()
    saved, device, terminal = load_detector(args.detector), pick_device(args.device), Terminal(console)
    folder = DetectFolder(Path(args.detector) if Path(args.detector).is_dir() else Path(args.detector).parent)
    saved_data = folder.read_settings()[1] if folder.has_run else None
    requested, out = data_from_flags(args, saved_data), Path(args.out) if args.out else folder.path / "evaluate"
    check_writable(out)
    if not args.out:
        check_no_link(out)
    test = open_test(requested)
    for remark in test.remarks:
        terminal.warn(remark)
    test = prepare_for_testing(relabelled(test, saved.classes))
    detector = move_to_device(saved.detector, device)
    precision = precision_of(saved.detector.spec, device)
    detections = detect(detector, test, device, precision, terminal.on_progress)
    scores = coco_scores(test, detections)
    make_folder(out)
    # detect.json, which tables read, has the scores on the run's own test images
    name = "detect" if args.out or requested == saved_data else f"detect-{data_label(requested)}"
    picture = out / ("detections.png" if name == "detect" else f"{name}.png")
    draw_detection_sheet(test, detections, picture)
    result = {
        **scores,
        "data": test.location,
        "detector": str(args.detector),
        "precision": precision,
        "picture": str(picture),
        "out": str(out / f"{name}.json"),
    }
    write_sealed_json(out / f"{name}.json", result)
    rows = [
        [name, *(score_cell(row[key]) for key in ("AP", "AP50", "AP75"))] for name, row in scores["classes"].items()
    ]
    console.print(table(f"{test.location}: {format_scores(scores)}", ["class", "AP", "AP50", "AP75"], rows))
    return result


def data_label(data: DetectData) -> str:
    """The data's name for a file: voc-2007, or the name of the COCO file."""
    path = Path(data.test or data.root)
    return path.stem if path.suffix == ".json" else f"{path.name}-{data.year}"


def export(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = export_detector(args.detector, args.out)
    console.print(f"{result['out']}: {result['tensors']} tensors of the {result['what']} under torchvision's names")
    return result
