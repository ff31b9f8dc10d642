"""Annotations on disk: the layout of Pascal VOC, and COCO's JSON."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torchvision.datasets import VOCDetection

from supancl.detect.scenes import Scene, Scenes, cut_remark, images_there, made_scene, relabelled
from supancl.errors import BadInput, plural

# year -> lists of images to train on and to test on: (year, name of the list)
YEARS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "07+12": ((("2007", "trainval"), ("2012", "trainval")), (("2007", "test"),)),
    "2007": ((("2007", "trainval"),), (("2007", "test"),)),
    "2012": ((("2012", "train"),), (("2012", "val"),)),  # the annotations of its test set were never published
}


@dataclass(frozen=True)
class DetectData:
    """What to train on and what to test on, as it was named, so that a run finds it again.

    `root` is a VOC root, COCO's own folder, or a COCO JSON (then `test` is another one, and `images` the folder of
    the images where they do not lie beside it).
    """

    root: str
    year: str = "07+12"
    test: str = ""
    images: str = ""


def open_scenes(data: DetectData) -> tuple[Scenes, Scenes]:
    """The training and the test images, under one list of class names."""
    if Path(data.root).is_file() and not data.test:
        raise BadInput(f"{data.root} is what to train on; name what to test on with --test FILE.json")
    train, test = _readers(data)
    return joined(train(), test())


def open_test(data: DetectData) -> Scenes:
    """The test images alone, which need no others beside them; a single COCO JSON is what to test on."""
    return read_coco(Path(data.test), data.images) if data.test else _readers(data)[1]()


def _readers(data: DetectData) -> tuple[Callable[[], Scenes], Callable[[], Scenes]]:
    """How to read what to train on, and what to test on."""
    root = Path(data.root)
    if not root.exists():
        raise BadInput(f"no folder or file {root}; give a VOC root (it holds VOCdevkit/), or a COCO JSON")
    if root.is_file():
        return (partial(read_coco, root, data.images), partial(read_coco, Path(data.test or root), data.images))
    official = [sorted(root.glob(f"annotations/instances_{name}*.json"))[-1:] for name in ("train", "val")]
    if any(official):
        return partial(_official, data, official[0], "train"), partial(_official, data, official[1], "val")
    if data.year not in YEARS:
        raise BadInput(f"--year {data.year}: must be one of {', '.join(YEARS)}")
    train_lists, test_lists = YEARS[data.year]
    if data.test:  # trained on VOC, tested on other images with its classes
        return partial(read_voc, root, train_lists), partial(read_coco, Path(data.test), data.images)
    if data.images:
        raise BadInput(f"--images {data.images} is for a COCO JSON; the images of VOC lie in JPEGImages of {root}")
    return partial(read_voc, root, train_lists), partial(read_voc, root, test_lists)


def _official(data: DetectData, files: list[Path], name: str) -> Scenes:
    """Of COCO's own folder: annotations/instances_NAME.json with the images in NAME/; --test names another test set."""
    root = Path(data.root)
    if name == "val" and data.test:
        return read_coco(Path(data.test), data.images)
    if not files:
        raise BadInput(
            f"{root / 'annotations'} holds no instances_{name}*.json"
            + ("; name the test set with --test" if name == "val" else "")
        )
    return read_coco(files[0], data.images or str(root / files[0].stem.removeprefix("instances_")))


def joined(train: Scenes, test: Scenes) -> tuple[Scenes, Scenes]:
    names = tuple(sorted({*train.classes, *test.classes}))
    both = len({scene.path for scene in train.scenes} & {scene.path for scene in test.scenes})
    told = (
        f"{both} of the {plural(len(test), 'test image')} {'is' if both == 1 else 'are'} trained on as well; the "
        "scores are no test of other images",
    )
    return relabelled(train, names), replace(relabelled(test, names), remarks=test.remarks + (told if both else ()))


# --- Pascal VOC -------------------------------------------------------------------------------------------------------


def read_voc(root: Path, lists: Sequence[tuple[str, str]]) -> Scenes:
    """Annotations/*.xml of the images in ImageSets/Main/LIST.txt, of one year or of several together."""
    entries: list[tuple[Path, str]] = []
    for year, name in lists:
        folder = _year_folder(root, year)
        file = folder / "ImageSets" / "Main" / f"{name}.txt"
        try:
            lines = [line.split() for line in file.read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"no readable list {file}; --year {' or '.join(YEARS)} says which lists are taken") from None
        entries += [(folder, line[0]) for line in lines]
    parsed = [_voc_scene(folder, name) for folder, name in entries]
    classes = tuple(sorted({kind for _, kinds, _ in parsed for kind in kinds}))
    where = ", ".join(f"VOC{year} {name}" for year, name in lists) + f" in {root}"
    scenes, cut = [], 0
    for (folder, name), (size, kinds, objects) in zip(entries, parsed, strict=True):
        scene, over = made_scene(
            folder / "JPEGImages" / f"{name}.jpg", size, [each[0] for each in objects],
            [classes.index(kind) for kind in kinds], [each[1] for each in objects],
            where=str(folder / "Annotations" / f"{name}.xml"),
        )  # fmt: skip
        scenes.append(scene)
        cut += over
    large = images_there(scenes, where, "unpack JPEGImages whole, or take it out of the list")
    return Scenes(tuple(scenes), classes, where, (*cut_remark(cut, where), *large))


