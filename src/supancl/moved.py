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
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MOVED_ROOMS = (
    # old package, new package, modules with unchanged names
    ("", "core", "branches encoders heads losses methods pools schedules"),
    ("", "training.cuda", "layers reuse"),
    ("", "training", "monitor signals"),
    ("", "weights", "importing"),
    ("importing", "weights", "formats"),
    ("", "cli", "commands console flags"),
    ("commands", "cli", "comparing data detect embed encoders evaluate import_ pretrain recipes"),
    ("data", "data.store", "shards stream"),
    ("data", "data.sources", "benchmark_rows cifar layouts libraries tars toy"),
    ("data", "data.views", "products"),
    ("evaluate", "probes", "features fewshot knn logistic transfer variance"),
    ("judge", "evaluate", "embedding finetune naming suite"),
    ("report", "reports", "alpha_page contact_sheet detections pictures score_table suite_page"),
    ("studies", "sweeps", "alpha measures"),
    ("studies", "paper", "collapse figure study study_rows theory toy"),
)
RENAMED_MODULES = {
    "start": "training.preflight",
    "data.sidecars": "data.sources.tar_index",
    "data.dividing": "data.sources.benchmark_splits",
    "data.parts": "data.views.specs",
    "evaluate.checks": "probes.features",
    "evaluate.fixed_ridge": "probes.linear",
    "evaluate.kept": "evaluate.feature_cache",
    "evaluate.newton": "probes.newton",
    "evaluate.ranks": "probes.ranking",
    "judge": "evaluate",
    "judge.compared": "evaluate.comparison",
    "judge.groups": "evaluate.naming",
    "judge.subject": "evaluate.encoder",
    "report": "reports",
    "recipes.own": "recipes.plugins",
    "studies": "paper",
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
# modules of 0.1.0 whose names are in several modules now
DIVIDED_MODULES = {
    "data.augment": ("data.views.augment", "data.views.chunks"),
    "data.cache": ("data.store.cache", "data.store.cache_folders"),
    "data.benchmarks": ("data.sources.benchmarks", "data.opening"),
    "data.decoding": ("data.opening", "data.splits", "data.preparing"),
    "data.loader": ("data.splits", "data.preparing", "data.feed"),
    "data.images": ("data.decode", "data.store.memory"),
    "data.readers": (
        "data.sources.folder",
        "data.sources.arrays",
        "data.sources.csv_table",
        "data.splits",
        "data.preparing",
    ),
    "checkpoint": ("weights.checkpoint", "weights.encoder_file", "weights.writer"),
    "evaluate.linear": ("probes.linear", "probes.sgd"),
    "judge.classes": ("evaluate.sources", "evaluate.class_checks", "evaluate.few_shot", "evaluate.finetune"),
    "judge.protocols": ("evaluate.protocols", "evaluate.nearest", "evaluate.few_shot"),
    "judge.sources": ("evaluate.sources", "evaluate.overlap", "evaluate.few_shot"),
    "run": ("weights.run_folder", "weights.metrics_log", "weights.provenance", "files.writing", "files.locks"),
    "train": ("training.pretrain", "training.loop", "reporter"),
    "trainer": ("training.trainer", "training.step", "training.inputs", "training.model", "training.cuda.capture"),
    "capture": ("training.cuda.capture", "training.compilation"),
    "studies.many": ("sweeps.runner", "sweeps.runs", "sweeps.results"),
}
# packages that still exist, and where names of theirs have moved
MOVED_NAMES = {
    "supancl.evaluate": ("supancl.probes",),
    "supancl.data.sources": ("supancl.data.splits", "supancl.data.preparing", "supancl.data.opening"),
    "supancl.data.views": ("supancl.data.views.specs", "supancl.data.views.evaluation", "supancl.data.views.products"),
}
_TABLE = {
    ".".join(piece for piece in ("supancl", old, name) if piece): f"supancl.{new}.{name}"
    for old, new, names in MOVED_ROOMS
    for name in names.split()
} | {f"supancl.{old}": f"supancl.{new}" for old, new in RENAMED_MODULES.items()}
_DIVIDED = {f"supancl.{old}": [f"supancl.{path}" for path in new] for old, new in DIVIDED_MODULES.items()}
_TABLE |= {old: paths[0] for old, paths in _DIVIDED.items()}


def new_path(old: str) -> str | None:
    """The new path of a module of 0.1.0; None if it has not moved."""
    return _TABLE.get(old)


def _new_paths(old: str) -> str:
    return " and ".join(_DIVIDED.get(old, [_TABLE[old]]))


def warn_moved(old: str, new: str, frames: int) -> None:
    """`frames`: calls between this one and the importing code, without those of the import system."""
    warnings.warn(f"{old} is now {new}; supancl 0.3.0 removes the old path", DeprecationWarning, stacklevel=frames + 2)


class MovedModules(MetaPathFinder, Loader):
    """Imports the module at the new path, or the names of all modules it was divided into.

    Comes first among the finders: a folder left by an older checkout would be imported as an empty package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _TABLE:
            return None
        return ModuleSpec(fullname, self, is_package=any(old.startswith(f"{fullname}.") for old in _TABLE))

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warn_moved(old, _new_paths(old), frames=1)
        modules = [import_module(path) for path in _DIVIDED.get(old, [_TABLE[old]])]
        if len(modules) == 1 and not hasattr(module, "__path__"):
            sys.modules[old] = modules[0]
            return
        for new in reversed(modules):  # the first module wins; submodules are found by this table
            module.__dict__.update({name: value for name, value in vars(new).items() if not name.startswith("_")})


def moved_attribute(package: str, name: str) -> Any:
    """A name or a submodule that a package had in 0.1.0; AttributeError if it never had it."""
    if (old := f"{package}.{name}") in _TABLE:
        warn_moved(old, _new_paths(old), frames=2)
        with warnings.catch_warnings():  # warned already, with the right location
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(old)
    has_moved = package in MOVED_NAMES and find_spec(old) is None  # a module that is there is imported, not looked for
    for path in MOVED_NAMES[package] if has_moved else ():
        new = import_module(path)
        if not name.startswith("__") and not isinstance(getattr(new, name, new), ModuleType):
            warn_moved(f"{package}.{name}", f"{new.__name__}.{name}", frames=2)
            return getattr(new, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def install() -> None:
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
