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

NO_PAPER_ROW = ""  # the row of a run that belongs in a table for which the paper has no row
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

    `of` returns the paper's row for a run, NO_PAPER_ROW if there is none, None if the run does not belong in the table;
    `head` returns the cells left of the numbers for a row of the paper, `head_of` those for a run.
    """

    titles: Head
    of: Callable[[Recipe], str | None]
    head: Callable[[str], Head]
    head_of: Callable[[Recipe], Head]
    requirement: str


@dataclass(frozen=True)
class Layout:
    """A table of the paper: its title, what it was measured on, and its rows."""

    name: str
    title: str
    setting: str
    rows: Rows
    sections: tuple[Section, ...] = (Section(),)
    by_method: bool = False  # Table H.1: a column per method instead of a row
    remark: str = ""  # a note on comparing our numbers with the paper's
    probe: str = "lbfgs"  # of linear accuracy, if a run has both

    @property
    def paper(self) -> PaperTable:
        return PAPER[self.name]

    def column_title(self, column: str) -> str:
        if self.by_method:
            return METHOD_TITLES[column]
        if self.name == "4" and column == "linear":
            return "Top-1"
        return COLUMN_TITLES.get(column.partition(":")[2] or column, column)

    def line_name(self, head: Head) -> str:
        """A line in words, for the notes: the method, or what varies and its value."""
        if self.rows.titles[0] == "Method":
            return head[0]
        return ", ".join(f"{title} {cell}" for title, cell in zip(self.rows.titles, head, strict=True) if cell)


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
    return is_siam(recipe) and isinstance(recipe.loss, Align) and recipe.loss.alpha == usual


# --- a row per method -------------------------------------------------------------------------------------------------


def method_row(recipe: Recipe, vit: bool = False) -> str:
    original = package_recipe(recipe)
    # leaves out imagenet100.supsiam-256 and rows of the batch size study
    is_standard = recipe.name.partition(".")[2] in ("", recipe.method)
    is_standard = is_standard and (original is None or original.train.batch_size == recipe.train.batch_size)
    is_of_architecture = ("vit" in recipe.encoder.name) == vit
    return recipe.method if is_standard and is_of_architecture and is_published(recipe) else NO_PAPER_ROW


def method_head(method: str, loss_of: Recipe | None = None) -> Head:
    row = loss_of or METHODS[method]
    ticks = (row.loss.kind == "contrast", row.loss.supervised, row.branches.target == "momentum")
    return METHOD_TITLES.get(method, method), *(YES if on else "" for on in ticks)


BY_METHOD = Rows(
    ("Method", "CL", "Sup", "EMA"),
    method_row,
    method_head,
    lambda recipe: method_head(recipe.method, recipe),
    "every method has a row",
)
BY_METHOD_ALONE = BY_METHOD._replace(
    titles=("Method",), head=lambda row: method_head(row)[:1], head_of=lambda recipe: BY_METHOD.head_of(recipe)[:1]
)
BY_COLUMN = Rows(
    ("Pretext", "Downstream"),
    lambda recipe: recipe.method if recipe.method in PAPER["H.1"].columns and not has_plugin_section(recipe) else None,
    lambda row: tuple(COLUMN_TITLES.get(name, name) for name in row.split()),
    lambda recipe: (recipe.name.split(".")[0], ""),
    f"its columns are {', '.join(PAPER['H.1'].columns)}",
)


# --- a row per value of what an ablation varies -----------------------------------------------------------------------


def alpha_row(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align):
        return None
    usual = recipe.loss.samples is None and (recipe.pool.kind == "queue" or recipe.loss.alpha == 1)
    return f"{recipe.loss.alpha:g}" if is_siam(recipe) and usual else NO_PAPER_ROW


def alpha_head(recipe: Recipe) -> Head:
    alpha = getattr(recipe.loss, "alpha", 0.0)
    return (f"{alpha:.1f}" if round(alpha, 1) == alpha else f"{alpha:g}",)


def pool_row(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align) or not recipe.loss.supervised:
        return None
    key = f"{recipe.pool.kind} {recipe.pool.size}" if recipe.pool.kind == "class-queues" else recipe.pool.kind
    return key if recipe.loss.samples is None and is_varied_siam(recipe) else NO_PAPER_ROW


def pool_head(row: str) -> Head:
    kind, _, size = row.partition(" ")
    return POOL_TITLES[kind], {"queue": "8192", "prototypes": "100"}.get(kind, f"{size} x 100")


def pool_head_of(recipe: Recipe) -> Head:
    kind, size = recipe.pool.kind, recipe.pool.size
    sizes = {"queue": str(size), "class-queues": f"{size} x classes", "prototypes": "classes"}
    return POOL_TITLES.get(kind, kind), sizes.get(kind, "-")


def positives_row(recipe: Recipe) -> str | None:
    if pool_row(recipe.with_set({"loss.samples": None}) if isinstance(recipe.loss, Align) else recipe) is None:
        return None
    if recipe.pool.kind == "none":
        return None
    usual = recipe.pool.kind == "queue" and is_varied_siam(recipe)
    return positives_head(recipe)[0] if usual else NO_PAPER_ROW


def positives_head(recipe: Recipe) -> Head:
    return (str(getattr(recipe.loss, "samples", None) or "all"),)


def batch_row(recipe: Recipe) -> str:
    has_memory = recipe.method == "supcon" and recipe.pool.kind == "queue"
    usual = is_published(recipe) or (has_memory and recipe.loss.kind == "contrast")
    return f"{recipe.train.batch_size} {recipe.method}{'-pool' if has_memory else ''}" if usual else NO_PAPER_ROW


def batch_head(row: str) -> Head:
    size, _, model = row.partition(" ")
    method = model.removesuffix("-pool")
    return size, f"{METHOD_TITLES.get(method, method).rstrip('†')}{'*' if model != method else ''}"


def batch_head_of(recipe: Recipe) -> Head:
    pooled = recipe.method == "supcon" and recipe.pool.kind != "none"
    return batch_head(f"{recipe.train.batch_size} {recipe.method}{'-pool' if pooled else ''}")


def cell_row(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align) or not recipe.loss.supervised:
        return None
    return cell_of(recipe) if type(recipe.loss) is Align and not has_plugin_section(recipe) else NO_PAPER_ROW


def cell_of(recipe: Recipe) -> str:
    pool, ema = recipe.pool.kind != "none", recipe.branches.target == "momentum"
    return f"{'pool' if pool else 'none'} {'ema' if ema else 'none'}"


def cell_head(row: str) -> Head:
    return tuple(NO if word == "none" else YES for word in row.split())


ALIGN = "SimSiam, SupSiam, BYOL and SupBYOL have an alpha"
POOLED = "SupSiam and SupBYOL have a supervised target"
BY_ALPHA = Rows(("alpha",), alpha_row, lambda row: (f"{float(row):.1f}",), alpha_head, ALIGN)
BY_POOL = Rows(("Target Pool", "Size"), pool_row, pool_head, pool_head_of, POOLED)
BY_POSITIVES = Rows(("M",), positives_row, lambda row: (row,), positives_head, f"{POOLED}, and M is drawn from a pool")
BY_BATCH = Rows(("Bsz", "Model"), batch_row, batch_head, batch_head_of, "every method has a row")
BY_CELL = Rows(("Pool", "EMA"), cell_row, cell_head, lambda recipe: cell_head(cell_of(recipe)), POOLED)


# --- the tables -------------------------------------------------------------------------------------------------------

RESNET = "ImageNet-100, ResNet-50, 200 epochs, batch 128, mean of three seeds"
TOY = "toy data (App. B)"
SHOTS = (Section("5w1s", "5-way 1-shot"), Section("5w5s", "5-way 5-shot"))
TOY_AND_REAL = (
    Section("toy", "Toy dataset", is_toy),
    Section("imagenet100", "ImageNet-100 (ours: own data)", lambda recipe: not is_toy(recipe)),
)
TOY_ALONE = BY_ALPHA._replace(
    of=lambda recipe: alpha_row(recipe) if is_toy(recipe) else None,
    requirement="it needs a toy study (supancl paper toy)",
)
VIT = BY_METHOD._replace(of=lambda recipe: method_row(recipe, vit=True))
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
    Layout(
        "H.1",
        "linear accuracy of pretraining on CIFAR",
        "CIFAR ResNet-18, 1000 epochs, batch 256",
        BY_COLUMN,
        by_method=True,
    ),
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
