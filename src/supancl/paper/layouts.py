"""How each table of the paper is laid out, and which of its rows a run belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.core.losses import Align
from supancl.core.methods import METHODS
from supancl.errors import BadInput, did_you_mean
from supancl.paper.numbers import PAPER, PaperTable
from supancl.recipes import RECIPES, Recipe, as_released_code, recipe
from supancl.recipes.plugins import has_plugin_section
from supancl.recipes.recipe import resolve_warmup

YES, NO = "✓", "✗"
METHOD_TITLES = {
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "moco2": "MoCo-v2",
    "supmoco": "SupMoCo",
    "moco3": "MoCo-v3",
    "simsiam": "SimSiam",
    "supsiam": "SupSiam†",
    "byol": "BYOL",
    "supbyol": "SupBYOL†",
    "crossentropy": "cross-entropy",
}
POOL_TITLES = {"queue": "Class-agnostic", "class-queues": "Class-wise", "prototypes": "Learnable", "none": "none"}
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
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "dtd": "DTD",
    "food101": "Food",
    "mit67": "MIT67",
    "sun397": "SUN397",
    "caltech101": "Caltech",
    "cub200": "CUB200",
    "dogs": "Dogs",
    "flowers102": "Flowers",
    "pets": "Pets",
    "aircraft": "Aircraft",
    "fc100": "FC100",
    "fungi": "Fungi",
    "omniglot": "Omniglot",
    "traffic-signs": "Traffic Signs",
}
Head = tuple[str, ...]


class Section(NamedTuple):
    """A section of a table with its rows; `accepts` says whether a run belongs in it."""

    key: str = ""
    title: str = ""
    accepts: Callable[[Recipe | None], bool] = lambda recipe: True


class Rows(NamedTuple):
    """What the rows of a table are.

    `key` is the row of a run, or None if the run does not belong in the table; the paper may have no such row, as for
    an alpha of 0.3. Runs that differ in more than the table varies have a row with the name of their recipe. `head`
    are the cells left of the numbers.
    """

    titles: Head
    key: Callable[[Recipe], str | None]
    head: Callable[[str], Head]
    requirement: str


@dataclass(frozen=True)
class Layout:
    """A table of the paper: its title, what it was measured on, and its rows."""

    name: str
    title: str
    setting: str
    rows: Rows
    sections: tuple[Section, ...] = (Section(),)
    remark: str = ""  # a note on comparing our numbers with the paper's
    probe: str = "lbfgs"  # of linear accuracy, if a run has both

    @property
    def paper(self) -> PaperTable:
        return PAPER[self.name]

    @property
    def by_method(self) -> bool:
        """Table H.1: a column per method, a row per pair of data sets."""
        return self.name == "H.1"

    def column_title(self, column: str) -> str:
        if self.name == "4" and column == "linear":
            return "Top-1"
        return (METHOD_TITLES | COLUMN_TITLES).get(column.partition(":")[2] or column, column)


def package_recipe(trained: Recipe) -> Recipe | None:
    """The package's recipe of this name; None if there is none."""
    if trained.name not in RECIPES:
        return None
    original = recipe(trained.name)
    return as_released_code(original) if trained.compat == "released-code" else original


def changed_fields(trained: Recipe) -> dict[str, Any]:
    """The fields in which a recipe differs from the package's recipe of that name."""
    original = package_recipe(trained)
    if original is None:
        return {}
    # the epochs may shorten the warm-up
    with_same_epochs = resolve_warmup(original.with_set({"train.epochs": trained.train.epochs}))
    originals = {**flattened(with_same_epochs), "train.epochs": original.train.epochs}
    # encoder.size determines the views' size and the short side
    ignored = {*fields_marked(trained, INCIDENTAL), "views.size", "data.short_side"}
    return {
        key: value
        for key, value in flattened(trained).items()
        if key not in ignored and originals.get(key) != value and (originals.get(key), value) != ("auto", "fp32")
    }


