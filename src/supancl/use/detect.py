"""`supancl detect`: fine-tune a detector from an encoder, and test it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict, Unpack

from supancl.config import from_json, replaced, to_json
from supancl.errors import BadInput
from supancl.files import Output, check_no_link, make_folder, write_sealed_json
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
        N runs with seeds 0, 1, ..., and their mean
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
    from supancl.detection.train import train_detector
    from supancl.evaluation.results import average
    from supancl.reports.pictures import draw_detection_curves, draw_detection_sheet

    folder, given = Path(out) if out else next_folder("detect"), {**settings, **parse_set(set)}
    places = [(folder, given)]
    if seeds > 1:
        first = given.get("seed", 0)
        places = [(folder / f"seed-{n}", {**given, "seed": n}) for n in range(first, first + seeds)]
    # all are checked before the first one starts
    jobs = [(path, *resolve_settings(encoder, values, path, resume)) for path, values in places]
    runs: dict[str, DetectRun] = {}
    for path, start, data, spec in jobs:
        run = train_detector(start, data, spec, path, resume=resume, reporter=current_reporter())
        draw_detection_sheet(run.test, run.detections, path / "detections.png")
        runs[f"seed {spec.seed}"] = run
    draw_detection_curves({name: run.metrics for name, run in runs.items()}, folder / "curves.png")
    rows = {name: run.scores for name, run in runs.items()}
    values = {name: [run[name] for run in rows.values() if run[name] is not None] for name in SCORES}
    spread = {name: average(found)._asdict() for name, found in values.items()}
    result = {
        "out": str(folder),
        "encoder": jobs[0][1],
        "runs": rows,
        "spread": spread,
        "pictures": [str(folder / "curves.png"), *(str(path / "detections.png") for path, *_ in jobs)],
    }
    shown = {"mean": "mean", "half a 95% interval": "interval"} if seeds > 1 else {}
    means = {title: {name: spread[name][key] for name in SCORES} for title, key in shown.items()}
    show_scores(f"{result['encoder']} -> {folder}", "run", {**rows, **means})
    say(f"pictures: {', '.join(result['pictures'])}")
    return result


def resolve_settings(
    encoder: str | None, given: Mapping[str, Any], out: Path, resume: bool
) -> tuple[str, DetectData, DetectSpec]:
    """Encoder, images and settings: of the run that is resumed, and what is given."""
    from supancl.detection import detect_spec
    from supancl.detection.train import DetectFolder

    folder, given = DetectFolder(out), dict(given)
    folder.check_free(resume)
    place = {name: given.pop(name) for name in DetectPlace.__annotations__ if name in given}
    if folder.has_run:
        spec, data, saved_encoder, _ = folder.read_settings()
        for name, value in given.items():
            spec = replaced(spec, name, value)
        return encoder or saved_encoder, choose_data(data, place), spec
    if encoder is None:
        raise BadInput("name an encoder: a run folder, an encoder.safetensors, a checkpoint or random:resnet50")
    return encoder, choose_data(None, place), detect_spec("c4", given)


def choose_data(saved: DetectData | None, given: Mapping[str, Any]) -> DetectData:
    """The images that are named, or those of a saved run."""
    from supancl.detection.scenes import DetectData

    place = {name: value if name == "year" else str(Path(value).resolve()) for name, value in given.items() if value}
    if "data" in place:
        place["root"] = place.pop("data")
    elif saved is None:
        raise BadInput("name the images with data: a VOC root, COCO's folder, or a COCO JSON")
    else:
        place = {**to_json(saved), **place}
    return from_json(DetectData, place, "")


def show_scores(title: str, column: str, rows: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print a table of AP, AP50 and AP75."""
    from supancl.detection.test import percent

    texts = [[name, *(percent(row[key]) for key in SCORES)] for name, row in rows.items()]
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
    from supancl.detection.scenes import open_split, prepare_for_testing, relabelled
    from supancl.detection.test import coco_evaluator, coco_scores
    from supancl.detection.test import detect as run_detector
    from supancl.detection.train import DetectFolder, precision_of
    from supancl.distributed.ranks import pick_device
    from supancl.reports.pictures import draw_detection_sheet

    coco_evaluator()
    saved, on = load_detector(detector), pick_device(device)
    run = DetectFolder(Path(detector) if Path(detector).is_dir() else Path(detector).parent)
    own = run.read_settings()[1] if run.has_run else None
    data = choose_data(own, place)
    folder = Path(out) if out else run.evaluations
    Output(folder, replaces=Path.is_dir).check()
    if not out:
        check_no_link(folder)
    scenes = prepare_for_testing(relabelled(open_split(data, "test"), saved.classes), limit=limit)
    precision = precision_of(saved.spec, on)
    detections = run_detector(move_to_device(saved, on), scenes, on, precision, report_progress)
    scores = coco_scores(scenes, detections)
    make_folder(folder)
    path, name = Path(data.test or data.root), "detect"
    if not out and (data != own or limit):  # the run's own scores stay
        name = f"detect-{path.stem if path.is_file() else f'{path.name}-{data.year}'}" + f"-{limit}" * bool(limit)
    picture, file = folder / f"{name}.png", folder / f"{name}.json"
    draw_detection_sheet(scenes, detections, picture)
    result = {
        **scores,
        "data": scenes.location,
        "detector": str(detector),
        "precision": precision,
        "picture": str(picture),
        "out": str(file),
    }
    write_sealed_json(file, result)
    show_scores(scenes.location, "class", {"all": scores, **scores["classes"]})
    return result
