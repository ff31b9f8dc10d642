"""The words of the code: names that were hard to read stay away, and frequent ones are in the glossary or common in the field."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/supancl"

# names of version 0.1.0 that a reader had to translate
RETIRED = set(
    "spread compared objective tried remembered accepted look Look micros Part Whole share settled stays _means arrange plain "
    "judge Subject subject Shelf sidecars parts dividing many kept aside sound told unsaid once each alike apart is_told doubts "
    "at first_bad found asked wanted mine".split()
)

# what PyTorch, NumPy, scikit-learn, argparse and Python programmers call things
FIELD = set(
    "accuracy action arg args arguments array arrays base batch bool boxes cache cat channels checkpoint child choices classes column "
    "columns command config console content count counts default device digits dim dtype element encoder entries entry epoch epochs error errors "
    "features field fields file files first flag folder frozen function functions generator group groups height help image images index "
    "indices input inputs item items iterations k key keys kind label labels layer layers layout length line lines location loss "
    "lr matrix mean metric mode model module n name names norm normalize note number numbers old new option options order out output optimizer parameters params "
    "parent parser path paths pixels position prefix progress options rate result results root row rows sample samples scale score scores section seed "
    "seeds selected selection sequence settings shape size sizes start state std step steps strict stride strip sum suffix table tables test text time "
    "title tokens total train trainer training transform type value values version weight weights width word words x y w".split()
)


def identifiers() -> Counter[str]:
    """How often each name of the package is defined or used."""
    names: Counter[str] = Counter()
    for tree in trees().values():
        for node in ast.walk(tree):
            names.update(_names(node))
    return names


def trees() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def _names(node: ast.AST) -> Iterator[str]:
    for field in ("name", "id", "attr", "arg"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield name


def glossary() -> set[str]:
    """Words in the first column of the glossary in docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    return {word for cell in cells for word in re.findall(r"[a-z]+", cell.lower())}


def imported_names() -> set[str]:
    """Names that come from other packages: they are not ours to choose."""
    import argparse
    import pathlib

    import numpy
    import torch

    ours = {
        name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        if not (node.module or "").startswith("supancl")
        for name in (alias.asname or alias.name for alias in node.names)
    }
    ours |= {
        alias.asname or alias.name.split(".")[0]
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for owner in (
        builtins,
        str,
        list,
        dict,
        set,
        pathlib.Path,
        argparse.ArgumentParser,
        torch,
        torch.Tensor,
        torch.nn.Module,
        numpy,
    ):
        ours |= set(dir(owner))
    return ours


def test_retired_names_stay_away() -> None:
    used = identifiers()
    assert not {name: used[name] for name in RETIRED if used[name]}


def test_the_hundred_most_frequent_names_are_words_of_the_field_or_of_the_glossary() -> None:
    words = FIELD | {w for word in glossary() for w in (word, f"{word}s")}
    foreign = imported_names()
    ours = [name for name, _ in identifiers().most_common() if name not in foreign][:100]
    strange = [
        name for name in ours if not set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())) <= words
    ]
    assert not strange
