"""`supancl detect`: fine-tune a detector from an encoder, and test it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict, Unpack

from supancl.config import replaced
from supancl.errors import BadInput, Interrupted
from supancl.files import Output, check_no_link, make_folder, write_json, write_sealed_json
from supancl.recipes.shorthands import parse_set
from supancl.reporter import current_reporter, report_progress, say, show
from supancl.reports.tables import plain_table
from supancl.runs.folder import next_folder

if TYPE_CHECKING:
    from supancl.detection import DetectSpec
    from supancl.detection.scenes import DetectData
    from supancl.detection.train import DetectRun

SCORES = ("AP", "AP50", "AP75")


class DetectPlace(TypedDict, total=False):
    """Images with boxes.

    Parameters
    ----------
    data
        a VOC root (it holds VOCdevkit/), COCO's folder, or a COCO JSON
    year
        lists of VOC: both years, or one of them
    test
        a COCO JSON to test on
    images
        the folder of a COCO JSON's images (default: the JSON's folder)
    """

    data: str
    year: Literal["07+12", "2007", "2012"]
    test: str
    images: str


class DetectSettings(DetectPlace, total=False):
    """Settings of the detector; `set` takes any other field.

    Parameters
    ----------
    arch
        c4 (as the paper) or fpn
    iters
        iterations; the schedule scales with them
    batch_size
        images per step
    lr
        learning rate at this batch size
    freeze
        stages that are not trained: stem,layer1,...
    seed
        of new layers, order and views
    device
        auto, cpu or cuda
    precision
        auto, fp32 or bf16
    eval_every
        steps between tests (0: only at the end)
    """

    arch: Literal["c4", "fpn"]
    iters: int
    batch_size: int
    lr: float
    freeze: tuple[str, ...]
    seed: int
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    eval_every: int


def detect(
    encoder: str | None = None,
    *,
    set: Mapping[str, Any] | list[str] | None = None,
    seeds: int = 1,
    resume: bool = False,
    out: str | Path | None = None,
    **settings: Unpack[DetectSettings],
) -> dict[str, Any]:
    """Fine-tune an object detector from an encoder, and test it.

    Parameters
    ----------
    encoder
        a run folder, encoder.safetensors, checkpoint, or random:resnet50
    set
        any field of the detector's settings
    seeds
        N runs with seeds 0, 1, ..., mean and spread
    resume
        continue the run in out
    out
        folder of the run (default: runs/detect-NNN)
    settings
        the images, and settings of the detector (`supancl detect train --help`)

    Returns
    -------
    dict
        scores of each run, and the paths of the pictures

    Examples
    --------
    $ supancl detect train runs/photos --data VOC --iters 2000
    $ supancl detect train timm:resnet50 --data VOC
    """
    if seeds < 1:
        raise BadInput(f"seeds = {seeds}: must be at least 1")
    if resume and out is None:
        raise BadInput("resume continues the run in out; name it")
    from supancl.detection.train import DetectFolder, score_stats, train_detector
    from supancl.reports.pictures import draw_detection_curves, draw_detection_sheet

    folder = Path(out) if out else next_folder("detect")
    encoder, source, spec = resolve_settings(encoder, {**settings, **parse_set(set)}, folder if resume else None)
    folders = [folder] if seeds == 1 else [folder / f"seed-{spec.seed + i}" for i in range(seeds)]
    if any(folder.glob("seed-*/detect.json")) if seeds == 1 else (folder / "detect.json").exists():
        raise BadInput(f"{folder} holds runs of another number of seeds; choose another out")
    for path in folders:  # all are checked before the first one starts
        DetectFolder(path).check_free(resume)
    runs: dict[str, DetectRun] = {}
    for number, path in enumerate(folders):
        seeded_spec = replace(spec, seed=spec.seed + number)
        try:
            run = train_detector(encoder, source, seeded_spec, path, resume=resume, reporter=current_reporter())
        except Interrupted as stop:
            command = f"supancl detect train --resume --seeds {seeds} --out {shlex.quote(str(folder))}"
            raise Interrupted(f"{str(stop).partition(';')[0]}; continue with: {command}", stop.signal_number) from None
        draw_detection_sheet(run.test, run.detections, path / "detections.png")
        runs[f"seed {seeded_spec.seed}"] = run
    draw_detection_curves({name: run.metrics for name, run in runs.items()}, folder / "curves.png")
    result: dict[str, Any] = {
        "out": str(folder),
        "encoder": encoder,
        "runs": {name: run.scores for name, run in runs.items()},
        "spread": score_stats([run.scores for run in runs.values()]),
        "pictures": [str(folder / "curves.png"), *(str(path / "detections.png") for path in folders)],
    }
    rows = dict(result["runs"])
    if seeds > 1:
        write_json(folder / "seeds.json", result)
        rows |= {key: {name: result["spread"][name][key] for name in SCORES} for key in ("mean", "std")}
    show_scores(f"{encoder} -> {folder}", "run", rows)
    say(f"pictures: {', '.join(result['pictures'])}")
    return result


def place_of_data(saved: DetectData | None, given: Mapping[str, Any]) -> DetectData:
    """The images that are named, or those of a saved run."""
    from supancl.detection.scenes import DetectData

    paths = {name: str(Path(given[name]).resolve()) for name in ("data", "test", "images") if given.get(name)}
    if "data" in paths:
        saved = DetectData(paths.pop("data"))
    if saved is None:
        raise BadInput("name the images with data: a VOC root, COCO's folder, or a COCO JSON")
    return replace(saved, **paths, **({"year": given["year"]} if given.get("year") else {}))


def resolve_settings(
    encoder: str | None, given: dict[str, Any], resumed: Path | None
) -> tuple[str, DetectData, DetectSpec]:
    """Encoder, data and settings; a resumed run has saved ones, which must match what is given."""
    from supancl.detection import detect_spec
    from supancl.detection.train import DetectFolder

    place = {name: given.pop(name) for name in DetectPlace.__annotations__ if name in given}
    if "freeze" in given:
        names = given["freeze"].split(",") if isinstance(given["freeze"], str) else given["freeze"]
        given["freeze"] = [name for name in names if name]
    # the shorter number first: seed-5 before seed-10
    candidates = [] if resumed is None else sorted(resumed.glob("seed-*/detect.json"), key=lambda f: (len(str(f)), f))
    candidates += [] if resumed is None else [resumed / "detect.json"]
    started = next((file.parent for file in candidates if file.exists()), None)
    if started is None:
        if encoder is None:
            raise BadInput("name an encoder: a run folder, an encoder.safetensors, a checkpoint or random:resnet50")
        return encoder, place_of_data(None, place), detect_spec("c4", given)
    spec, data, saved_encoder, _ = DetectFolder(started).read_settings()
    for name, value in given.items():
        spec = replaced(spec, name, value)
    return encoder or saved_encoder, place_of_data(data, place), spec


def show_scores(title: str, column: str, rows: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print a table of AP, AP50 and AP75."""
    texts = [
        [name, *("-" if (value := row[key]) is None else f"{value:.2f}" for key in SCORES)]
        for name, row in rows.items()
    ]
    show(plain_table(title, [column, *SCORES], texts))


