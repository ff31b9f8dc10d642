"""Import paths of 0.1.0 that have moved: they work until 0.3.0, with a DeprecationWarning that names the new one.

>>> new_path("supancl.losses")
'supancl.core.losses'
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED_ROOMS = (
    # old room, new room, modules that kept their names
    ("", "core", "branches encoders heads losses methods pools schedules"),
    ("", "training.cuda", "capture layers reuse"),
    ("", "training", "monitor signals"),
    ("", "weights", "checkpoint importing"),
    ("importing", "weights", "formats"),
    ("", "cli", "commands console flags"),
    ("commands", "cli", "comparing data detect embed encoders evaluate import_ pretrain recipes"),
    ("data", "data.store", "cache decoding images loader shards stream"),
    ("data", "data.sources", "benchmark_rows benchmarks cifar layouts libraries readers tars toy"),
    ("data", "data.views", "augment products"),
    ("evaluate", "probes", "checks features fewshot fixed_ridge knn linear logistic newton ranks transfer variance"),
    ("judge", "evaluate", "classes compared embedding finetune groups naming protocols sources subject suite"),
    ("report", "reports", "alpha_page contact_sheet detections pictures score_table suite_page"),
    ("studies", "sweeps", "alpha measures"),
    ("studies", "paper", "collapse figure study study_rows theory toy"),
)
RENAMED_MODULES = {
    "trainer": "training.step",
    "train": "training.loop",
    "start": "training.preflight",
    "run": "weights.run_folder",
    "data.sidecars": "data.sources.tar_index",
    "data.dividing": "data.sources.benchmark_splits",
    "data.parts": "data.views.rank_views",
    "evaluate.kept": "evaluate.feature_cache",
    "judge": "evaluate",
    "report": "reports",
    "recipes.own": "recipes.plugins",
    "studies": "paper",
    "studies.many": "sweeps.runner",
    "studies.paper_numbers": "paper.numbers",
    "studies.tables": "paper.tables.layouts",
    "studies.table_detectors": "paper.tables.runs",
    "studies.table_entry": "paper.tables.entries",
    "studies.toy_measure": "paper.toy.measures",
    "studies.toy_train": "paper.toy.training",
    "studies.toy_tables": "paper.toy.tables",
    **{
        f"studies.table_{name}": f"paper.tables.{name}"
        for name in ["cells", "formats", "layouts", "make", "plan", "runs"]
    },
    **{
        f"studies.theory_{name}": f"paper.theory.{name}"
        for name in ["checks", "dynamics", "formulas", "predictor", "world"]
    },
}
# packages that still exist and gave these names away
MOVED_NAMES = {
    "supancl.evaluate": "supancl.probes",
    "supancl.data.sources": "supancl.data.splits",
    "supancl.data.views": "supancl.data.views.specs",
}
_TABLE = {
    ".".join(part for part in ("supancl", old, name) if part): f"supancl.{new}.{name}"
    for old, new, names in MOVED_ROOMS
    for name in names.split()
} | {f"supancl.{old}": f"supancl.{new}" for old, new in RENAMED_MODULES.items()}


def new_path(old: str) -> str | None:
    """Where a module of 0.1.0 is now; None if it never moved."""
    return _TABLE.get(old)


def warn_moved(old: str, new: str, frames: int) -> None:
    """`frames`: how many calls lie between this one and the code that imports; the import system's own do not count."""
    warnings.warn(f"{old} is now {new}; the old path goes in supancl 0.3.0", DeprecationWarning, stacklevel=frames + 2)


class MovedModules(MetaPathFinder, Loader):
    """Asked last, for modules that no file has: hands out the module at its new path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _TABLE else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warn_moved(old, _TABLE[old], frames=1)
        sys.modules[old] = import_module(_TABLE[old])


def moved_attribute(package: str, name: str) -> Any:
    """A name or a submodule that a package had in 0.1.0; AttributeError if it never had it."""
    if f"{package}.{name}" in _TABLE:
        return import_module(f"{package}.{name}")
    if package in MOVED_NAMES:
        new = import_module(MOVED_NAMES[package])
        if not name.startswith("__") and hasattr(new, name):
            warn_moved(f"{package}.{name}", f"{new.__name__}.{name}", frames=2)
            return getattr(new, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def install() -> None:
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
