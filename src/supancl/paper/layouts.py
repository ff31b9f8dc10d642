"""How each table of the paper is laid out, and which of its rows a run belongs to.

A row has one name everywhere: in the table, in `--rows`, and in the folder of its runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from supancl.config import AUTOMATIC, INCIDENTAL, fields_marked, flattened
from supancl.core.losses import Align
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.results import data_set_of
from supancl.paper.numbers import PAPER, PaperTable
from supancl.recipes import RECIPES, Recipe, as_released_code, recipe
from supancl.recipes.plugins import has_plugin_section

# a data set has the name by which `supancl data` knows it
COLUMN_TITLES = {
    "ssl": "l_ssl",
    "sup": "l_sup",
    "within": "S_W",
    "ratio": "S_W/S_T %",
    "knn": "k-NN",
    "linear": "Linear",
    "ap": "VOC AP",
    "ap50": "VOC AP50",
    "collapsed": "Collapse",
    "rank": "Avg.Rank",
    "average": "Avg",
}
BATCHES = (128, 256)  # Table F.3
MEMORY_BANK = {"pool.kind": "queue", "loss.against": "both-views+pool"}  # its rows marked *
# study -> row -> the fields in which it differs from the recipe that is varied
VARIED: dict[str, dict[str, dict[str, Any]]] = {
    "alpha": {f"alpha-{alpha:g}": {"loss.alpha": alpha} for alpha in (0.0, 0.2, 0.5, 0.8, 1.0)},
    "pool": {
        "queue": {"pool.kind": "queue"},
        # Table 7 has the sizes as targets per class
        **{f"class-queues-{size}": {"pool.kind": "class-queues", "pool.size": size} for size in (80, 20, 5, 1)},
        # these have no M targets to draw
        **{kind: {"pool.kind": kind, "loss.samples": None} for kind in ("prototypes", "none")},
    },
    "positives": {f"M-{samples or 'all'}": {"loss.samples": samples} for samples in (1, 4, 16, None)},
    "batch": {f"batch-{size}": {"train.batch_size": size} for size in BATCHES},
    "memory": {
        f"batch-{size}{suffix}": {"train.batch_size": size, **bank}
        for size in BATCHES
        for suffix, bank in (("", {}), ("-memory", MEMORY_BANK))
    },
}


# --- rows -------------------------------------------------------------------------------------------------------------

RowOf = Callable[[Recipe], str | None]  # the row of a run; None outside the table


class Section(NamedTuple):
    """A section of a table with its rows; `accepts` says whether a run belongs in it."""

    key: str = ""
    title: str = ""
    accepts: Callable[[Recipe | None], bool] = lambda recipe: True


def package_recipe(trained: Recipe) -> Recipe | None:
    """The package's recipe of this name; None if there is none."""
    if trained.name not in RECIPES:
        return None
    original = recipe(trained.name)
    return as_released_code(original) if trained.compat == "released-code" else original


def changed_fields(trained: Recipe) -> dict[str, Any]:
    """The fields in which a recipe differs from the package's recipe of that name."""
    if (original := package_recipe(trained)) is None:
        return {}
    ignored = {*fields_marked(trained, INCIDENTAL), *fields_marked(trained, AUTOMATIC)}
    before, after = flattened(original), flattened(trained)
    return {key: value for key, value in after.items() if key not in ignored and before.get(key) != value}


def is_published(trained: Recipe, varied: Iterable[str] = ()) -> bool:
    """Whether loss, pool and branches are those of the package's recipe, but for the fields that a table varies."""
    changed = {key for key in changed_fields(trained) if key.partition(".")[0] in ("loss", "pool", "branches")}
    return trained.name in RECIPES and not has_plugin_section(trained) and not changed - {*varied}


