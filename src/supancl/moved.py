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
    # old room, new room, modules that kept their names
    ("", "core", "branches encoders heads losses methods pools schedules"),
    ("", "training.cuda", "layers reuse"),
    ("", "training", "monitor signals"),
    ("", "weights", "importing"),
    ("importing", "weights", "formats"),
    ("", "cli", "commands console flags"),
    ("commands", "cli", "comparing data detect embed encoders evaluate import_ pretrain recipes"),
    ("data", "data.store", "cache shards stream"),
    ("data", "data.sources", "benchmark_rows cifar layouts libraries tars toy"),
    ("data", "data.views", "augment products"),
    ("evaluate", "probes", "features fewshot knn logistic transfer variance"),
    ("judge", "evaluate", "compared embedding finetune naming suite"),
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
    "evaluate.newton": "probes.logistic",
    "evaluate.ranks": "probes.ranking",
    "judge": "evaluate",
    "judge.groups": "evaluate.naming",
    "judge.subject": "evaluate.encoder",
    "report": "reports",
    "recipes.own": "recipes.plugins",
    "studies": "paper",
    "data.loader": "data.splits",
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
# a module of 0.1.0 whose names are in several modules now
DIVIDED_MODULES = {
    "data.benchmarks": ("data.sources.benchmarks", "data.opening"),
    "data.decoding": ("data.opening", "data.splits"),
    "data.images": ("data.decode", "data.store.memory"),
    "data.readers": ("data.sources.folder", "data.sources.arrays", "data.sources.csv_table", "data.splits"),
    "checkpoint": ("weights.checkpoint", "weights.encoder_file", "weights.writer"),
    "evaluate.linear": ("probes.linear", "probes.sgd"),
    "judge.classes": ("evaluate.sources", "evaluate.few_shot", "evaluate.finetune"),
    "judge.protocols": ("evaluate.protocols", "evaluate.few_shot"),
    "judge.sources": ("evaluate.sources", "evaluate.few_shot"),
    "run": ("weights.run_folder", "weights.metrics_log", "weights.provenance", "files"),
    "train": ("training.pretrain", "training.loop", "reporter"),
    "trainer": ("training.trainer", "training.step", "training.inputs", "training.model", "training.cuda.capture"),
    "capture": ("training.cuda.capture", "training.compilation"),
    "studies.many": ("sweeps.runner", "sweeps.runs", "sweeps.results"),
}
# packages that still exist and gave these names away
MOVED_NAMES = {
    "supancl.evaluate": ("supancl.probes",),
    "supancl.data.sources": ("supancl.data.splits", "supancl.data.opening"),
    "supancl.data.views": ("supancl.data.views.specs", "supancl.data.views.evaluation", "supancl.data.views.products"),
}
_TABLE = {
    ".".join(part for part in ("supancl", old, name) if part): f"supancl.{new}.{name}"
    for old, new, names in MOVED_ROOMS
    for name in names.split()
} | {f"supancl.{old}": f"supancl.{new}" for old, new in RENAMED_MODULES.items()}
_DIVIDED = {f"supancl.{old}": [f"supancl.{part}" for part in new] for old, new in DIVIDED_MODULES.items()}
_TABLE |= {old: parts[0] for old, parts in _DIVIDED.items()}


def new_path(old: str) -> str | None:
    """Where a module of 0.1.0 is now; None if it never moved."""
    return _TABLE.get(old)


def _now(old: str) -> str:
    return " and ".join(_DIVIDED.get(old, [_TABLE[old]]))


def warn_moved(old: str, new: str, frames: int) -> None:
    """`frames`: how many calls lie between this one and the code that imports; the import system's own do not count."""
    warnings.warn(f"{old} is now {new}; the old path goes in supancl 0.3.0", DeprecationWarning, stacklevel=frames + 2)


class MovedModules(MetaPathFinder, Loader):
    """Hands out the module at the new path, or the names of all its parts.

    Asked first: a folder that an older checkout left behind would pass for an empty package of the old name.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _TABLE:
            return None
        return ModuleSpec(fullname, self, is_package=any(old.startswith(f"{fullname}.") for old in _TABLE))

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warn_moved(old, _now(old), frames=1)
        parts = [import_module(part) for part in _DIVIDED.get(old, [_TABLE[old]])]
        if len(parts) == 1 and not hasattr(module, "__path__"):
            sys.modules[old] = parts[0]
            return
        for part in reversed(parts):  # the first one has the last word; modules below are found by this table
            module.__dict__.update({name: value for name, value in vars(part).items() if not name.startswith("_")})


def moved_attribute(package: str, name: str) -> Any:
    """A name or a submodule that a package had in 0.1.0; AttributeError if it never had it."""
    if (old := f"{package}.{name}") in _TABLE:
        warn_moved(old, _now(old), frames=2)
        with warnings.catch_warnings():  # said already, with the right place
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
