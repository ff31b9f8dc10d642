"""Read annotations: the layout of Pascal VOC, and COCO's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from supancl.data.sources.voc import read_annotation, read_list
from supancl.detection.scenes import Scene, Scenes, check_images, make_scene, relabelled
from supancl.errors import BadInput
from supancl.files import read_text

MAX_ANNOTATION_BYTES = 2**31  # of a COCO JSON: those of large data sets have about a gigabyte

# year -> lists of images to train on and to test on: (year, name of the list)
YEARS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "07+12": ((("2007", "trainval"), ("2012", "trainval")), (("2007", "test"),)),
    "2007": ((("2007", "trainval"),), (("2007", "test"),)),
    "2012": ((("2012", "train"),), (("2012", "val"),)),  # the annotations of its test set were never published
}


@dataclass(frozen=True)
class DetectData:
    """What to train and to test on, as the user named it, so that a resumed run finds it again.

    `root` is a VOC root, COCO's folder, or a COCO JSON. With a JSON, `test` is a second one, and `images` the folder
    of the images if they are not next to it.
    """

    root: str
    year: str = "07+12"
    test: str = ""
    images: str = ""


def open_scenes(data: DetectData) -> tuple[Scenes, Scenes]:
    """The training and the test images, under one list of class names."""
    if Path(data.root).is_file() and not data.test:
        raise BadInput(f"{data.root} is the training set; give the test set with test FILE.json")
    train, test = _readers(data)
    return unify_classes(train(), test())


def open_test(data: DetectData) -> Scenes:
    """The test images alone; a single COCO JSON is taken as the test set."""
    return read_coco(Path(data.test), data.images) if data.test else _readers(data)[1]()


def _readers(data: DetectData) -> tuple[Callable[[], Scenes], Callable[[], Scenes]]:
    """Functions that read the training and the test images."""
    root = Path(data.root)
    if not root.exists():
        raise BadInput(f"no folder or file {root}; give a VOC root (it contains VOCdevkit/), or a COCO JSON")
    if root.is_file():
        return (partial(read_coco, root, data.images), partial(read_coco, Path(data.test or root), data.images))
    official = [sorted(root.glob(f"annotations/instances_{name}*.json"))[-1:] for name in ("train", "val")]
    other_test = partial(read_coco, Path(data.test), data.images)
    if any(official):
        train, test = (partial(_read_coco_folder, data, files) for files in official)
        return train, other_test if data.test else test
    if data.year not in YEARS:
        raise BadInput(f"year {data.year}: must be one of {', '.join(YEARS)}")
    train_lists, test_lists = YEARS[data.year]
    return partial(read_voc, root, train_lists), other_test if data.test else partial(read_voc, root, test_lists)


def _read_coco_folder(data: DetectData, files: list[Path]) -> Scenes:
    """Read annotations/instances_NAME.json of COCO's folder, with the images in NAME/."""
    root = Path(data.root)
    if not files:
        raise BadInput(f"{root / 'annotations'} lacks instances_train*.json or instances_val*.json; name a test set")
    return read_coco(files[0], data.images or str(root / files[0].stem.removeprefix("instances_")))


def unify_classes(train: Scenes, test: Scenes) -> tuple[Scenes, Scenes]:
    names = tuple(sorted({*train.classes, *test.classes}))
    shared = len({scene.path for scene in train.scenes} & {scene.path for scene in test.scenes})
    remark = (f"test images that are trained on: {shared} of {len(test)}; the scores do not measure new images",)
    return relabelled(train, names), replace(relabelled(test, names), remarks=remark if shared else ())


# --- Pascal VOC -------------------------------------------------------------------------------------------------------


