"""What supancl can do stays: each line of capabilities.txt holds in this tree, or says what became of it.

    python -m tests.test_capabilities      # print what this tree can do

The list was printed at commit 6d6044a3. A line that no longer holds gets its new spelling, `OLD -> NEW`, or the name
under which it was let go, `OLD -- gone: "NAME"`; these names are at the top of the file. What is said of a command,
field or function holds for the flags, choices or arguments below it too. Each function here finds one kind of line.
"""

from __future__ import annotations

import argparse
import inspect
import re
import signal
import tarfile
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

import supancl
from supancl.cli import main
from tests.helpers import archive, class_folders, picture, table

LIST = Path(__file__).with_name("capabilities.txt")
GONE = "# gone: "
REGISTRIES = (
    ("recipe: {}", "supancl:RECIPES"),
    ("method: {}", "supancl:METHODS"),
    ("encoder: {}", "supancl.core.encoders:BUILDERS"),
    ("encoder: {}", "supancl.core.encoders:VARIANTS"),
    ("source: {}", "supancl.data.sources.arrays:BUILT_IN"),
    ("source: {}:NAME", "supancl.data.sources.libraries:READERS"),
    ("source: {}@ROOT", "supancl.data.sources.benchmarks:BENCHMARKS"),
    ("import: format {}", "supancl.runs.formats:FORMATS"),
    ("export: {}", "supancl.use.export:FORMAT_NAMES"),
    ("choice: --logger {}", "supancl.loggers:LOGGERS"),
    ("command: embed --out {}", "supancl.use.embed:WRITERS"),
    ("command: predict --with {}", "supancl.use.predicting:CLASSIFIERS"),
    ("command: evaluate suite --protocols {}", "supancl.evaluation.suite:PROTOCOLS"),
    ("command: paper table {}", "supancl.paper.layouts:LAYOUTS"),
    ("command: runs {}", "supancl.cli.arguments.runs:ACTIONS"),
)
VOC = """<annotation><size><width>8</width><height>8</height></size><object><name>{}</name>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>"""
PLUMBING = ("supancl.lazy", "supancl.moved")  # modules whose functions the package uses itself
CLASSES = ("Data", "Encoder", "Features", "ImageEncoder", "Recipe", "Run")  # whose attributes count


def registered() -> Iterator[str]:
    """Names in tables of the package."""
    for line, place in REGISTRIES:
        with suppress(ImportError, AttributeError):
            yield from (line.format(getattr(row, "name", row)) for row in resolve_name(place))


def parsers(*words: str) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """The parser whose help a command shows, and those of its subcommands."""
    shown: list[argparse.ArgumentParser] = []
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(argparse.ArgumentParser, "print_help", lambda parser, file=None: shown.append(parser))
        main([*words, "--help"])
    yield words, shown[0]
    for action in shown[0]._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name in action.choices:
                yield from parsers(*words, name)


def commands() -> Iterator[str]:
    """Every command and flag, and what they may be."""
    for words, parser in parsers():
        command = " ".join(["command:", *words])
        yield from [command] * bool(words)
        for action in parser._actions:
            if action.dest == "help" or isinstance(action, argparse._SubParsersAction):
                continue
            yield from (f"{command} {flag}" for flag in action.option_strings)
            where = f"choice: {action.option_strings[-1]}" if action.option_strings else command
            yield from (f"{where} {choice}" for choice in action.choices or ())


def sections(name: str, hint: Any) -> Iterator[str]:
    """The fields inside a type, and their choices."""
    if typing.get_origin(hint) is typing.Literal:
        yield from (f"{name} {choice}" for choice in typing.get_args(hint))
    elif is_dataclass(hint):
        for field in fields(hint):
            yield f"{name}.{field.name}"
            yield from sections(f"{name}.{field.name}", typing.get_type_hints(hint)[field.name])
    else:
        for option in typing.get_args(hint):
            yield from sections(name, option)


def recipe_fields() -> Iterator[str]:
    """Fields with a section, as --set takes them, and `compat`."""
    yield from (f"field: {name[1:]}" for name in sections("", supancl.Recipe) if "." in name[1:] or " " in name)
    yield from (f"detector field: {name[1:]}" for name in sections("", resolve_name("supancl.detection:DetectSpec")))


def public_names() -> Iterator[str]:
    """Documented names of the package, arguments of its functions, attributes of its main classes."""
    for name in dir(supancl):
        value = getattr(supancl, name)
        is_plumbing = isinstance(value, (ModuleType, bool)) or getattr(value, "__module__", "") in PLUMBING
        if name[0] == "_" or is_plumbing or not value.__doc__:
            continue
        yield f"name: {name}"
        if inspect.isfunction(value):
            yield from (f"name: {name}({argument})" for argument in inspect.signature(value).parameters)
        if name in CLASSES:
            ours = [owner for owner in value.__mro__ if owner.__module__.startswith("supancl")]
            attributes = {key for owner in ours for key in (*vars(owner), *inspect.get_annotations(owner))}
            attributes |= set(inspect.signature(value).parameters)
            yield from (f"name: {name}.{attribute}" for attribute in attributes if attribute[0] != "_")


def exit_codes() -> Iterator[str]:
    interrupts = [supancl.Interrupted("", number) for number in (signal.SIGINT, signal.SIGTERM)]
    for error in (supancl.SupanclError, supancl.BadInput, supancl.Collapsed, supancl.NonFinite, *interrupts):
        yield f"exit code: {error.exit_code} {getattr(error, '__name__', 'Interrupted')}"


