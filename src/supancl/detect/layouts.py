"""Annotations on disk: the layout of Pascal VOC, and COCO's JSON."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.detect.scenes import Scene, Scenes, cut_remark, made_scene, relabelled
from supancl.errors import BadInput

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
    root = Path(data.root)
    if not root.exists():
        raise BadInput(f"no folder or file {root}; give a VOC root (it holds VOCdevkit/), or a COCO JSON")
    if root.is_file():
        if not data.test:
            raise BadInput(f"{root} is what to train on; name what to test on with --test FILE.json")
        return joined(read_coco(root, data.images), read_coco(Path(data.test), data.images))
    official = sorted(root.glob("annotations/instances_train*.json"))
    if official:
        tests = sorted(root.glob("annotations/instances_val*.json"))
        if not tests:
            raise BadInput(f"{root / 'annotations'} holds no instances_val*.json; name the test set with --test")
        named = [(file, root / file.stem.removeprefix("instances_")) for file in (official[-1], tests[-1])]
        train, test = (read_coco(file, data.images or str(folder)) for file, folder in named)
        return joined(train, test)
    if data.year not in YEARS:
        raise BadInput(f"--year {data.year}: must be one of {', '.join(YEARS)}")
    train_lists, test_lists = YEARS[data.year]
    return joined(read_voc(root, train_lists), read_voc(root, test_lists))


def joined(train: Scenes, test: Scenes) -> tuple[Scenes, Scenes]:
    names = tuple(sorted({*train.classes, *test.classes}))
    return relabelled(train, names), relabelled(test, names)


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
    return Scenes(tuple(scenes), classes, where, cut_remark(cut, where))


def _year_folder(root: Path, year: str) -> Path:
    """The folder of a year: below VOCdevkit/, beside others, or the root itself (under any name but another year's)."""
    places = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}"]
    if root.name == f"VOC{year}" or not root.name.startswith("VOC"):
        places.append(root)
    for folder in places:
        if (folder / "Annotations").is_dir():
            return folder
    raise BadInput(f"{root} holds no VOC{year} (VOCdevkit/VOC{year}/Annotations); unpack it there, or choose another "
                   f"--year ({', '.join(YEARS)})")


def _voc_scene(folder: Path, name: str) -> tuple[tuple[int, int], list[str], list[tuple[list[float], bool]]]:
    """(height, width), the class of each object, and its box with VOC's difficult mark."""
    file = folder / "Annotations" / f"{name}.xml"
    try:
        tree = ElementTree.parse(file).getroot()
        size = (int(_text(tree, "size/height")), int(_text(tree, "size/width")))
        kinds, objects = [], []
        for each in tree.findall("object"):
            box = [float(_text(each, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
            # VOC counts pixels from 1 and both ends belong to the box: 1..W is the whole image, 0 to W from 0
            objects.append(([box[0] - 1, box[1] - 1, box[2], box[3]], each.findtext("difficult", "0").strip() == "1"))
            kinds.append(_text(each, "name").strip())
    except OSError:
        raise BadInput(f"no annotation {file}, though {name} is in the list of images") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise BadInput(f"{file}: not an annotation of VOC ({error}); mend it, or take {name} out of the list") from None
    return size, kinds, objects


def _text(element: ElementTree.Element, path: str) -> str:
    found = element.findtext(path)
    if found is None:
        raise ValueError(f"no <{path.replace('/', '><')}>")
    return found


# --- COCO -------------------------------------------------------------------------------------------------------------


def read_coco(file: Path, images: str = "") -> Scenes:
    """A JSON with images, annotations (bbox = x, y, width, height) and categories."""
    folder = Path(images) if images else file.parent
    try:
        content = json.loads(file.read_text())
        kinds = {int(each["id"]): str(each["name"]) for each in content["categories"]}
        entries = {int(each["id"]): each for each in content["images"]}
        of_image: dict[int, list[dict[str, Any]]] = {number: [] for number in entries}
        for each in content["annotations"]:
            of_image[int(each["image_id"])].append(each)
        classes = tuple(sorted(set(kinds.values())))
        made = [_coco_scene(folder, entries[number], of_image[number], kinds, classes, file) for number in entries]
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror}); give a COCO JSON") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file}: not a COCO annotation file ({type(error).__name__}: {error}); it needs images, "
                       "annotations and categories") from None
    return Scenes(tuple(scene for scene, _ in made), classes, str(file), cut_remark(sum(c for _, c in made), str(file)))


def _coco_scene(
    folder: Path, entry: dict[str, Any], annotations: list[dict[str, Any]], kinds: dict[int, str],
    classes: tuple[str, ...], file: Path,
) -> tuple[Scene, int]:  # fmt: skip
    name = str(entry["file_name"])
    boxes = [[x, y, x + width, y + height] for x, y, width, height in (each["bbox"] for each in annotations)]
    labels = [classes.index(kinds[int(each["category_id"])]) for each in annotations]
    crowd = [bool(each.get("iscrowd", 0)) for each in annotations]
    size = (int(entry["height"]), int(entry["width"]))
    return made_scene(folder / name, size, boxes, labels, crowd=crowd, where=f"{file} (image {name})")