def is_toy(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.name.startswith("toy.")


def is_align(recipe: Recipe) -> bool:
    return type(recipe.loss) is Align and not has_plugin_section(recipe)


def is_siam(recipe: Recipe) -> bool:
    return is_align(recipe) and recipe.branches.target == "stop-gradient"


def has_target(recipe: Recipe) -> bool:
    return isinstance(recipe.loss, Align) and recipe.loss.supervised


def row_by_method(recipe: Recipe, vit: bool = False) -> str:
    """Neither imagenet100.supsiam-256 nor a row of the batch study is the method's usual one."""
    original = package_recipe(recipe)
    has_own_name = recipe.name.partition(".")[2] == recipe.method
    has_own_batch = original is not None and original.train.batch_size == recipe.train.batch_size
    is_usual = has_own_name and has_own_batch and ("vit" in recipe.encoder.name) == vit and is_published(recipe)
    return recipe.method if is_usual else recipe.name


def row_by_cifar(recipe: Recipe) -> str | None:
    return recipe.method if recipe.method in PAPER["H.1"].rows["cifar10"] else None


def row_by_batch(recipe: Recipe) -> str:
    row = row_by_fields(recipe, VARIED["memory" if recipe.method == "supcon" else "batch"])
    return row if row == recipe.name else f"{recipe.method}-{row}"


def row_by_fields(recipe: Recipe, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The row whose fields the recipe has, the one with the most of them."""
    values = flattened(recipe)
    fitting = [row for row, fields in rows.items() if all(values.get(key) == value for key, value in fields.items())]
    is_usual = is_published(recipe, {key for fields in rows.values() for key in fields})
    return max(fitting, key=lambda row: len(rows[row])) if fitting and is_usual else recipe.name


def row_by_cell(recipe: Recipe) -> str:
    """`pool+ema`, `pool`, `ema` or `neither`."""
    parts = {"pool": recipe.pool.kind != "none", "ema": recipe.branches.target == "momentum"}
    return ("+".join(name for name, on in parts.items() if on) or "neither") if is_align(recipe) else recipe.name


def only(
    belongs: Callable[[Recipe], bool], is_usual: Callable[[Recipe], bool], row_of: Callable[[Recipe], str]
) -> RowOf:
    """The rows of runs that belong; one that differs in more than the table varies has the name of its recipe."""
    return lambda recipe: None if not belongs(recipe) else row_of(recipe) if is_usual(recipe) else recipe.name


def pretrained_on(recipe: Recipe | None) -> str:
    """The CIFAR that the run was trained on, else the family of its recipe (`digits`)."""
    if recipe is None:
        return ""
    data_set = data_set_of(recipe.data.source) if recipe.data.source else None
    return data_set if data_set in ("cifar10", "cifar100") else recipe.name.split(".")[0]


BY_ALPHA = only(lambda recipe: isinstance(recipe.loss, Align), is_siam, partial(row_by_fields, rows=VARIED["alpha"]))
BY_POOL = only(has_target, is_siam, partial(row_by_fields, rows=VARIED["pool"]))
BY_POSITIVES = only(
    lambda recipe: has_target(recipe) and recipe.pool.kind != "none",
    is_siam,
    partial(row_by_fields, rows=VARIED["positives"]),
)


# --- the tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A table of the paper: its title, what it was measured on, and its rows."""

    name: str
    title: str
    setting: str
    row_title: str
    row_of: RowOf
    sections: tuple[Section, ...] = (Section(),)
    probe: str = "lbfgs"  # of linear accuracy, if a run has both

    @property
    def paper(self) -> PaperTable:
        return PAPER[self.name]

    def column_title(self, column: str) -> str:
        if self.name == "4" and column == "linear":
            return "Top-1"
        return COLUMN_TITLES.get(column, column.partition(":")[2] or column)


RESNET = "ImageNet-100, ResNet-50, 200 epochs, batch 128, mean of three seeds"
TOY = "toy data (App. B)"
SHOTS = (Section("5w1s", "5-way 1-shot"), Section("5w5s", "5-way 5-shot"))
TOY_AND_REAL = (
    Section("toy", "Toy dataset", is_toy),
    Section("imagenet100", "ImageNet-100 (ours: own data)", lambda recipe: not is_toy(recipe)),
)
CIFARS = tuple(
    Section(name, f"pretrained on {name}", lambda recipe, name=name: pretrained_on(recipe) == name)  # type: ignore[misc]
    for name in ("cifar10", "cifar100")
)
VIT, CIFAR = "ImageNet-100, ViT-Small, 200 epochs, batch 256", "CIFAR ResNet-18, 1000 epochs, batch 256"
VARIANCE = "S_W and S_T of the toy study and, as we read it, of the paper: projector features of training images"
_LAYOUTS = (
    Layout("1", "SupSiam by alpha", f"{TOY}; {RESNET}; {VARIANCE}", "alpha", BY_ALPHA, TOY_AND_REAL),
    Layout("2", "transfer to toy classes", TOY, "alpha", lambda recipe: BY_ALPHA(recipe) if is_toy(recipe) else None),
    Layout("3", "fine-grained transfer by alpha", RESNET, "alpha", BY_ALPHA),
    Layout("4", "linear accuracy and detection", f"{RESNET}; detection on VOC", "method", row_by_method, probe="sgd"),
    Layout("5", "transfer to 11 data sets", RESNET, "method", row_by_method),
    Layout("6", "few-shot accuracy on 8 data sets", f"{RESNET}; 2000 episodes", "method", row_by_method, SHOTS),
    Layout("7", "transfer by pool design", RESNET, "pool", BY_POOL),
    Layout("8", "collapse by pool and EMA", "CIFAR-100, ResNet-18", "cell", only(has_target, is_align, row_by_cell)),
    Layout("F.1", "transfer by alpha", RESNET, "alpha", BY_ALPHA),
    Layout("F.2", "transfer by number of positives M", RESNET, "M", BY_POSITIVES),
    Layout("F.3", "transfer by batch size and memory bank", RESNET.replace(", batch 128", ""), "batch", row_by_batch),
    Layout("G.1", "transfer to 11 data sets", VIT, "method", partial(row_by_method, vit=True)),
    Layout("H.1", "linear accuracy on CIFAR", CIFAR, "method", row_by_cifar, CIFARS),
)
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _LAYOUTS}


def table_name(text: str) -> str:
    """The paper's name of a table, for any spelling of it.

    >>> table_name("table5"), table_name("Table 5"), table_name("f1"), table_name("F.1")
    ('5', '5', 'F.1', 'F.1')
    """
    short = re.sub(r"^tab(le)?|[\s._-]", "", text.strip().lower())
    short_names = {name.lower().replace(".", ""): name for name in LAYOUTS}
    if short not in short_names:
        raise BadInput(f"unknown table {text!r}{did_you_mean(short.upper(), LAYOUTS)}")
    return short_names[short]