def _year_folder(root: Path, year: str) -> Path:
    """The folder of a year: below VOCdevkit/, beside others, or the root itself (under any name but another year's)."""
    places = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}"]
    if root.name == f"VOC{year}" or not root.name.startswith("VOC"):
        places.append(root)
    for folder in places:
        if (folder / "Annotations").is_dir():
            return folder
    raise BadInput(
        f"{root} holds no VOC{year} (VOCdevkit/VOC{year}/Annotations); unpack it there, or choose another "
        f"--year ({', '.join(YEARS)})"
    )


def _voc_scene(folder: Path, name: str) -> tuple[tuple[int, int], list[str], list[tuple[list[float], bool]]]:
    """(height, width), the class of each object, and its box with VOC's difficult mark."""
    file = folder / "Annotations" / f"{name}.xml"
    try:
        tree = ElementTree.parse(file).getroot()
        told = VOCDetection.parse_voc_xml(tree).get("annotation")
        size = (int(_entry(told, "size", "height")), int(_entry(told, "size", "width")))
        found = told["object"]
        if len(found) < len(tree.findall("object")):  # torchvision says nothing of these
            raise ValueError("an <object> without content")
        kinds, objects = [], []
        for each in found:
            box = [float(_entry(each, "bndbox", side)) for side in ("xmin", "ymin", "xmax", "ymax")]
            difficult = isinstance(each, dict) and each.get("difficult") == "1"
            # VOC counts pixels from 1 and both ends belong to the box: 1..W is the whole image, 0 to W from 0
            objects.append(([box[0] - 1, box[1] - 1, box[2], box[3]], difficult))
            kinds.append(_entry(each, "name"))
    except OSError:
        raise BadInput(f"no annotation {file}, though {name} is in the list of images") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise BadInput(f"{file}: not an annotation of VOC ({error}); mend it, or take {name} out of the list") from None
    return size, kinds, objects


def _entry(told: Any, *path: str) -> str:
    """A text in torchvision's dictionaries."""
    for name in path:
        told = told.get(name) if isinstance(told, dict) else None
    if not isinstance(told, str):
        raise ValueError(f"no <{'><'.join(path)}>")
    return told


# --- COCO -------------------------------------------------------------------------------------------------------------


def read_coco(file: Path, images: str = "") -> Scenes:
    """A JSON with images, annotations (bbox = x, y, width, height) and categories."""
    folder = Path(images) if images else file.parent
    try:
        content = json.loads(file.read_text())
        kinds = {number: str(each["name"]) for number, each in _by_id(file, content, "categories").items()}
        entries = _by_id(file, content, "images")
        of_image: dict[int, list[dict[str, Any]]] = {number: [] for number in entries}
        for each in content["annotations"]:
            of_image[int(each["image_id"])].append(each)
        classes = tuple(sorted(set(kinds.values())))
        made = [_coco_scene(folder, entries[number], of_image[number], kinds, classes, file) for number in entries]
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror}); give a COCO JSON") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{file}: not a COCO annotation file ({type(error).__name__}: {error}); it needs images, "
            "annotations and categories"
        ) from None
    large = images_there(
        [scene for scene, _ in made], str(file), "bring it back, or name the images' folder with --images"
    )
    flat = sum(_flat(each) for each in content["annotations"])
    remarks = (*cut_remark(sum(cut for _, cut in made), str(file)), *large)
    boxes = plural(flat, "box of no width or height was", "boxes of no width or height were")
    remarks += (f"{file}: {boxes} left out",) if flat else ()
    return Scenes(tuple(scene for scene, _ in made), classes, str(file), remarks)


def _by_id(file: Path, content: dict[str, Any], kind: str) -> dict[int, dict[str, Any]]:
    """Files put together by hand often count from the start again: boxes would go to another image, or class."""
    found: dict[int, dict[str, Any]] = {}
    for each in content[kind]:
        if found.setdefault(int(each["id"]), each) != each:
            raise BadInput(
                f"{file}: two {kind} have the id {each['id']}, so what an annotation belongs to cannot be "
                "told; number them anew, and the annotations with them"
            )
    return found


def _flat(annotation: dict[str, Any]) -> bool:
    """A box without an area: there is nothing in it to find."""
    return 0 in annotation["bbox"][2:]


def _coco_scene(
    folder: Path, entry: dict[str, Any], annotations: list[dict[str, Any]], kinds: dict[int, str],
    classes: tuple[str, ...], file: Path,
) -> tuple[Scene, int]:  # fmt: skip
    name = str(entry["file_name"])
    annotations = [each for each in annotations if not _flat(each)]
    boxes = [[x, y, x + width, y + height] for x, y, width, height in (each["bbox"] for each in annotations)]
    labels = [classes.index(kinds[int(each["category_id"])]) for each in annotations]
    crowd = [bool(each.get("iscrowd", 0)) for each in annotations]
    size = (int(entry["height"]), int(entry["width"]))
    return made_scene(folder / name, size, boxes, labels, crowd=crowd, where=f"{file} (image {name})")
