"""Imports point down only. A new module must be given its place in the table."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import supancl

ROOT = Path(supancl.__file__).parent

# from the bottom up; whatever is imported must stand in an earlier line than what imports it
LAYERS = (
    {"errors"},
    {"config", "files", "signals", "layers"},
    {"distributed"},
    {"heads", "pools", "encoders", "schedules"},
    {"losses", "branches"},
    {"data", "methods"},
    {"recipes", "checkpoint"},
    {"evaluate", "run", "importing"},
    {"monitor", "start", "capture"},
    {"trainer"},
    {"reuse"},
    {"train"},
    {"judge", "export", "audit", "detect"},
    {"report"},
    {"console"},
    {"flags"},
    {"commands"},
    {"studies"},  # some take encoders and their flags, as commands do
    {"api"},
    {""},  # the package itself, with its public names
    {"cli"},
    {"__main__"},
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
# beyond the order of the layers
NEVER = {
    "evaluate": {"methods", "recipes", "train", "trainer", "monitor", "run"},  # a probe needs images -> features
    "data": {"recipes", "methods", "train", "trainer", "losses", "pools", "branches", "heads"},
    "checkpoint": {"methods", "train", "trainer"},
}


def unit_of(module: str) -> str:
    """supancl.data.views.specs -> data: a package is one unit."""
    return [*module.split("."), ""][1]


def module_of(path: Path) -> str:
    parts = ("supancl", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str, is_package: bool) -> set[str]:
    """Every module that the source imports, at any depth: in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            if base == "supancl":  # a name of the package may be a module of it
                found |= {f"supancl.{a.name}" if a.name in RANK else "supancl" for a in node.names}
            else:
                found.add(base)
    return found


FILES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
IMPORTS = {
    module: imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    for module, path in FILES.items()
}


def own(modules: set[str]) -> set[str]:
    return {module for module in modules if module.split(".")[0] == "supancl"}


def faults(module: str, modules: set[str]) -> list[str]:
    """What is wrong with these imports of this module."""
    unit, found = unit_of(module), []
    for other in sorted(own(modules)):
        target = unit_of(other)
        if target == unit:
            continue  # inside a package the order is its own affair
        if target == "cli" and unit != "__main__":
            found.append(f"{module} imports cli")
        elif target in NEVER.get(unit, ()):
            found.append(f"{module} must never import {other}")
        elif RANK[target] >= RANK[unit]:
            found.append(f"{module} imports {other}, which is not below it")
    return found


def test_every_module_has_its_place():
    unplaced = {unit_of(module) for module in FILES} - set(RANK)
    assert not unplaced, "give these a line in LAYERS"


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module):
    assert faults(module, IMPORTS[module]) == []


@pytest.mark.parametrize("module", ["supancl.config", "supancl.errors"])
def test_the_bottom_rests_on_the_standard_library_alone(module):
    outside = {name.split(".")[0] for name in IMPORTS[module]} - set(sys.stdlib_module_names) - {"supancl"}
    assert outside == set()


@pytest.mark.parametrize("unit", ["losses", "pools", "branches", "heads"])
def test_the_words_of_the_paper_rest_on_torch_alone(unit):
    outside = {name.split(".")[0] for name in IMPORTS[f"supancl.{unit}"]} - set(sys.stdlib_module_names) - {"supancl"}
    assert outside <= {"torch"}


@pytest.mark.parametrize(
    ("source", "module", "is_package", "expected"),
    [
        ("import torch.nn as nn", "supancl.core.heads", False, {"torch.nn"}),
        ("from supancl import studies, __doc__", "supancl.cli", False, {"supancl.paper", "supancl"}),
        ("from . import pools", "supancl.core.losses", False, {"supancl.core.pools"}),
        ("from .views import Crops", "supancl.data", True, {"supancl.data.views.specs"}),
        ("from ..errors import BadInput", "supancl.data.views.specs", False, {"supancl.errors"}),
        ("def f():\n    from supancl.training.loop import pretrain", "supancl.cli", False, {"supancl.training.loop"}),
        ("if TYPE_CHECKING:\n    import supancl.recipes", "supancl.training.monitor", False, {"supancl.recipes"}),
    ],
)
def test_imports_are_found_however_they_are_written(source, module, is_package, expected):
    assert imported(source, module, is_package) == expected


UPWARDS = [
    ("evaluate.knn", "methods"), ("evaluate.knn", "recipes.cifar"), ("evaluate", "train"), ("data.views", "recipes"),
    ("studies", "cli"), ("losses", "branches"), ("errors", "config"), ("methods", "data"), ("report.pictures", "cli"),
    ("train", "report"), ("recipes.cifar", "train"), ("data.loader", "methods"), ("data", "losses"), ("train", "cli"),
]  # fmt: skip
DOWNWARDS = [
    ("cli", "studies.theory"), ("studies.theory", "losses"), ("monitor", "evaluate"), ("data.views", "config"),
    ("evaluate.features", "checkpoint"), ("data.sources", "data.readers"), ("recipes.cifar", "methods"),
    ("train", "recipes"), ("__main__", "cli"), ("cli", "report"), ("report", "train"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "other"), UPWARDS)
def test_an_import_upwards_is_a_fault(module, other):
    assert len(faults(f"supancl.{module}", {f"supancl.{other}"})) == 1


@pytest.mark.parametrize(("module", "other"), DOWNWARDS)
def test_an_import_downwards_is_none(module, other):
    assert faults(f"supancl.{module}", {f"supancl.{other}", "torch"}) == []