def is_published(recipe: Recipe) -> bool:
    """Whether loss, pool and branches equal those of the package's recipe, or else of the method."""
    if has_plugin_section(recipe):
        return False
    if (original := package_recipe(recipe)) is not None:
        return (recipe.loss, recipe.pool, recipe.branches) == (original.loss, original.pool, original.branches)
    row = METHODS.get(recipe.method)
    fields = (recipe.loss, recipe.pool.kind, recipe.branches.target)
    return row is not None and fields == (row.loss, row.pool.kind, row.branches.target)


def is_toy(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.name.startswith("toy.")


def is_siam(recipe: Recipe) -> bool:
    """SupSiam and SimSiam, whatever their alpha and their pool."""
    return type(recipe.loss) is Align and recipe.branches.target == "stop-gradient" and not has_plugin_section(recipe)


def is_varied_siam(recipe: Recipe) -> bool:
    """SupSiam with its usual alpha, in which only the pool or the number of positives differs."""
    original = package_recipe(recipe)
    usual = original.loss.alpha if original is not None and isinstance(original.loss, Align) else 0.5
    return is_siam(recipe) and getattr(recipe.loss, "alpha", None) == usual


def has_target(recipe: Recipe) -> bool:
    return isinstance(recipe.loss, Align) and recipe.loss.supervised


# --- a row per method -------------------------------------------------------------------------------------------------


def method_key(recipe: Recipe, vit: bool = False) -> str:
    original = package_recipe(recipe)
    # leaves out imagenet100.supsiam-256 and rows of the batch size study
    is_standard = recipe.name.partition(".")[2] in ("", recipe.method)
    is_standard = is_standard and (original is None or original.train.batch_size == recipe.train.batch_size)
    is_usual = is_standard and ("vit" in recipe.encoder.name) == vit and is_published(recipe)
    return recipe.method if is_usual else recipe.name


def method_head(method: str) -> Head:
    if (row := METHODS.get(method)) is None:
        return method, "", "", ""
    ticks = (row.loss.kind == "contrast", row.loss.supervised, row.branches.target == "momentum")
    return METHOD_TITLES.get(method, method), *(YES if on else "" for on in ticks)


BY_METHOD = Rows(("Method", "CL", "Sup", "EMA"), method_key, method_head, "every method has a row")
BY_METHOD_ALONE = BY_METHOD._replace(titles=("Method",), head=lambda key: method_head(key)[:1])
BY_DATA = Rows(
    ("Pretext", "Downstream"),
    lambda recipe: recipe.method if recipe.method in PAPER["H.1"].columns and not has_plugin_section(recipe) else None,
    lambda key: tuple(COLUMN_TITLES.get(name, name) for name in key.split()),
    f"its columns are {', '.join(PAPER['H.1'].columns)}",
)


# --- a row per value of what an ablation varies -----------------------------------------------------------------------


def alpha_key(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align):
        return None
    usual = recipe.loss.samples is None and (recipe.pool.kind == "queue" or recipe.loss.alpha == 1)
    return f"{recipe.loss.alpha:g}" if is_siam(recipe) and usual else recipe.name


def alpha_head(key: str) -> Head:
    return (f"{key}.0" if key in "01" else key,)


def pool_key(recipe: Recipe) -> str | None:
    if not has_target(recipe):
        return None
    kind = f"{recipe.pool.kind} {recipe.pool.size}" if recipe.pool.kind == "class-queues" else recipe.pool.kind
    return kind if getattr(recipe.loss, "samples", None) is None and is_varied_siam(recipe) else recipe.name


def pool_head(key: str) -> Head:
    kind, _, size = key.partition(" ")
    sizes = {"queue": "8192", "prototypes": "100", "class-queues": f"{size} x 100"}  # of the paper
    return POOL_TITLES.get(kind, kind), sizes.get(kind, "")


def positives_key(recipe: Recipe) -> str | None:
    if not has_target(recipe) or recipe.pool.kind == "none":
        return None
    usual = recipe.pool.kind == "queue" and is_varied_siam(recipe)
    return str(getattr(recipe.loss, "samples", None) or "all") if usual else recipe.name


def batch_key(recipe: Recipe) -> str:
    has_memory = recipe.method == "supcon" and recipe.pool.kind == "queue"
    usual = is_published(recipe) or (has_memory and recipe.loss.kind == "contrast")
    return f"{recipe.train.batch_size} {recipe.method}{'-pool' * has_memory}" if usual else recipe.name


def batch_head(key: str) -> Head:
    size, _, model = key.rpartition(" ")
    method = model.removesuffix("-pool")
    return size, f"{METHOD_TITLES.get(method, method).rstrip('†')}{'*' * (model != method)}"


def cell_key(recipe: Recipe) -> str | None:
    if not has_target(recipe):
        return None
    pool, ema = recipe.pool.kind != "none", recipe.branches.target == "momentum"
    usual = type(recipe.loss) is Align and not has_plugin_section(recipe)
    return f"{'pool' if pool else 'none'} {'ema' if ema else 'none'}" if usual else recipe.name


def cell_head(key: str) -> Head:
    words = key.split()
    return tuple(NO if word == "none" else YES for word in words) if len(words) == 2 else (key, "")


POOLED = "SupSiam and SupBYOL have a supervised target"
BY_ALPHA = Rows(("alpha",), alpha_key, alpha_head, "SimSiam, SupSiam, BYOL and SupBYOL have an alpha")
BY_POOL = Rows(("Target Pool", "Paper's size"), pool_key, pool_head, POOLED)
BY_POSITIVES = Rows(("M",), positives_key, lambda key: (key,), f"{POOLED}, and M is drawn from a pool")
BY_BATCH = Rows(("Bsz", "Model"), batch_key, batch_head, "every method has a row")
BY_CELL = Rows(("Pool", "EMA"), cell_key, cell_head, POOLED)


# --- the tables -------------------------------------------------------------------------------------------------------

RESNET = "ImageNet-100, ResNet-50, 200 epochs, batch 128, mean of three seeds"
TOY = "toy data (App. B)"
SHOTS = (Section("5w1s", "5-way 1-shot"), Section("5w5s", "5-way 5-shot"))
TOY_AND_REAL = (
    Section("toy", "Toy dataset", is_toy),
    Section("imagenet100", "ImageNet-100 (ours: own data)", lambda recipe: not is_toy(recipe)),
)
TOY_ALONE = BY_ALPHA._replace(
    key=lambda recipe: alpha_key(recipe) if is_toy(recipe) else None,
    requirement="it needs a toy study (supancl paper toy)",
)
VIT = BY_METHOD._replace(key=lambda recipe: method_key(recipe, vit=True))
_LAYOUTS = (
    Layout(
        "1",
        "SupSiam by alpha: losses, variance, k-NN and linear accuracy",
        f"{TOY}; {RESNET}",
        BY_ALPHA,
        TOY_AND_REAL,
        remark="S_W and S_T of the toy study and, as we read it, of the paper: projector features of training images",
    ),
    Layout("2", "transfer to toy classes by alpha", TOY, TOY_ALONE),
    Layout("3", "fine-grained transfer by alpha", RESNET, BY_ALPHA),
    Layout("4", "linear accuracy and object detection", f"{RESNET}; detection on VOC", BY_METHOD_ALONE, probe="sgd"),
    Layout("5", "transfer to 11 data sets", RESNET, BY_METHOD),
    Layout("6", "few-shot classification on 8 data sets", f"{RESNET}; 2000 episodes", BY_METHOD, SHOTS),
    Layout("7", "transfer by pool design", RESNET, BY_POOL),
    Layout("8", "target pool, momentum branch and collapse", "CIFAR-100, ResNet-18", BY_CELL),
    Layout("F.1", "transfer by alpha", RESNET, BY_ALPHA),
    Layout("F.2", "transfer by number of positives M", RESNET, BY_POSITIVES),
    Layout("F.3", "transfer by batch size and memory bank (*)", RESNET.replace(", batch 128", ""), BY_BATCH),
    Layout("G.1", "transfer to 11 data sets, ViT-Small", "ImageNet-100, ViT-Small, 200 epochs, batch 256", VIT),
    Layout("H.1", "linear accuracy of pretraining on CIFAR", "CIFAR ResNet-18, 1000 epochs, batch 256", BY_DATA),
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