# --- test -------------------------------------------------------------------------------------------------------------


def score(
    detector: str,
    *,
    limit: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    **place: Unpack[DetectPlace],
) -> dict[str, Any]:
    """Test a trained detector.

    Parameters
    ----------
    detector
        the folder of a detector's run, or its detector.safetensors
    limit
        test images at most, evenly spaced (0: all)
    device
        auto, cpu or cuda
    out
        folder for the picture and the scores (default: the run folder)

    Examples
    --------
    $ supancl detect eval runs/detect-001
    $ supancl detect eval runs/detect-001 --json scores.json
    """
    from supancl.detection.model import load_detector, move_to_device
    from supancl.detection.scenes import open_test, prepare_for_testing, relabelled
    from supancl.detection.test import coco_evaluator, coco_scores
    from supancl.detection.test import detect as run_detector
    from supancl.detection.train import DetectFolder, format_scores, precision_of
    from supancl.distributed.ranks import pick_device
    from supancl.reports.pictures import draw_detection_sheet

    coco_evaluator()
    saved, on = load_detector(detector), pick_device(device)
    run = DetectFolder(Path(detector) if Path(detector).is_dir() else Path(detector).parent)
    saved_data = run.read_settings()[1] if run.has_run else None
    requested = place_of_data(saved_data, place)
    folder = Path(out) if out else run.path / "evaluate"
    Output(folder, replaces=Path.is_dir).check()
    if not out:
        check_no_link(folder)
    scenes = open_test(requested)
    scenes = prepare_for_testing(relabelled(scenes, saved.classes), limit=limit)
    precision = precision_of(saved.detector.spec, on)
    detections = run_detector(move_to_device(saved.detector, on), scenes, on, precision, report_progress)
    scores = coco_scores(scenes, detections)
    make_folder(folder)
    name = "detect" if out or (requested == saved_data and not limit) else f"detect-{data_label(requested)}"
    name += f"-{limit}" if limit else ""
    picture = folder / ("detections.png" if name == "detect" else f"{name}.png")
    draw_detection_sheet(scenes, detections, picture)
    result = {
        **scores,
        "data": scenes.location,
        "detector": str(detector),
        "precision": precision,
        "picture": str(picture),
        "out": str(folder / f"{name}.json"),
    }
    write_sealed_json(folder / f"{name}.json", result)
    show_scores(f"{scenes.location}: {format_scores(scores)}", "class", scores["classes"])
    return result


def data_label(data: DetectData) -> str:
    """The data's name for a file: voc-2007, or the name of the COCO file."""
    path = Path(data.test or data.root)
    return path.stem if path.suffix == ".json" else f"{path.name}-{data.year}"