def sources(folder: Path) -> Iterator[str]:
    """Kinds of sources that can be opened, and of labels that are understood: small ones are made and read."""
    photos, shard, two = class_folders(folder / "photos"), folder / "train.tar", ("cat", "dog")
    images = {f"photos/{name}/{i}.png": name for name in two for i in range(6)}
    with tarfile.open(shard, "w") as tar:
        for i, (image, name) in enumerate(images.items()):
            table(folder / "label", name)
            tar.add(folder / image, f"{i}.png"), tar.add(folder / "label", f"{i}.cls")
    for part in ("train", "test"):
        class_folders(folder / "splits" / part, seed=len(part))
    picture(class_folders(folder / "few") / "unlabelled/1.png")
    class_folders(folder / "nested", ("pet/cat", "pet/dog"))
    for part in ("ImageSets/Main", "Annotations"):
        (folder / "voc" / part).mkdir(parents=True)
    table(folder / "voc/ImageSets/Main/train.txt", *map(str, range(12)))
    for i, name in enumerate(images.values()):
        picture(folder / f"voc/JPEGImages/{i}.jpg", seed=i)
        table(folder / f"voc/Annotations/{i}.xml", VOC.format(name))

    def rows(header: str, *cells: str) -> Path:
        lines = (f"{image},{cells[i % len(cells)]}" for i, image in enumerate(images))
        return table(folder / f"{header}{cells}.csv", header, *lines)

    weights = np.array([[0.5, 0.5], [1, 0]] * 10)
    for line, source, classes, settings in (
        ("source: folder of class folders", photos, two, {}),
        ("source: folder with train/ and test/", folder / "splits", two, {}),
        ("source: .npz", archive(folder / "one.npz"), ("0", "1"), {}),
        ("source: .csv", rows("path,label,split", "cat,train", "dog,train"), two, {}),
        ("source: .csv, other columns", rows("file,kind", *two), two, {"columns": "image=file,label=kind"}),
        ("source: .tar", shard, two, {}),
        ("source: .tar, streamed", shard, two, {"stream": True}),
        ("source: Pascal VOC", folder / "voc", two, {}),
        ("source: several, joined", photos, ("bird", *two), {"joined": (str(rows("path,label", "bird")),)}),
        ("labels: none for some images, in a folder", folder / "few", two, {}),
        ("labels: none for some images, in a .csv", rows("path,label", *two, ""), two, {}),
        ("labels: several, in a .csv", rows("path,label", "cat;dog", "cat"), two, {}),
        ("labels: soft, in a .csv", rows("path,label", "cat:.7;dog:.3"), two, {}),
        ("labels: a column per class, in a .csv", rows("path,cat,dog", "0,1", "1,.5"), two, {}),
        ("labels: a column per class, in a .npz", archive(folder / "n.npz", train_labels=weights), ("0", "1"), {}),
        ("labels: nested", folder / "nested", ("pet", "pet/cat", "pet/dog"), {"hierarchy": "paths"}),
    ):
        with suppress(supancl.BadInput):
            data = supancl.open_data(supancl.DataSpec(source=str(source), **settings))
            yield from [line] * (data.classes == classes)


def encoders(folder: Path) -> Iterator[str]:
    """What can be named as an encoder: the same weights in different places."""
    weights = folder / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    weights.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    (folder / "pytorch_model.bin").symlink_to(weights)
    table(folder / "config.json", '{"architecture": "resnet18"}')
    supancl.import_checkpoint(weights, folder / "encoder")
    for line, name in (
        ("import: FILE", weights),
        ("import: NAME@FILE", f"resnet18@{weights}"),
        ("import: torchvision:NAME@FILE", f"torchvision:resnet18@{weights}"),
        ("import: timm:NAME@FILE", f"timm:resnet18@{weights}"),
        ("import: torchvision:NAME, from its cache", "torchvision:resnet18"),
        ("import: timm:NAME, from its cache", "timm:resnet18.tv_in1k"),
        ("import: folder with config.json", folder),
        ("import: encoder.safetensors", folder / "encoder/encoder.safetensors"),
    ):
        with pytest.MonkeyPatch.context() as patch, suppress(supancl.BadInput):
            patch.setenv("TORCH_HOME", str(folder / "torch"))
            patch.setattr("torch.hub._hub_dir", None)
            yield from [line] * (supancl.open_encoder(name).width == 512)


def capabilities() -> set[str]:
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        found = registered(), commands(), recipe_fields(), public_names(), exit_codes(), sources(Path(first))
        return {line for lines in (*found, encoders(Path(second))) for line in lines}


def unexplained(listed: list[str], present: set[str]) -> list[str]:
    """What is lost, unless its line, or that of the command or name it belongs to, says what became of it."""
    names = {line.removeprefix(GONE) for line in listed if line.startswith(GONE)}
    lines = [re.split(" (->|-- gone:) ", line) for line in listed if line and line[0] != "#"]
    became = {old: explanation for old, *explanation in lines if explanation}
    lost = []
    for old, *explanation in lines:
        if old in present and not explanation:
            continue
        owners = [owner for owner in became if re.match(rf"{re.escape(owner)}($|[ .(])", old)]
        owner = max(owners, key=len, default="")
        mark, what = became.get(owner, ("", ""))
        new = what + old[len(owner) :]
        if not mark or (mark == "->" and new not in present) or (mark != "->" and what.strip('"') not in names):
            lost.append(f"{old} {mark} {new}" if mark == "->" else f"{old} {mark} {what}".strip())
    return lost


def test_nothing_is_lost_without_a_word() -> None:
    lost = unexplained(LIST.read_text().splitlines(), capabilities())
    assert not lost, "\n".join(["capabilities.txt does not say what became of these:", *lost])


if __name__ == "__main__":
    print("\n".join(sorted(capabilities())))