def read_voc(root: Path, lists: Sequence[tuple[str, str]]) -> Scenes:
    """Read Annotations/*.xml of the images in ImageSets/Main/LIST.txt, for one year or several."""
    entries: list[tuple[Path, str]] = []
    for year, name in lists:
        folder = _year_folder(root, year)
        try:
            entries += [(folder, image) for image in read_list(folder, name)]
        except (OSError, UnicodeDecodeError):
            file = folder / "ImageSets" / "Main" / f"{name}.txt"
            raise BadInput(f"cannot read the list {file}; choose the lists with year {' or '.join(YEARS)}") from None
    annotations = [read_annotation(folder, name) for folder, name in entries]
    classes = tuple(sorted({name for annotation in annotations for name in annotation.names}))
    location = ", ".join(f"VOC{year} {name}" for year, name in lists) + f" in {root}"
    scenes = tuple(
        make_scene(
            folder / "JPEGImages" / f"{name}.jpg",
            annotation.size,
            annotation.boxes,
            [classes.index(kind) for kind in annotation.names],
            annotation.difficult,
            location=str(folder / "Annotations" / f"{name}.xml"),
        )
        for (folder, name), annotation in zip(entries, annotations, strict=True)
    )
    check_images(scenes, location, "unpack all of JPEGImages, or remove it from the list")
    return Scenes(scenes, classes, location)


def _year_folder(root: Path, year: str) -> Path:
    """The folder of a year: in VOCdevkit/, in the root, or the root itself unless it is named after another year."""
    candidates = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}"]
    if root.name == f"VOC{year}" or not root.name.startswith("VOC"):
        candidates.append(root)
    for folder in candidates:
        if (folder / "Annotations").is_dir():
            return folder
    raise BadInput(f"{root} holds no VOC{year} (VOCdevkit/VOC{year}/Annotations); unpack it, or choose another year")


# --- COCO -------------------------------------------------------------------------------------------------------------


def read_coco(file: Path, images: str = "") -> Scenes:
    """Read a JSON with images, annotations (bbox = x, y, width, height) and categories."""
    folder = Path(images) if images else file.parent
    try:
        content = json.loads(read_text(file, limit=MAX_ANNOTATION_BYTES))
        class_names = {
            number: str(entry["name"]) for number, entry in _index_by_id(file, content, "categories").items()
        }
        entries = _index_by_id(file, content, "images")
        annotations: dict[int, list[dict[str, Any]]] = {number: [] for number in entries}
        for entry in content["annotations"]:
            annotations[int(entry["image_id"])].append(entry)
        classes = tuple(sorted(set(class_names.values())))
        scenes = tuple(
            _coco_scene(folder, entries[number], annotations[number], class_names, classes, file) for number in entries
        )
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror}); give a COCO JSON") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(
            f"{file}: not a COCO annotation file ({type(error).__name__}: {error}); it needs images, "
            "annotations and categories"
        ) from None
    check_images(scenes, str(file), "restore it, or name their folder with images")
    return Scenes(scenes, classes, str(file))


def _index_by_id(file: Path, content: dict[str, Any], kind: str) -> dict[int, dict[str, Any]]:
    """Entries by id. Ids must be unique: in files merged by hand they often repeat, and boxes would get lost."""
    entries: dict[int, dict[str, Any]] = {}
    for entry in content[kind]:
        if entries.setdefault(int(entry["id"]), entry) != entry:
            raise BadInput(f"{file}: two {kind} have the id {entry['id']}; renumber them, and the annotations too")
    return entries


def _coco_scene(
    folder: Path, entry: dict[str, Any], annotations: list[dict[str, Any]], class_names: dict[int, str],
    classes: tuple[str, ...], file: Path,
) -> Scene:  # fmt: skip
    """The boxes of one image; those of no width or height are left out."""
    name = str(entry["file_name"])
    annotations = [annotation for annotation in annotations if 0 not in annotation["bbox"][2:]]
    boxes = [
        [x, y, x + width, y + height] for x, y, width, height in (annotation["bbox"] for annotation in annotations)
    ]
    labels = [classes.index(class_names[int(annotation["category_id"])]) for annotation in annotations]
    crowd = [bool(annotation.get("iscrowd", 0)) for annotation in annotations]
    size = (int(entry["height"]), int(entry["width"]))
    return make_scene(folder / name, size, boxes, labels, crowd=crowd, location=f"{file} (image {name})")
